"""The flags of speculation: which belong to which algorithm, what SGLang's defaults are, and what a draft decides.

The surprise: SGLang overrides step flags that come with DSPARK and goes on with a warning. A cell that asked for five
steps and got a block would be a comparison of something else, so a flag of the other algorithm is an error here.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import TYPE_CHECKING

from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from ling_runtime.arguments import ServerConfig
    from ling_runtime.config import ModelConfig

log = logging.getLogger(__name__)

MODES = ("static", "cap-accept", "compact")
SCHEDULERS = ("causal", "global")
MODE_VARIABLE = "SGLANG_RAGGED_VERIFY_MODE"
"""SGLang's only way to choose a mode; read where the flag is absent."""
SIMULATED_VARIABLE = "SGLANG_SIMULATE_ACC_LEN"
"""SGLang's only way to simulate acceptance."""

CHAIN = ("speculative_num_steps", "speculative_eagle_topk")
BLOCK = (
    "speculative_draft_model_path",
    "speculative_dspark_block_size",
    "speculative_use_block_verification",
    "speculative_dspark_verify_mode",
    "speculative_dspark_scheduler",
    "speculative_dspark_sps_table_path",
    "speculative_dspark_confidence_sts_path",
    "speculative_dspark_greedy_draft",
    "speculative_dspark_allow_fallback",
)
SCHEDULED = BLOCK[4:7]
"""Without effect where every row is verified."""

ROWS = "speculative_num_draft_tokens"


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--speculative-algorithm", choices=("NEXTN", "DSPARK"))
    add("--speculative-num-steps", type=int, metavar="N", help="NEXTN: drafts of a chain")
    add("--speculative-eagle-topk", type=int, metavar="1")
    add("--speculative-num-draft-tokens", type=int, metavar="N", help="rows verified: steps or block size, + 1")
    add("--speculative-draft-model-path", "--speculative-draft-model", metavar="DIR", help="DSPARK: the draft")
    add("--speculative-dspark-block-size", type=int, metavar="N", help="drafts of a block; default: the checkpoint's")
    add(
        "--speculative-use-block-verification", action="store_const", const=True, help="accept sampled drafts as blocks"
    )
    add("--speculative-dspark-verify-mode", choices=MODES, help=f"default: {MODE_VARIABLE}, else static")
    add("--speculative-dspark-scheduler", choices=SCHEDULERS, help="default: causal")
    add("--speculative-dspark-sps-table-path", metavar="FILE", help="what a step costs by its rows")
    add("--speculative-dspark-confidence-sts-path", metavar="FILE", help="temperatures of the confidences")
    add("--speculative-dspark-greedy-draft", action="store_const", const=True, help="draft the best token always")
    add("--speculative-dspark-allow-fallback", action="store_const", const=True, help="artifacts that do not fit warn")


