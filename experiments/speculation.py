"""What the chosen algorithm takes: its keys completed, and its draft and artifacts held against the model.

One schema serves all algorithms, so this is where a key that the chosen one does not have is refused, with what it has
in its place. The surprise: nothing here knows what fits what. The runtime's own checks are asked, before anything is
started, and the server will ask them again.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.errors import ConfigError
from experiments.spec import SpeculationSpec
from ling_runtime.config import ConfigError as ModelConfigError
from ling_runtime.draft_config import DraftConfig

if TYPE_CHECKING:
    from experiments.engines.interface import Engine
    from experiments.spec import Algorithm, CellSpec, ModelSpec
    from ling_runtime.config import ModelConfig

KEYS: dict[Algorithm, tuple[str, ...]] = {
    "none": (),
    "served": (),
    "nextn": ("num_steps", "num_draft_tokens"),
    "eagle3": ("num_steps", "num_draft_tokens", "draft_path"),
    "standalone": ("num_steps", "num_draft_tokens", "draft_path"),
    "ngram": ("num_draft_tokens",),
    "dspark": (
        "block_size",
        "draft_path",
        "verify_mode",
        "acceptance",
        "greedy_draft",
        "scheduler",
        "sts_path",
        "cost_table_path",
        "allow_fallback",
    ),
}
"""Keys of the speculation group that each algorithm has."""

INSTEAD = {
    ("dspark", "num_steps"): "a block is drafted in one pass, without steps; its depth is block_size",
    ("dspark", "num_draft_tokens"): "a block of block_size drafts is verified in block_size + 1 rows",
    ("nextn", "block_size"): "a chain's depth is num_steps",
    ("nextn", "draft_path"): "its draft layer is part of the model",
    ("ngram", "num_steps"): "its drafts are looked up and not computed; their number is num_draft_tokens - 1",
    ("ngram", "draft_path"): "it drafts from the text so far, without a model",
}

SCHEDULED = ("scheduler", "sts_path", "cost_table_path", "allow_fallback")
"""Keys without effect where every row is verified."""


HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

OVERRULED = {"SGLANG_RAGGED_VERIFY_MODE": "verify_mode", "SGLANG_DSPARK_USE_GREEDY_DRAFT": "greedy_draft"}
"""SGLang's environment names, which a server that was given the flag does not read."""


def completed(speculation: SpeculationSpec, model: ModelSpec, engine: Engine) -> SpeculationSpec:
    """With every default that the engine would choose, and absolute paths. Raises ConfigError."""
    algorithm = speculation.algorithm
    if algorithm not in engine.algorithms:
        why = f"engine={engine.name} has no {algorithm}; allowed: {', '.join(engine.algorithms)}"
        raise ConfigError("speculation.algorithm", f"{why} ({engine.without})" if engine.without else why)
    for key in given(speculation):
        if key not in KEYS[algorithm]:
            raise ConfigError(f"speculation.{key}", foreign(algorithm, key))
    match algorithm:
        case "none" | "served":
            return speculation
        case "nextn":
            return _chain(speculation)
        case "eagle3" | "standalone":
            return _with_draft(_chain(speculation), hub=engine.hub)
        case "ngram":
            return _looked_up(speculation)
        case "dspark":
            return _block(speculation, model, hub=engine.hub)


def given(speculation: SpeculationSpec) -> list[str]:
    """Keys with a value, the algorithm's name aside."""
    return [f.name for f in fields(SpeculationSpec)[1:] if getattr(speculation, f.name) is not None]


def foreign(algorithm: Algorithm, key: str) -> str:
    """Why `algorithm` has no such key, and what it has."""
    owner = next(name for name, keys in KEYS.items() if key in keys)
    why = INSTEAD.get((algorithm, key), f"{key} belongs to speculation={owner}")
    return f"speculation={algorithm} has {', '.join(KEYS[algorithm]) or 'no key at all'}; {why}"


def _chain(speculation: SpeculationSpec) -> SpeculationSpec:
    steps = speculation.num_steps
    if steps is None or steps < 1:
        raise ConfigError("speculation.num_steps", f"{steps} is not a number of drafts; allowed: 1, 2, ...")
    if speculation.num_draft_tokens not in (None, steps + 1):
        raise ConfigError("speculation.num_draft_tokens", f"a chain of {steps} steps verifies {steps + 1}; or null")
    return replace(speculation, num_draft_tokens=steps + 1)


def _with_draft(speculation: SpeculationSpec, *, hub: bool) -> SpeculationSpec:
    if not speculation.draft_path:
        why = f"speculation={speculation.algorithm} needs a draft model; name one"
        raise ConfigError("speculation.draft_path", why)
    return replace(speculation, draft_path=located(speculation.draft_path, hub=hub))


def _looked_up(speculation: SpeculationSpec) -> SpeculationSpec:
    rows = speculation.num_draft_tokens
    if rows is None or rows < 2:
        raise ConfigError("speculation.num_draft_tokens", f"{rows} leaves no draft to verify; allowed: 2, 3, ...")
    return speculation


