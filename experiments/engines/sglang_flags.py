"""A cell in SGLang's words: the flags of its server, and the environment names that stand where it has no flag.

The surprise: the order. Flags come as people write them, model first and what this program adds (host, port, name)
last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.engines.command_line import Value
    from experiments.spec import CellSpec, SpeculationSpec

ADDED = ("--model-path", "--host", "--port", "--served-model-name")
"""What every launch has, and no cell asks for."""
RAGGED = "SGLANG_RAGGED_VERIFY_MODE"
KEYS = (
    "attention_backend",
    "linear_attn_backend",
    "moe_runner_backend",
    "quantization",
    "kv_cache_dtype",
    "context_length",
    "max_running_requests",
    "random_seed",
)
"""Keys of the engine group that are flags of that name, behind those of speculation."""


def flags(cell: CellSpec, port: int, served_name: str) -> dict[str, Value]:
    engine = cell.engine
    return {
        "--model-path": cell.model.path,
        "--revision": cell.model.revision,
        "--tokenizer-path": cell.model.tokenizer_path,
        "--tp-size": engine.tp_size,
        "--ep-size": engine.ep_size,
        "--dp-size": engine.dp_size,
        "--trust-remote-code": engine.trust_remote_code,
        **speculation_flags(cell.speculation),
        **{f"--{key.replace('_', '-')}": getattr(engine, key) for key in KEYS},
        **{f"--{name}": value or True for name, value in engine.flags.items()},
        "--mem-fraction-static": engine.mem_fraction_static,
        "--dtype": None if engine.dtype == "auto" else engine.dtype,
        "--device": None if engine.device == "cuda" else engine.device,
        "--host": engine.host,
        "--port": port,
        "--served-model-name": served_name,
    }


def speculation_flags(speculation: SpeculationSpec) -> dict[str, Value]:
    match speculation.algorithm:
        case "none":
            return {}
        case "ngram":
            return {
                "--speculative-algorithm": "NGRAM",
                "--speculative-num-draft-tokens": speculation.num_draft_tokens,
            }
        case "dspark":
            return {
                "--speculative-algorithm": "DSPARK",
                "--speculative-draft-model-path": speculation.draft_path,
                "--speculative-dspark-block-size": speculation.num_draft_tokens and speculation.block_size,
                "--speculative-num-draft-tokens": speculation.num_draft_tokens,
                "--speculative-dspark-confidence-sts-path": speculation.sts_path,
                "--speculative-dspark-sps-table-path": speculation.cost_table_path,
                "--speculative-use-block-verification": speculation.acceptance == "block",
            }
        case chain:
            return {
                "--speculative-algorithm": chain.upper(),
                "--speculative-draft-model-path": speculation.draft_path,
                "--speculative-num-steps": speculation.num_steps,
                "--speculative-eagle-topk": 1,
                "--speculative-num-draft-tokens": speculation.num_draft_tokens,
            }


def environment(cell: CellSpec) -> dict[str, str]:
    """What the cell sets, and the two settings of a block that SGLang reads from the environment alone."""
    threads, speculation = cell.engine.num_threads, cell.speculation
    own = {
        "OMP_NUM_THREADS": threads and str(threads),
        RAGGED: speculation.verify_mode,
        "SGLANG_DSPARK_USE_GREEDY_DRAFT": "1" if speculation.greedy_draft else None,
    }
    return {**cell.env, **{name: value for name, value in own.items() if value}}