def resolved(values: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    """The given `values` of speculation with defaults; ConfigError for flags that do not belong together."""
    algorithm = values.get("speculative_algorithm")
    simulated = environment.get(SIMULATED_VARIABLE)
    if algorithm == "NEXTN":
        _refuse(values, BLOCK, "belongs to --speculative-algorithm DSPARK; NEXTN drafts with the model's own layer")
        chain = _chain(values)
        return chain if simulated is None else chain | _simulated(simulated, chain[ROWS])
    if algorithm == "DSPARK":
        _refuse(
            values, CHAIN, "a block is drafted in one pass, without steps; --speculative-dspark-block-size is its size"
        )
        block = _block(values, environment)
        if simulated is None:
            return block
        if (mode := block["speculative_dspark_verify_mode"]) != "static":
            raise ConfigError(
                f"{SIMULATED_VARIABLE}={simulated}: verify mode {mode} plans with what is not computed; allowed: static"
            )
        return block | _simulated(simulated, None)
    if simulated is not None:
        raise ConfigError(
            f"{SIMULATED_VARIABLE}={simulated}: without a meaning unless --speculative-algorithm is given"
        )
    _refuse(values, (*CHAIN, ROWS, *BLOCK), "without a meaning unless --speculative-algorithm is given")
    return {}


def fitted(config: ServerConfig, target: ModelConfig) -> ServerConfig:
    """With the block size and the rows that the draft's checkpoint decides; ConfigError where the two do not fit."""
    if config.speculative_algorithm != "DSPARK":
        return config
    assert config.speculative_draft_model_path is not None
    draft = DraftConfig.from_pretrained(config.speculative_draft_model_path)
    draft.check_target(target)
    size = draft.block_size
    if config.speculative_dspark_block_size is not None:
        size = config.speculative_dspark_block_size
    if size > draft.block_size:
        raise ConfigError(
            f"--speculative-dspark-block-size {size}: the draft was trained for blocks of {draft.block_size}; allowed: "
            f"1 to {draft.block_size}"
        )
    if config.simulated_accept_length is not None and config.simulated_accept_length > size + 1:
        raise ConfigError(_beyond(str(config.simulated_accept_length), size + 1))
    rows = config.speculative_num_draft_tokens
    if rows not in (None, size + 1):
        allowed = f"a block of {size} drafts is verified in {size + 1} rows; allowed: {size + 1}"
        raise ConfigError(f"{_flag(ROWS)} {rows}: {allowed}")
    return dataclasses.replace(config, speculative_dspark_block_size=size, speculative_num_draft_tokens=size + 1)


def eager(config: ServerConfig) -> str | None:
    """Why steps cannot be CUDA graphs; None where they can."""
    if config.speculative_algorithm != "DSPARK":
        return None
    if config.speculative_dspark_verify_mode == "cap-accept":
        return "verify mode cap-accept computes every row to try a plan out, and graphs take none back"
    assert config.speculative_draft_model_path is not None
    structure = DraftConfig.from_pretrained(config.speculative_draft_model_path).attention_type
    return None if structure == "mha" else f"graphs hold drafts of attention_type=mha, and this one's is {structure}"


def described(config: ServerConfig) -> str:
    """For the log, in one line."""
    if config.speculative_algorithm is None:
        return "none"
    if config.speculative_algorithm == "NEXTN":
        return f"NEXTN, chains of {config.speculative_num_steps} drafts"
    drafted = "greedily" if config.speculative_dspark_greedy_draft else "as each request samples"
    return (
        f"DSPARK, blocks of {config.speculative_dspark_block_size} drafts chosen {drafted} by "
        f"{config.speculative_draft_model_path}; verification {config.speculative_dspark_verify_mode}, sampled drafts "
        f"accepted by the {acceptance(config)} rule"
    )


def acceptance(config: ServerConfig) -> str:
    """The rule for sampled drafts."""
    return "block" if config.speculative_use_block_verification else "classic"


def section(config: ServerConfig, counted: Mapping[str, object] | None) -> dict[str, object] | None:
    """`speculation` in /server_info: what is configured, and what the executor has to say; None without speculation."""
    if config.speculative_algorithm is None or counted is None:
        return None
    assert config.speculative_num_draft_tokens is not None
    window = config.speculative_num_draft_tokens
    chosen = {"algorithm": config.speculative_algorithm, "gamma": window - 1, "window": window}
    if config.speculative_algorithm == "DSPARK":
        chosen |= {
            "draft_path": config.speculative_draft_model_path,
            "verify_mode": config.speculative_dspark_verify_mode,
            "scheduler": config.speculative_dspark_scheduler,
            "acceptance": acceptance(config),
            "sts": None,
            "cost_table": None,
        }
    return chosen | dict(counted)


def _chain(values: Mapping[str, object]) -> dict[str, object]:
    """SGLang's defaults and its rule for a chain: draft tokens = steps + 1, the rows of the verify window."""
    steps, topk = values.get("speculative_num_steps", 3), values.get("speculative_eagle_topk", 1)
    assert isinstance(steps, int)
    rows = values.get(ROWS, steps + 1)
    if steps < 1:
        raise ConfigError(f"--speculative-num-steps {steps}: must be at least 1")
    if topk != 1:
        raise ConfigError(f"--speculative-eagle-topk {topk}: drafts are chains here; allowed: 1")
    if rows != steps + 1:
        allowed = f"a chain of {steps} steps has {steps + 1} rows; allowed: {steps + 1}"
        raise ConfigError(f"--speculative-num-draft-tokens {rows}: {allowed}")
    return {"speculative_num_steps": steps, "speculative_eagle_topk": topk, ROWS: rows}


def _simulated(text: str, rows: object) -> dict[str, object]:
    """`rows` None: known when the draft has been read."""
    try:
        length = float(text)
    except ValueError:
        length = 0.0
    if not 1 <= length <= (rows if isinstance(rows, int) else math.inf):
        raise ConfigError(_beyond(text, rows))
    log.warning("acceptance is simulated, %s tokens a step on average: answers mean nothing", length)
    return {"simulated_accept_length": length}


def _beyond(text: str, rows: object) -> str:
    most = "the rows" if rows is None else f"{rows}, the rows"
    return f"{SIMULATED_VARIABLE}={text}: allowed: 1 to {most} that a step verifies"


def _block(values: Mapping[str, object], environment: Mapping[str, str]) -> dict[str, object]:
    if "speculative_draft_model_path" not in values:
        raise ConfigError("--speculative-algorithm DSPARK needs --speculative-draft-model-path, the draft's directory")
    size = values.get("speculative_dspark_block_size", 1)
    assert isinstance(size, int)
    if size < 1:
        raise ConfigError(f"--speculative-dspark-block-size {size}: must be at least 1")
    mode = values.get("speculative_dspark_verify_mode") or environment.get(MODE_VARIABLE) or "static"
    if mode not in MODES:
        raise ConfigError(f"{MODE_VARIABLE}={mode}: allowed: {', '.join(MODES)}")
    chosen: dict[str, object] = {"speculative_dspark_verify_mode": mode}
    if mode == "static":
        for flag in (_flag(key) for key in SCHEDULED if key in values):
            log.warning("%s: ignored, static verification verifies every row", flag)
        return chosen | dict.fromkeys(SCHEDULED)
    return chosen | {"speculative_dspark_scheduler": values.get("speculative_dspark_scheduler", "causal")}


def _refuse(values: Mapping[str, object], keys: tuple[str, ...], why: str) -> None:
    lost = [_flag(key) for key in keys if key in values]
    if lost:
        raise ConfigError(f"{', '.join(lost)}: {why}")


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
