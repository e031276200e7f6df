"""SGLang's own load client, run unchanged, with a note taken of every answer it reads.

`python -m experiments.clients.recorded_serving REQUESTS GO [client arguments]` is `python -m sglang.benchmark.serving
[client arguments]` plus one line of JSON per request in REQUESTS, because the client drops `spec_verify_ct`. The notes
are taken where it parses a chunk (two assignments and a clock read), so what it measures and writes stays its own, and
its collector is settled before the load, so that no pause of it is taken for one of the engine's. The surprise: it
imports for many seconds, so it is started early and waits for the file GO before it begins.
"""

from __future__ import annotations

import contextlib
import contextvars
import gc
import hashlib
import importlib.util
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from experiments.clients.openai import verify_steps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TextIO

GO_POLL_S = 0.02
TRUSTING = "--trust-remote-code"
"""As first argument: code of the checkpoint may run in the client too."""


@dataclass
class Answer:
    """What came back for one request so far."""

    meta: dict[str, Any] = field(default_factory=dict)
    stamps: list[tuple[float, int]] = field(default_factory=list)
    """(perf_counter, cumulative completion tokens) per chunk."""

    def note(self, meta: dict[str, Any]) -> None:
        self.meta = meta
        self.stamps.append((time.perf_counter(), meta.get("completion_tokens", 0)))


_current: contextvars.ContextVar[Answer] = contextvars.ContextVar("current")
"""Each request is an asyncio task of its own and so has a context of its own."""


