"""What SGLang cannot do with a cell, found before it is asked.

Keys that it lacks, models that are not there, numbers that would mean nothing. The surprise: whether a flag exists is
not asked here. That depends on the installed version and is the audit's to say; here is only what no version has.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.audit import hardware
from experiments.engines.sglang_flags import RAGGED, flags
from experiments.engines.simulation import check_simulation
from experiments.errors import ConfigError
from experiments.speculation import HUB_ID

if TYPE_CHECKING:
    from experiments.spec import CellSpec

OURS_ALONE = ("scheduler", "allow_fallback")
"""Keys of a block that only ling_runtime has."""
INSTEAD = {RAGGED: "speculation.verify_mode", "SGLANG_DSPARK_USE_GREEDY_DRAFT": "speculation.greedy_draft"}
SECRETS = ("api-key", "admin-api-key", "ssl-keyfile-password")


def check(cell: CellSpec) -> None:
    """Raises ConfigError."""
    if cell.kernels:
        why = f"variants of ling_runtime's operators; engine={cell.engine.name} has backends"
        raise ConfigError(f"kernels.{next(iter(cell.kernels))}", why)
    if cell.calibrates:
        raise ConfigError("calibration", "made by ling_runtime's programs; allowed with engine=ling")
    check_source("model.path", cell.model.path)
    if cell.speculation.draft_path:
        check_source("speculation.draft_path", cell.speculation.draft_path)
    for key in ("sts_path", "cost_table_path"):
        if (path := getattr(cell.speculation, key)) and not Path(path).is_file():
            raise ConfigError(f"speculation.{key}", f"{path} is no file")
    if cell.engine.gpu:
        hardware.declared(cell.engine.gpu)
    check_flags(cell)
    check_variables(cell)
    check_context(cell)
    check_simulation(cell)


def check_asked(cell: CellSpec) -> None:
    """Of the cell as it was configured. Raises ConfigError."""
    for key in OURS_ALONE:
        if getattr(cell.speculation, key) is not None:
            raise ConfigError(f"speculation.{key}", "ling_runtime's alone; engine=sglang takes null")


def check_source(key: str, source: str) -> None:
    """A directory in Hugging Face's form, or an id of its hub. Raises ConfigError."""
    if Path(source).is_absolute():
        if not (Path(source) / "config.json").is_file():
            raise ConfigError(
                key, f"{source} holds no config.json; allowed: a checkpoint's directory or a hub's org/name"
            )
    elif not HUB_ID.fullmatch(source):
        raise ConfigError(key, f"{source!r} is neither a directory nor a hub's id (org/name)")


def check_flags(cell: CellSpec) -> None:
    """Raises ConfigError for a flag that a key gives, that is a secret, or that is written as SGLang does not."""
    bare = replace(cell, engine=replace(cell.engine, flags={}))
    keyed = {"--speculative-algorithm", *flags(bare, port=0, served_name="")}
    for name, value in cell.engine.flags.items():
        key = f"engine.flags.{name}"
        if name.startswith("-"):
            raise ConfigError(key, f"named without dashes: engine.flags.{name.lstrip('-')}")
        if name in SECRETS:
            raise ConfigError(key, "a secret, which would stand in every record; a server on loopback needs none")
        if value in ("True", "False"):
            raise ConfigError(key, 'a bare flag is the empty text (""); to leave it out, ~' + key)
        if f"--{name}" in keyed:
            raise ConfigError(key, "has a key of its own in engine, model or speculation, or is set by this program")


def check_variables(cell: CellSpec) -> None:
    for name in cell.env:
        if name in INSTEAD and (cell.speculation.algorithm == "dspark"):
            raise ConfigError(f"env.{name}", f"has a key of its own; set {INSTEAD[name]}")


def check_context(cell: CellSpec) -> None:
    """Raises ConfigError where the workload is longer than what the model is known to take."""
    config = Path(cell.model.path) / "config.json"
    said = json.loads(config.read_text()) if config.is_file() else {}
    most = cell.engine.context_length or said.get("text_config", said).get("max_position_embeddings")
    wanted = (cell.workload.input_len or 0) + cell.workload.output_len
    if most and wanted > most:
        raise ConfigError("workload", f"input_len + output_len = {wanted} exceeds the context of {most} tokens")
