"""The server's command line as one frozen value, spelled as SGLang spells it.

The surprise: nothing is guessed. An unknown flag is an error that names the nearest known one, never a warning,
because a server that starts without the change under test is a perfect A/A.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn, get_args

from ling_runtime import flags, host, speculative_flags, step_flags
from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ling_runtime.ops.triton.launch import Pdl
    from ling_runtime.speculation.dspark.planner import Scheduler
    from ling_runtime.speculation.dspark.schedule import Mode


Prefill = Literal["reference", "triton"]

LONG_CHUNK = 8192
"""A part of a prompt reads every expert's weights, so on a device few parts are what a prompt's time is made of."""
LAST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Resolved arguments; `/server_info` shows each under its own name."""

    model_path: str
    tokenizer_path: str
    served_model_name: str
    host: str = "127.0.0.1"
    port: int = 30000
    """0: any free port, named in the start-up line."""
    context_length: int | None = None
    """None: the checkpoint's `max_position_embeddings`."""
    max_running_requests: int = 8
    chunked_prefill_size: int = 512
    """Prompt tokens computed between two decode steps; -1: whole prompts. LONG_CHUNK where prompts have own kernels."""
    prefill_kernels: Prefill = "reference"
    """What computes prompts: the operators of short windows, or Triton kernels of their own, as on a CUDA device."""
    random_seed: int = 0
    """Seeds the seeds of requests that bring none."""
    dtype: str = "float32"
    device: str = "cpu"
    tp_size: int = 1
    """Ranks that share the model, each a process with its own card."""
    num_threads: int | None = None
    """Intra-op threads of torch; None: torch's own choice."""
    kernel: dict[str, str] = field(default_factory=dict)
    """Operator to variant, where not the reference."""
    load_format: str = "auto"
    """dummy: weights drawn where they are used, from the shapes of config.json alone."""
    speculative_algorithm: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    """Rows of the verify window: steps or block size, + 1."""
    speculative_draft_model_path: str | None = None
    speculative_dspark_block_size: int | None = None
    """Drafts of a block; None until the draft has been read."""
    speculative_use_block_verification: bool = False
    speculative_dspark_verify_mode: Mode = "static"
    speculative_dspark_scheduler: Scheduler | None = None
    speculative_dspark_sps_table_path: str | None = None
    speculative_dspark_confidence_sts_path: str | None = None
    speculative_dspark_greedy_draft: bool = False
    speculative_dspark_allow_fallback: bool = False
    simulated_accept_length: float | None = None
    """Replaces acceptance, the bonus counted: answers mean nothing, times do."""
    disable_cuda_graph: bool = False
    """Without this, greedy steps are replayed on a CUDA device, of Triton's variants; on a CPU all steps are eager."""
    disable_overlap_schedule: bool = False
    """Read each replayed step before the next is queued."""
    pdl: Pdl | None = None
    """How replayed kernels overlap (ops/triton/launch.py); None: the mode that was fastest on this kind of card."""
    graph_memory_mib: int | None = None
    """Bound of what recorded steps hold of the device; past it steps run launch by launch. None: no bound."""
    engine_core: int | None = None
    """The engine thread's own core; None: any of the process's."""
    gc_threshold: tuple[int, ...] | None = None
    """Of Python's collector, by generation; None: Python's own."""
    disable_gc_freeze: bool = False
    """Let collections walk what was there at start."""
    seq_lens_pin: bool = False
    """Run ahead, but wait for the lengths before each replayed step, as a backend that plans on the host must."""
    fused_verify_extend: bool = False
    disable_draft_extend_cuda_graph: bool = False
    glue_graph: Literal["on", "off"] | None = None
    result_ring: bool = False
    """These four rearrange a replayed step: `executor.switches`."""
    chat_template: str | None = None
    weight_version: str = "default"
    log_level: str = "info"
    without_effect: tuple[str, ...] = ()
    """Flags of SGLang that were given and change nothing here."""

    def __post_init__(self) -> None:
        _at_least("--port", self.port, 0)
        if self.port > LAST_PORT:
            raise ConfigError(f"--port {self.port}: no such port; allowed: 0 to {LAST_PORT}")
        _at_least("--max-running-requests", self.max_running_requests, 1)
        _at_least("--tp-size", self.tp_size, 1)
        if self.tp_size > 1 and self.speculative_algorithm == "DSPARK":
            raise ConfigError(f"--tp-size {self.tp_size}: not under --speculative-algorithm DSPARK; allowed there: 1")
        if self.context_length is not None:
            _at_least("--context-length", self.context_length, 2)
        if self.num_threads is not None:
            _at_least("--num-threads", self.num_threads, 1)
        if self.graph_memory_mib is not None:
            _at_least("--graph-memory-mib", self.graph_memory_mib, 1)
        host.check_threshold(self.gc_threshold)
        step_flags.check(self)
        if self.chunked_prefill_size != -1:
            _at_least("--chunked-prefill-size", self.chunked_prefill_size, 1)

    def to_json(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def parse(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> ServerConfig:
    """Read a command line, and of the environment what SGLang reads there.

    ConfigError names the flag, its value and what is allowed.
    """
    given, unknown = _parser().parse_known_args(arguments)
    if unknown:
        raise ConfigError(_unknown(unknown[0]))
    values = {key: value for key, value in vars(given).items() if value is not None}
    values["without_effect"] = tuple(dict.fromkeys(values.pop("without_effect", ())))
    values["kernel"] = kernels_of(values.pop("kernel", ()))
    if "gc_threshold" in values:
        values["gc_threshold"] = tuple(values["gc_threshold"])
    values.setdefault("tokenizer_path", values["model_path"])
    values.setdefault("served_model_name", values["model_path"])
    values.setdefault("random_seed", random.SystemRandom().getrandbits(30))
    if values.get("device") == "cuda":
        values.setdefault("prefill_kernels", "triton")
    if values.get("prefill_kernels") == "triton":
        values.setdefault("chunked_prefill_size", LONG_CHUNK)
    return ServerConfig(
        **values | speculative_flags.resolved(values, os.environ if environment is None else environment)
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Without argparse's page of usage, which would bury the message."""
        raise ConfigError(message)


class _WithoutEffect(argparse.Action):
    """Notes the flag; its value is not kept, because nothing reads it."""

    def __call__(self, _parser: object, namespace: argparse.Namespace, _value: object, flag: str | None = None) -> None:
        assert flag is not None
        namespace.without_effect = [*(getattr(namespace, "without_effect", None) or ()), flag]


def _parser() -> _Parser:
    parser = _Parser(prog="python -m ling_runtime.server", description="Serve a Ling checkpoint.", allow_abbrev=False)
    add = parser.add_argument
    add("--model-path", "--model", required=True, metavar="DIR", help="local checkpoint directory")
    add("--tokenizer-path", metavar="DIR", help="default: the model path")
    add("--served-model-name", metavar="NAME", help="default: the model path")
    add("--host", metavar="ADDRESS")
    add("--port", type=int, metavar="N", help="0: any free one")
    add("--context-length", type=int, metavar="N", help="default: the checkpoint's")
    add("--max-running-requests", type=int, metavar="N")
    add("--chunked-prefill-size", type=int, metavar="N", help="prompt tokens between two decode steps; -1: all")
    add("--prefill-kernels", choices=get_args(Prefill), help="what computes prompts")
    add("--random-seed", type=int, metavar="N", help="seeds requests that bring no sampling_seed")
    add("--dtype", choices=("float32", "bfloat16"))
    add("--device", choices=("cpu", "cuda"))
    add("--tp-size", "--tensor-parallel-size", "--tp", type=int, metavar="N", help="ranks that share the model")
    add("--load-format", choices=("auto", "safetensors", "dummy"), help="dummy: random weights, config.json is enough")
    add("--num-threads", type=int, metavar="N", help="intra-op threads of torch")
    add("--kernel", action="extend", nargs="+", metavar="OP=VARIANT", help="choose an operator's variant; repeatable")
    speculative_flags.add_flags(parser)
    add("--disable-cuda-graph", action="store_const", const=True, help="run every step eagerly, on a CUDA device too")
    add("--disable-overlap-schedule", action="store_const", const=True, help="read a step before queuing the next")
    add("--pdl", choices=("off", "late", "early"), help="default: the fastest known for this card")
    add("--graph-memory-mib", type=int, metavar="N", help="bound of what CUDA graphs hold; default: none")
    add("--engine-core", type=int, metavar="N", help="pins the engine thread to one core")
    add("--gc-threshold", type=int, nargs="+", metavar="N", help="of Python's collector, by generation; 0: never")
    add("--disable-gc-freeze", action="store_const", const=True, help="let collections walk what was there at start")
    add("--seq-lens-pin", action="store_const", const=True, help="read lengths back before each replayed step")
    add("--fused-verify-extend", action="store_const", const=True, help="NEXTN: verify and extend as one CUDA graph")
    add("--disable-draft-extend-cuda-graph", action="store_const", const=True, help="NEXTN: extend launch by launch")
    add("--glue-graph", choices=("on", "off"), help="refill a step's metadata before its graphs, as a graph or eagerly")
    add("--result-ring", action="store_const", const=True, help="results go to the host from the verify graph itself")
    add("--chat-template", metavar="FILE", help="Jinja template instead of the checkpoint's")
    add("--weight-version", metavar="NAME")
    add("--log-level", choices=("debug", "info", "warning", "error"))
    _add_without_effect(parser)
    return parser


def _add_without_effect(parser: argparse.ArgumentParser) -> None:
    for flag in flags.SWITCHES:
        parser.add_argument(flag, action=_WithoutEffect, nargs=0, dest="without_effect", help=argparse.SUPPRESS)
    for flag in flags.VALUES:
        parser.add_argument(flag, action=_WithoutEffect, dest="without_effect", help=argparse.SUPPRESS)
    for flag, allowed in flags.ONLY.items():
        parser.add_argument(flag, action=_WithoutEffect, choices=allowed, dest="without_effect", help=argparse.SUPPRESS)


def _unknown(argument: str) -> str:
    flag = argument.partition("=")[0]
    known = [option for action in _parser()._actions for option in action.option_strings]  # noqa: SLF001
    nearest = difflib.get_close_matches(flag, known, n=1, cutoff=0.0)[0]
    return f"unknown argument {flag}; the nearest known one is {nearest}"


def kernels_of(pairs: Sequence[str]) -> dict[str, str]:
    """What --kernel says; ConfigError for what is no choice, or two."""
    chosen: dict[str, str] = {}
    for pair in pairs:
        operator, equals, variant = pair.partition("=")
        if not (operator and equals and variant):
            raise ConfigError(f"--kernel {pair}: expected OP=VARIANT")
        if chosen.setdefault(operator, variant) != variant:
            raise ConfigError(f"--kernel {pair}: {operator}={chosen[operator]} was given before")
    return chosen


def _at_least(flag: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(f"{flag} {value}: must be at least {low}")