def _block(speculation: SpeculationSpec, model: ModelSpec, *, hub: bool) -> SpeculationSpec:
    size = speculation.block_size or (own_block(speculation.draft_path, model) if hub else None)
    if size is None or size < 1:
        raise ConfigError("speculation.block_size", f"{size} is not a number of drafts; allowed: 1, 2, ...")
    mode = speculation.verify_mode or "static"
    for key in SCHEDULED if mode == "static" else ():
        if getattr(speculation, key) is not None:
            why = "verify_mode=static verifies every row and schedules nothing; allowed with cap-accept and compact"
            raise ConfigError(f"speculation.{key}", why)
    done = replace(
        speculation,
        block_size=size,
        draft_path=located(speculation.draft_path or shipped_draft(size, model), hub=hub),
        verify_mode=mode,
        acceptance=speculation.acceptance or "classic",
        greedy_draft=bool(speculation.greedy_draft),
        sts_path=absolute(speculation.sts_path),
        cost_table_path=absolute(speculation.cost_table_path),
    )
    if mode == "static":
        return done
    return replace(done, scheduler=done.scheduler or "causal", allow_fallback=bool(done.allow_fallback))


def located(path: str, *, hub: bool) -> str:
    """Absolute; an id of a hub (org/name) stays one where the engine takes those."""
    if hub and HUB_ID.fullmatch(path) and not Path(path).exists():
        return path
    return str(Path(path).absolute())


def absolute(path: str | None) -> str | None:
    return path and str(Path(path).absolute())


def own_block(draft_path: str | None, model: ModelSpec) -> int | None:
    """Drafts that a draft was trained for, from the model's list or the draft's config; None: neither says."""
    known = [size for size, path in model.drafts.items() if draft_path in (None, path)]
    if len(known) == 1 and known[0].isdecimal():
        return int(known[0])
    config = Path(draft_path or "") / "config.json"
    return json.loads(config.read_text()).get("block_size") if draft_path and config.is_file() else None


def shipped_draft(size: int, model: ModelSpec) -> str:
    """The model's own draft of this block size, or the next larger one, which may draft less. Raises ConfigError."""
    if strange := [key for key in model.drafts if not key.isdecimal()]:
        raise ConfigError(f"model.drafts.{strange[0]}", "keys are block sizes; allowed: 1, 2, ...")
    known = sorted(model.drafts, key=int)
    for trained in known:
        if int(trained) >= size:
            return model.drafts[trained]
    why = f"model {model.name} names no draft of a block of {size} (model.drafts: {', '.join(known) or 'none'})"
    raise ConfigError("speculation.draft_path", f"{why}; name one")


def check(cell: CellSpec, target: ModelConfig) -> None:
    """Raises ConfigError for a model, a draft or an artifact that the completed cell cannot use."""
    speculation = cell.speculation
    if speculation.algorithm == "nextn" and not target.num_nextn_predict_layers:
        raise ConfigError("speculation", f"{cell.model.path} has no NEXTN layer; allowed: none, or dspark with a draft")
    if speculation.algorithm == "dspark":
        for name in cell.env.keys() & OVERRULED.keys():
            raise ConfigError(f"env.{name}", f"overruled by the flag of speculation.{OVERRULED[name]}; set that")
        check_draft(cell, target)
        if speculation.sts_path or speculation.cost_table_path:
            check_artifacts(cell)


def check_draft(cell: CellSpec, target: ModelConfig) -> None:
    """Raises ConfigError."""
    speculation, calibrated, drawn = cell.speculation, cell.calibrates, cell.model.weights == "drawn"
    assert speculation.draft_path is not None
    assert speculation.block_size is not None
    path = Path(speculation.draft_path)
    try:
        draft = DraftConfig.from_pretrained(path)
        draft.check_target(target)
    except ModelConfigError as error:
        raise ConfigError("speculation.draft_path", f"{path}: {error}") from error
    if not (drawn or [*path.glob("*.safetensors")]):
        raise ConfigError("speculation.draft_path", f"{path} holds no *.safetensors; expected a draft's directory")
    if speculation.block_size > draft.block_size:
        why = f"{path} was trained for blocks of {draft.block_size}; allowed: 1 to {draft.block_size}"
        raise ConfigError("speculation.block_size", f"{speculation.block_size} is too large: {why}")
    if drawn and (calibrated or speculation.verify_mode != "static"):
        key, allowed = ("calibration", "none") if calibrated else ("speculation.verify_mode", "static")
        raise ConfigError(key, f"confidences of a draft that is drawn with its model plan nothing; allowed: {allowed}")
    if not draft.enable_confidence_head and (calibrated or speculation.verify_mode != "static"):
        key = "calibration" if calibrated else "speculation.verify_mode"
        raise ConfigError(key, f"{path} has no confidence head; allowed: speculation.verify_mode=static alone")


def check_artifacts(cell: CellSpec) -> None:
    """Raises ConfigError for one that is missing or was made with something else, unless that is allowed."""
    from ling_runtime.speculation.dspark.artifact import load_cost, load_temperatures  # noqa: PLC0415 - imports torch
    from ling_runtime.speculation.dspark.identity import identity_of  # noqa: PLC0415 - as above

    speculation, engine = cell.speculation, cell.engine
    assert speculation.draft_path is not None
    assert speculation.block_size is not None
    # On a card the server chooses kernels, and checks; under cap-accept any will do.
    known = engine.device == "cpu" and speculation.verify_mode == "compact"
    identity = identity_of(
        cell.model.path,
        speculation.draft_path,
        speculation.block_size,
        device=engine.device,
        dtype=engine.dtype,
        kernels=cell.kernels if known else None,
        threads=engine.threads,
    )
    loads = {"sts_path": load_temperatures, "cost_table_path": load_cost}
    for key, load in loads.items():
        if path := getattr(speculation, key):
            try:
                load(path, identity, allow_fallback=bool(speculation.allow_fallback))
            except ModelConfigError as error:
                raise ConfigError(f"speculation.{key}", f"{error}; or speculation.allow_fallback=true") from error
