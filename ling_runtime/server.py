"""`python -m ling_runtime.server`: from a command line to a listening server, and from a signal to a clean end.

Exit codes: 0 after TERM or INT, 1 when the engine failed, 2 for anything wrong with the command line or the
checkpoint. The surprise: the port is taken before the model is loaded and opened after. A port in use costs no loading
time, and nothing answers on it until it can generate.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from ling_runtime import host, speculative_flags, step_flags
from ling_runtime.api.app import create_app
from ling_runtime.api.service import Service
from ling_runtime.arguments import ServerConfig, parse
from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.engine import Engine
from ling_runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    from ling_runtime.executor.draft import DraftSettings
    from ling_runtime.executor.graph_settings import GraphSettings
    from ling_runtime.executor.interface import Executor
    from ling_runtime.parallel.ranks import Ranks

log = logging.getLogger(__name__)

GRACE_S = 2
"""Time for open answers to be written after a signal; their requests have been aborted by then."""

BACKLOG = 256

WHOLE_PROMPT = 1 << 30
"""A chunk that no prompt exceeds."""


def main(arguments: Sequence[str]) -> int:
    try:
        config = parse(arguments)
        logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        host.check(config)
        config = check_model(config)
        tokenizer = load_tokenizer(config)
        with bind(config) as listener, together(config) as ranks:
            code = serve(config, load(config, ranks), tokenizer, listener, ranks)
            if ranks is not None:
                ranks.end(code)
            return code
    except ConfigError as error:
        sys.stderr.write(f"ling_runtime.server: error: {error}\n")
        return 2


def check_model(config: ServerConfig) -> ServerConfig:
    """ConfigError for a path without a checkpoint, before the seconds that torch's import takes."""
    model = ModelConfig.from_pretrained(config.model_path)
    model.of_rank(config.tp_size)
    return speculative_flags.fitted(config, model)


