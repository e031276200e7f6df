"""What vLLM proves to run: the line of its log that announces its configuration, its version and its model card. Pure.

The surprise: nested settings are in that line as well, with names of their own, so a name is looked up where it stands
first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.spec import CellSpec

METHODS = {"nextn": "mtp", "eagle3": "eagle3", "standalone": "draft_model"}
"""Speculation by vLLM's names for it."""
UNTOLD = "unknown"
"""The version of a program that cannot be asked."""
ANNOUNCED = r"Initializing a V1 LLM engine \([^)]*\) with config: "
SPECULATING = rf"{ANNOUNCED}.*SpeculativeConfig\(method='(\w+)'.*?num_spec_tokens=(\d+)"


def expected(cell: CellSpec) -> dict[str, Any]:
    engine = cell.engine
    asked = {
        "model.path": cell.model.path,
        "engine.version": engine.reported["version"],
        "engine.dtype": engine.dtype,
        "engine.device": engine.device,
        "engine.context_length": engine.context_length,
        "engine.tp_size": engine.tp_size,
        "engine.dp_size": engine.dp_size,
        "engine.random_seed": engine.random_seed,
        "engine.quantization": engine.quantization,
        "engine.kv_cache_dtype": engine.kv_cache_dtype,
        "engine.prefix_caching": False,
        "speculation.algorithm": cell.speculation.algorithm,
        "speculation.window": cell.speculation.window,
    }
    return {key: value for key, value in asked.items() if value not in (None, "auto", UNTOLD)}


def observed(cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
    told = configuration(log)
    keys = {
        "model.path": info["model_path"],
        "engine.version": info["version"],
        "engine.dtype": told.get("dtype", "").removeprefix("torch."),
        "engine.device": told.get("device_config"),
        "engine.context_length": info["max_model_len"],
        "engine.tp_size": _number(told.get("tensor_parallel_size")),
        "engine.dp_size": _number(told.get("data_parallel_size")),
        "engine.random_seed": _number(told.get("seed")),
        "engine.quantization": told.get("quantization"),
        "engine.kv_cache_dtype": told.get("kv_cache_dtype"),
        "engine.prefix_caching": {"True": True, "False": False}.get(told.get("enable_prefix_caching", "")),
        **speculating(log),
    }
    return {key: keys.get(key) for key in expected(cell)}


def configuration(log: str) -> dict[str, str]:
    """Settings of the line with which the engine announces itself; of nested ones the first part."""
    line = re.search(f"{ANNOUNCED}(.*)", log)
    settings: dict[str, str] = {}
    for name, value in re.findall(r"(\w+)=('[^']*'|[^,\s]*)", line[1]) if line else ():
        settings.setdefault(name, value)
    return settings


def speculating(log: str) -> dict[str, str | int]:
    """As the same line says it; nothing where there is no such line."""
    if configuration(log).get("speculative_config") == "None":
        return {"speculation.algorithm": "none", "speculation.window": 1}
    said = re.search(SPECULATING, log)
    if said is None:
        return {}
    names = {method: name for name, method in METHODS.items()}
    return {"speculation.algorithm": names.get(said[1], said[1]), "speculation.window": int(said[2]) + 1}


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None