class Recorder:
    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._count = 0

    def around(self, request: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The client's request function, with a line written after each return."""

        async def recorded(request_func_input: Any, pbar: Any = None) -> Any:
            index, self._count = self._count, self._count + 1
            answer = Answer()
            _current.set(answer)
            output = await request(request_func_input=request_func_input, pbar=pbar)
            self._out.write(json.dumps(line(index, request_func_input, output, answer)) + "\n")
            self._out.flush()
            return output

        return recorded


def line(index: int, asked: Any, output: Any, answer: Answer) -> dict[str, Any]:
    """Times are the client's own figures; counts are the engine's."""
    prompt = asked.prompt if isinstance(asked.prompt, str) else json.dumps(asked.prompt)
    return {
        "index": index,
        "id": answer.meta.get("id"),
        "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        "asked_tokens": asked.output_len,
        "prompt_tokens": answer.meta.get("prompt_tokens"),
        "completion_tokens": answer.meta.get("completion_tokens"),
        "spec_verify_ct": answer.meta.get("spec_verify_ct"),
        "finish_reason": answer.meta.get("finish_reason"),
        "success": output.success,
        "error": output.error,
        "ttft_s": output.ttft,
        "latency_s": output.latency,
        "start_s": output.start_time,
        "stamps": [(round(stamp - output.start_time, 6), tokens) for stamp, tokens in answer.stamps],
    }


@dataclass(frozen=True)
class Dialect:
    """How a backend's chunks are read: where the client parses them, and how a chunk is noted and handed on."""

    parser: str
    """The module of the client's whose `loads` it is."""
    read: Callable[[Answer, dict[str, Any]], dict[str, Any]]


def read_native(answer: Answer, chunk: dict[str, Any]) -> dict[str, Any]:
    if meta := chunk.get("meta_info"):
        answer.note(meta)
    return chunk


def read_openai(answer: Answer, chunk: dict[str, Any]) -> dict[str, Any]:
    """In the native form's terms. `usage` is taken out, for the client would believe the last one beside a text.

    An end without a text would then be missing from its count. Without `usage` it counts what it asked for, as it does
    when nobody records, and whether that is what came is for us to check.
    """
    usage = chunk.pop("usage", None) or {}
    meta = answer.meta | {"id": chunk.get("id"), **{key: usage[key] for key in COUNTS if key in usage}}
    if (steps := verify_steps(chunk.get("metrics"), meta.get("completion_tokens", 0))) is not None:
        meta["spec_verify_ct"] = steps
    for choice in chunk.get("choices", ()):
        if choice["finish_reason"]:
            meta["finish_reason"] = {"type": choice["finish_reason"], "matched": choice.get("stop_reason")}
    if usage:
        answer.note(meta)
    if chunk.get("choices") == []:
        chunk["choices"] = [{"text": ""}]  # the last one, of usage alone; the client expects a text in every chunk
    return chunk


COUNTS = ("prompt_tokens", "completion_tokens")
DIALECTS = {"sglang": Dialect("orjson", read_native), "vllm": Dialect("json", read_openai)}


def tapped(loads: Callable[[bytes], Any], read: Callable[[Answer, dict[str, Any]], dict[str, Any]]) -> Any:
    def loads_and_note(raw: bytes) -> Any:
        chunk = loads(raw)
        answer = _current.get(None)
        return read(answer, chunk) if answer else chunk

    return loads_and_note


def tap(serving: Any, backend: str, out: TextIO) -> None:
    """Into the client's module, before it begins."""
    dialect = DIALECTS[backend]
    parser = getattr(serving, dialect.parser)
    own = vars(parser) | {"loads": tapped(parser.loads, dialect.read)}
    setattr(serving, dialect.parser, SimpleNamespace(**own))
    serving.ASYNC_REQUEST_FUNCS[backend] = Recorder(out).around(serving.ASYNC_REQUEST_FUNCS[backend])
    serving.benchmark = settled(serving.benchmark)


def settled(benchmark: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The client's load, with all that its start left behind collected first and then out of the collector's sight.

    All of the client's imports are in it, and a full collection of them in the middle of the load would be reported as
    time that the engine took.
    """

    async def run(*args: Any, **options: Any) -> Any:
        gc.collect()
        gc.freeze()
        return await benchmark(*args, **options)

    return run


def given(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def is_whole_package() -> bool:
    """SGLang as installed brings `srt`. (To import it in order to ask would need the schemas already.)"""
    spec = importlib.util.find_spec("sglang")
    locations = spec.submodule_search_locations if spec else None
    return any((Path(location) / "srt").is_dir() for location in locations or ())


def define_torchvision_schemas() -> object | None:
    """SGLang's configs import torchvision, whose registry build wants these two operators; a CPU torch has none.

    None where torchvision's own library has them: a second definition would end the process.
    """
    import torch  # noqa: PLC0415 - the order matters: before torchvision

    spec = importlib.util.find_spec("torchvision")
    for location in spec.submodule_search_locations or () if spec else ():
        for file in Path(location).glob("_C*.so"):
            with contextlib.suppress(OSError):  # a CUDA build beside a CPU torch
                torch.ops.load_library(str(file))
                return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def load_client() -> tuple[Any, object | None]:
    """SGLang's module, and what must be kept alive as long as it is used."""
    library = define_torchvision_schemas() if is_whole_package() else None
    from sglang.benchmark import serving  # noqa: PLC0415 - only after the schemas

    return serving, library


def distrust() -> None:
    """SGLang's client loads every tokenizer with `trust_remote_code=True`, which runs what a checkpoint brings along.

    To be called behind its import: a client that has not imported transformers loads nothing by it.
    """
    if "transformers" not in sys.modules:
        return
    from transformers import AutoTokenizer  # noqa: PLC0415 - there already

    load = AutoTokenizer.from_pretrained

    def trustless(*args: Any, **options: Any) -> Any:
        return load(*args, **options | {"trust_remote_code": False})

    AutoTokenizer.from_pretrained = trustless  # type: ignore[method-assign]


def main() -> None:
    trusting = sys.argv[1] == TRUSTING
    requests, go, *arguments = sys.argv[2:] if trusting else sys.argv[1:]
    serving, library = load_client()
    if not trusting:
        distrust()
    while not Path(go).exists():
        time.sleep(GO_POLL_S)
    with Path(requests).open("w") as out:
        tap(serving, given(arguments, "--backend"), out)
        sys.argv = ["sglang.benchmark.serving", *arguments]
        serving.cli_main()
    del library  # kept alive until here: its schemas vanish with it


if __name__ == "__main__":
    main()