def bind(config: ServerConfig) -> socket.socket:
    """A bound socket that does not listen yet; ConfigError when the address cannot be had."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With the protocol spelled out: asyncio's own loop sets TCP_NODELAY nowhere else, and an answer would wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"--host {config.host} --port {config.port}: {error.strerror}") from error
    return listener


@contextlib.contextmanager
def together(config: ServerConfig) -> Iterator[Ranks | None]:
    """The other ranks, started, where there are to be any; they end with the block."""
    if config.tp_size == 1:
        yield None
        return
    from ling_runtime.parallel.ranks import Ranks  # noqa: PLC0415 - one rank needs nothing of it

    if config.device == "cuda":
        from ling_runtime.parallel.meeting import check_cards  # noqa: PLC0415 - it imports torch

        check_cards(config.tp_size)
    with Ranks(config.tp_size) as ranks:
        yield ranks


def load(config: ServerConfig, ranks: Ranks | None = None) -> Executor:
    """The model in memory, ready to run steps; ConfigError when the checkpoint and the flags do not fit."""
    import torch  # noqa: PLC0415 - a wrong flag should not cost seconds of imports

    from ling_runtime.executor.build import ExecutorSettings, load_executor  # noqa: PLC0415

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    graphs = graph_settings(config)
    settings = ExecutorSettings(
        num_steps=config.speculative_num_steps or 0,
        draft=draft_settings(config),
        max_requests=config.max_running_requests,
        context_length=config.context_length,
        chunk=config.chunked_prefill_size if config.chunked_prefill_size > 0 else WHOLE_PROMPT,
        dtype=config.dtype,
        device=config.device,
        kernels=prompt_variants(config) | (device_variants(config) if graphs else config.kernel),
        graphs=graphs,
        load_format=config.load_format,
    )
    log.info("decode steps: %s", "CUDA graphs" if graphs else "eager")
    log.info("speculation: %s", speculative_flags.described(config))
    if ranks is None:
        return load_executor(config.model_path, settings)
    from ling_runtime.parallel.lead import LeadExecutor  # noqa: PLC0415

    group = ranks.join(config, settings)
    executor = LeadExecutor(load_executor(config.model_path, settings, group), ranks, group, config.device)
    ranks.wait()
    return executor


def replayed(config: ServerConfig) -> bool:
    """Whether greedy steps are graphs; what stands against it on a CUDA device is said, never passed over."""
    if config.device != "cuda" or config.disable_cuda_graph:
        return False
    if obstacle := speculative_flags.eager(config):
        log.warning("decode steps are eager: %s", obstacle)
        return False
    from ling_runtime.ops.triton.variants import lacking  # noqa: PLC0415 - it imports torch

    if why := lacking():
        raise ConfigError(f"--device cuda: CUDA graphs need Triton and a CUDA device, and here is {why}; allowed: cpu")
    return True


def prompt_variants(config: ServerConfig) -> dict[str, str]:
    """What computes prompts, where it is not the operators of windows."""
    if config.prefill_kernels == "reference":
        return {}
    from ling_runtime.ops.prompt import PROMPT_VARIANTS  # noqa: PLC0415 - it imports torch
    from ling_runtime.ops.triton.variants import lacking  # noqa: PLC0415

    if why := lacking():
        raise ConfigError(
            f"--prefill-kernels triton: needs Triton and a CUDA device, and here is {why}; allowed: reference"
        )
    return PROMPT_VARIANTS


def graph_settings(config: ServerConfig) -> GraphSettings | None:
    """What the flags say of replayed steps; None where there are none, and ConfigError for a flag of them then."""
    if replayed(config):
        return step_flags.settings(config)
    step_flags.refuse(config)
    return None


def device_variants(config: ServerConfig) -> dict[str, str]:
    from ling_runtime.executor import graphs  # noqa: PLC0415
    from ling_runtime.executor.dspark_graphs import BLOCK_VARIANTS  # noqa: PLC0415 - it imports Triton
    from ling_runtime.ops.cuda.build import obstacle  # noqa: PLC0415

    one = BLOCK_VARIANTS if config.speculative_algorithm == "DSPARK" else graphs.DEVICE_VARIANTS
    best = graphs.best_here(graphs.RANK_VARIANTS if config.tp_size > 1 else one)
    chosen = graphs.device_selection(config.kernel, best)
    replaced = [name for name in graphs.STREAMED_VARIANTS if name in chosen and name not in config.kernel]
    if replaced and (why := obstacle()):
        log.warning("%s: by Triton instead of CUDA C++: %s", ", ".join(replaced), why)
    return chosen


def draft_settings(config: ServerConfig) -> DraftSettings | None:
    if config.speculative_draft_model_path is None:
        return None
    from ling_runtime.executor.draft import DraftSettings  # noqa: PLC0415 - it imports torch
    from ling_runtime.speculation.dspark.schedule import ScheduleSettings  # noqa: PLC0415

    return DraftSettings(
        path=config.speculative_draft_model_path,
        block_size=config.speculative_dspark_block_size,
        acceptance=speculative_flags.acceptance(config),
        greedy=config.speculative_dspark_greedy_draft,
        schedule=ScheduleSettings(
            mode=config.speculative_dspark_verify_mode,
            scheduler=config.speculative_dspark_scheduler or "causal",
            temperatures_path=config.speculative_dspark_confidence_sts_path,
            cost_path=config.speculative_dspark_sps_table_path,
            allow_fallback=config.speculative_dspark_allow_fallback,
        ),
    )


def load_tokenizer(config: ServerConfig) -> Tokenizer:
    template = None if config.chat_template is None else Path(config.chat_template)
    tokenizer = Tokenizer.from_pretrained(Path(config.tokenizer_path), template)
    if config.load_format == "dummy":
        tokenizer.borrow()
    return tokenizer


def serve(
    config: ServerConfig, executor: Executor, tokenizer: Tokenizer, listener: socket.socket, ranks: Ranks | None = None
) -> int:
    """Answer until a signal or the engine's failure; returns the exit code."""
    pinned = partial(host.pin, config.engine_core)
    engine = Engine(executor, tokenizer, max_running_requests=config.max_running_requests, at_start=pinned)
    server = Server(config, engine, tokenizer, ranks)
    host.settle(config)
    server.run([listener])
    return 1 if engine.failure is not None else 0


class Server(uvicorn.Server):
    """uvicorn with our end: a signal aborts the running requests first, and does not become the exit status.

    uvicorn takes uvloop and httptools by itself where they are installed. On one core they cost a streamed token 0.18
    ms of processor time where asyncio and h11 cost 0.28 (of a step of 7), most of it in handing the interpreter's lock
    to and fro.
    """

    def __init__(self, config: ServerConfig, engine: Engine, tokenizer: Tokenizer, ranks: Ranks | None = None) -> None:
        self._config, self._ranks = config, ranks
        self._engine = engine
        service = Service(config, engine, tokenizer, _architecture(config))
        app = create_app(service, on_failure=self._stop)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=GRACE_S,
                timeout_keep_alive=120,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._ranks is not None:
            self._ranks.on_loss = self._engine.fail
        assert sockets
        host, port = sockets[0].getsockname()[:2]
        resolved = self._config.to_json() | {"port": port, "context_length": self._engine.executor.max_context}
        sys.stdout.write(f"ling_runtime.server ready on http://{host}:{port} {json.dumps(resolved)}\n")
        sys.stdout.flush()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        log.info("%s: ending", signal.Signals(sig).name)
        self._engine.shut_down()
        super().handle_exit(sig, frame)
        self._captured_signals.clear()  # uvicorn would raise the signal again at the end and lose our exit code

    def _stop(self) -> None:
        self.should_exit = True


def _architecture(config: ServerConfig) -> dict[str, object]:
    raw = json.loads((Path(config.model_path) / "config.json").read_text())
    return {"model_type": raw.get("model_type"), "architectures": raw.get("architectures")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
