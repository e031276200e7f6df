"""What SGLang proves to run: its resolved arguments in `/server_info`.

The surprise: it resolves NEXTN to EAGLE, and a static draft's window is known by its draft tokens alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.spec import CellSpec

RESOLVED = {"NEXTN": "EAGLE"}


def expected(cell: CellSpec) -> dict[str, Any]:
    speculation = cell.speculation
    name = speculation.algorithm.upper()
    keys: dict[str, Any] = {"speculation.algorithm": RESOLVED.get(name, name).lower()}
    if cell.engine.dtype != "auto":
        keys["engine.dtype"] = cell.engine.dtype
    if speculation.algorithm != "none":
        keys["speculation.window"] = speculation.window
    return keys


def observed(cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
    algorithm = info.get("speculative_algorithm") or "NONE"
    keys = {
        "speculation.algorithm": RESOLVED.get(algorithm, algorithm).lower(),
        "engine.dtype": info.get("dtype"),
        "speculation.window": info.get("speculative_num_draft_tokens"),
    }
    return {key: keys[key] for key in expected(cell)}
