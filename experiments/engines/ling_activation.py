"""What our runtime proves to run: kernels by their call counts, blocks of drafts by the rows that were verified. Pure.

The surprise: the server's word for a kernel variant is not its name but its call count, and for a block of drafts the
rows that it verified. What was chosen and never ran is inactive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from experiments.spec import CellSpec, SpeculationSpec

CHAIN = ("num_steps", "num_draft_tokens")
BLOCK = {
    "block_size": "gamma",
    "draft_path": "draft_path",
    "verify_mode": "verify_mode",
    "acceptance": "acceptance",
    "scheduler": "scheduler",
}
"""Keys of the spec by their names under `speculation` in /server_info."""

ARTIFACTS = {"sts_path": "sts", "cost_table_path": "cost_table"}
IN_USE = "in use"
COUNTED = "counted"


def expected(cell: CellSpec) -> dict[str, Any]:
    """By dotted key, what must be seen."""
    speculation = cell.speculation
    keys: dict[str, Any] = {"speculation.algorithm": speculation.algorithm, "engine.dtype": cell.engine.dtype}
    match speculation.algorithm:
        case "nextn":
            keys |= {f"speculation.{key}": getattr(speculation, key) for key in CHAIN}
        case "dspark":
            asked = [key for key in (*BLOCK, "greedy_draft") if getattr(speculation, key) is not None]
            keys |= {f"speculation.{key}": getattr(speculation, key) for key in asked}
            needed = [] if speculation.allow_fallback else [key for key in ARTIFACTS if getattr(speculation, key)]
            keys |= {f"speculation.{key}": IN_USE for key in needed} | {"speculation.verified_rows": COUNTED}
    return keys | {f"kernels.{operator}": variant for operator, variant in sorted(cell.kernels.items())}


def observed(cell: CellSpec, info: Mapping[str, Any]) -> dict[str, Any]:
    """The same keys as `/server_info` proves them."""
    algorithm = info.get("speculative_algorithm")
    ran = {row["operator"]: row for row in info.get("kernels", ())}
    keys: dict[str, Any] = {
        "speculation.algorithm": algorithm.lower() if algorithm else "none",
        "engine.dtype": info.get("dtype"),
        **{f"kernels.{operator}": _seen(ran.get(operator)) for operator in sorted(cell.kernels)},
    }
    match cell.speculation.algorithm:
        case "nextn":
            keys |= {f"speculation.{key}": info.get(f"speculative_{key}") for key in CHAIN}
        case "dspark":
            keys |= _block(info)
    return {key: keys.get(key) for key in expected(cell)}


def fallbacks(speculation: SpeculationSpec, info: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on artifacts that were asked for, do not fit, and were allowed not to."""
    section = info.get("speculation") or {}
    for key, name in ARTIFACTS.items():
        if speculation.allow_fallback and getattr(speculation, key) and not section.get(name):
            yield f"speculation.{key} does not fit and is not in use; the server fell back to its default"


def _block(info: Mapping[str, Any]) -> dict[str, Any]:
    section = info.get("speculation") or {}
    keys = {f"speculation.{key}": section.get(name) for key, name in BLOCK.items()}
    keys |= {f"speculation.{key}": IN_USE for key, name in ARTIFACTS.items() if section.get(name)}
    keys["speculation.greedy_draft"] = info.get("speculative_dspark_greedy_draft")
    return keys | {"speculation.verified_rows": _verified(section)}


def _verified(section: Mapping[str, Any]) -> str:
    """Every row where the mode is static, else at least the anchor's."""
    rows, requests = section.get("verified_rows") or 0, section.get("verify_requests") or 0
    least = section.get("window", 1) if section.get("verify_mode") == "static" else 1
    return COUNTED if rows >= requests * least > 0 else f"{rows} rows in {requests} verifications"


def _seen(row: Mapping[str, Any] | None) -> str | None:
    if row is None:
        return None
    return str(row["variant"]) if row["calls"] > 0 else f"{row['variant']}, never called"
