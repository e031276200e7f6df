"""The GPUs that a launch would have: declared in `engine.gpu`, else those that nvidia-smi sees.

The surprise: a declaration wins over what is there. A preset is audited for the machine that it is meant for, on the
laptop where it is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS: dict[str, tuple[int, float]] = {
    "V100": (7, 32),
    "T4": (7, 15),
    "A10": (8, 23),
    "A100": (8, 80),
    "A800": (8, 80),
    "L4": (8, 23),
    "L40S": (8, 45),
    "RTX 4090": (8, 24),
    "H20": (9, 96),
    "H20-3e": (9, 140),
    "H100": (9, 80),
    "H800": (9, 80),
    "H200": (9, 140),
    "GH200": (9, 140),
    "B200": (10, 180),
    "GB200": (10, 186),
    "B300": (10, 270),
    "GB300": (10, 279),
    "RTX 5090": (12, 32),
    "RTX PRO 6000": (12, 96),
    "GB10": (12, 120),
}
"""By a part of the name: major compute capability, and memory in GiB as nvidia-smi counts it."""

BLACKWELL = (10, 11, 12)
DECLARED = re.compile(r"(?:(?P<count>[\d.+-]+) *[x*] *)?(?P<name>.+)")
COUNT = re.compile(r"0*[1-9]\d*")


@dataclass(frozen=True, kw_only=True)
class Gpus:
    name: str
    count: int | None
    """None: as many as are needed."""
    capability: int
    """Major."""
    memory_gib: float
    declared: bool

    @property
    def blackwell(self) -> bool:
        return self.capability in BLACKWELL

    def __str__(self) -> str:
        number = f"{self.count} x " if self.count else ""
        return f"{number}{self.name} ({'declared' if self.declared else 'seen'})"


def declared(text: str) -> Gpus:
    """`B200` or `4 x B200`. Raises ConfigError naming what is known."""
    parts = DECLARED.fullmatch(text.strip())
    kind = _kind(parts["name"]) if parts else None
    if parts is None or kind is None or not COUNT.fullmatch(parts["count"] or "1"):
        raise ConfigError(
            "engine.gpu", f"{text!r} is not known; allowed, also with `4 x ` before it: {', '.join(KINDS)}"
        )
    capability, memory = KINDS[kind]
    count = int(parts["count"]) if parts["count"] else None
    return Gpus(name=kind, count=count, capability=capability, memory_gib=memory, declared=True)


def seen(rows: Sequence[Mapping[str, str]]) -> Gpus | None:
    """From nvidia-smi's rows, taken to be alike; None where there are none, or of a kind nothing is known of."""
    kind = _kind(rows[0]["name"]) if rows else None
    if kind is None:
        return None
    memory = float(rows[0]["memory.total"]) / 1024
    return Gpus(name=rows[0]["name"], count=len(rows), capability=KINDS[kind][0], memory_gib=memory, declared=False)


def _kind(name: str) -> str | None:
    """The longest entry that is in `name` as a word of its own, blanks or not."""
    return max((kind for kind in KINDS if _word(kind).search(name)), key=len, default=None)


def _word(kind: str) -> re.Pattern[str]:
    spelling = "[ -]?".join(map(re.escape, kind.split()))
    return re.compile(rf"(?<![A-Z0-9]){spelling}(?![0-9])", re.IGNORECASE)
