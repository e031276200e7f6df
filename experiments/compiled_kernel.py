"""What a compiled Triton kernel tells of itself without being launched: its memory, its sums and its wait.

The order in which it adds is read off its layouts, and off its PTX that it waits for the kernel in front of it before
it writes or ends: a kernel behind it reads early what was written before (`ling_runtime/ops/triton/launch.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

SAME_ROWS = {"ready": "ready and walk", "walk": "ready and walk"}
"""By how many rows there are, one kernel or the other makes a row of KDA ready, and its bits must not tell which."""


@dataclass(frozen=True)
class Compiled:
    name: str
    shared: int
    warps: int
    orders: frozenset[str]
    """Types of what it sums, with their layouts: Triton adds values as they lie, so the layout is the order."""
    careless: str = ""
    """How it breaks the rule of dependent launches, if it does."""


def read(name: str, kernel: Any) -> Compiled:
    """Of Triton's `CompiledKernel`."""
    made, asm = kernel.metadata, kernel.asm
    careless = carelessness(asm["ptx"]) if made.launch_pdl else ""
    return Compiled(name, made.shared, made.num_warps, orders(asm["ttgir"]), careless)


WAIT = "griddepcontrol.wait"
HASTY = re.compile(r"^\s*(?:@!?%\w+\s+)?((?:st\.global|red\.|atom\.|ret;|exit;)\S*)", re.MULTILINE)


def carelessness(ptx: str) -> str:
    """What is wrong with how a kernel that is launched as a dependent one waits; empty: nothing.

    Text stands for time: a compiler that put a store or an end behind the wait in the text, and before it in a program,
    would have to jump backwards for it.
    """
    waits = [line.strip() for line in ptx.splitlines() if WAIT in line]
    if len(waits) != 1:
        return f"waits in {len(waits)} places; one is needed"
    if waits[0].startswith("@"):
        return f"waits only if {waits[0].split()[0][1:]}"
    if hasty := HASTY.search(ptx[: ptx.index(WAIT)]):
        return f"{hasty[1]} in front of its wait"
    return ""


REDUCED = re.compile(
    r'"tt\.reduce"\((?P<of>.*?)\).*?(?P<by>\w+\.\w+) [^\n]*\n\s*tt\.reduce\.return.*?\}\) : \((?P<kind>.*?)\) ->',
    re.DOTALL,
)
FLATTENED = re.compile(r"(?P<to>%\w+) = tt\.reshape .* allow_reorder : (?P<kind>tensor<.*>) ->")


def orders(ttgir: str) -> frozenset[str]:
    """Of every tensor of floats that is summed over an axis, or flattened first, as by `tl.sum` without an axis."""
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", ttgir, re.MULTILINE))
    sums = {one["of"]: one["kind"] for one in REDUCED.finditer(ttgir) if one["by"] == "arith.addf"}
    kinds = [*sums.values(), *(one["kind"] for one in FLATTENED.finditer(ttgir) if one["to"] in sums)]
    return frozenset(re.sub(r"#\w+", lambda name: layouts.get(name[0], name[0]), kind) for kind in kinds)


def several_orders(windows: list[list[Compiled]]) -> list[str]:
    """Kernels that add in other orders in one window than in another."""
    sums = [_orders_by_name(kernels) for kernels in windows]
    return sorted(name for name in set().union(*sums) if len({one.get(name, frozenset()) for one in sums}) > 1)


def _orders_by_name(kernels: list[Compiled]) -> dict[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for kernel in kernels:
        name = SAME_ROWS.get(kernel.name, kernel.name)
        found[name] = found.get(name, frozenset()) | kernel.orders
    return found
