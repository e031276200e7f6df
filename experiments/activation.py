"""Was the change really on? What the spec asks for against what the server says it runs. Pure.

The surprise: the server's word for a kernel variant is not its name but its call count. A variant that was chosen and
never called is inactive, and an inactive change is a perfect A/A.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.spec import CellSpec


def expected(cell: CellSpec) -> dict[str, Any]:
    """By dotted key, what must be seen."""
    speculation = cell.speculation
    keys: dict[str, Any] = {"speculation.algorithm": speculation.algorithm, "engine.dtype": cell.engine.dtype}
    if speculation.algorithm != "none":
        keys["speculation.num_steps"] = speculation.num_steps
        keys["speculation.num_draft_tokens"] = speculation.num_draft_tokens
    return keys | {f"kernels.{operator}": variant for operator, variant in sorted(cell.kernels.items())}


def observed(cell: CellSpec, info: Mapping[str, Any]) -> dict[str, Any]:
    """The same keys as `/server_info` proves them."""
    algorithm = info.get("speculative_algorithm")
    keys: dict[str, Any] = {
        "speculation.algorithm": algorithm.lower() if algorithm else "none",
        "engine.dtype": info.get("dtype"),
    }
    if cell.speculation.algorithm != "none":
        keys["speculation.num_steps"] = info.get("speculative_num_steps")
        keys["speculation.num_draft_tokens"] = info.get("speculative_num_draft_tokens")
    ran = {row["operator"]: row for row in info.get("kernels", ())}
    return keys | {f"kernels.{operator}": _seen(ran.get(operator)) for operator in sorted(cell.kernels)}


def _seen(row: Mapping[str, Any] | None) -> str | None:
    if row is None:
        return None
    return str(row["variant"]) if row["calls"] > 0 else f"{row['variant']}, never called"
