"""What a prompt cost, as a table of operator families under each way of computing it.

Apart from the program that measures, so that it can be read and tested where neither Triton nor a card is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True)
class Family:
    name: str
    launches: int
    ms: float
    tflop: float
    gigabytes: float
    floor_ms: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """Milliseconds, medians: to the token at the host, and until the device has also done the draft's pass."""

    stack: str
    part: int
    ttft_ms: float
    spread_ms: float
    device_ms: float
    peak_gigabytes: float
    families: tuple[Family, ...]


def table(lines: Sequence[Line]) -> str:
    """Each line, and under it its families."""
    out = []
    for x in lines:
        floor = sum(family.floor_ms for family in x.families)
        out.append(
            f"{x.stack}, parts of {x.part}: TTFT {x.ttft_ms:.1f} ms (range {x.spread_ms:.1f}), "
            f"device {x.device_ms:.1f}, floor {floor:.1f}, {x.peak_gigabytes:.2f} GB beside weights"
        )
        out.append(f"  {'family':<20}{'launches':>9}{'ms':>9}{'TFLOP':>8}{'GB':>8}{'floor':>8}{'ratio':>7}")
        for f in x.families:
            ratio = f"{f.ms / f.floor_ms:>7.1f}" if f.floor_ms else f"{'':>7}"
            out.append(
                f"  {f.name:<20}{f.launches:>9}{f.ms:>9.2f}{f.tflop:>8.2f}{f.gigabytes:>8.1f}{f.floor_ms:>8.2f}{ratio}"
            )
    return "\n".join(out)
