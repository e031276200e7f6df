"""SGLang's load client as one supervised child: its command line, its run, its two files.

The surprise: the client is started while the server still loads and parked at a gate file, because its imports take
longer than its measurement. Its JSONL is kept untouched and holds a bare `Infinity`, which strict JSON parsers refuse.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from experiments.child import child_env
from experiments.command import Command
from experiments.engines.registry import engine_of
from experiments.errors import ClientError, ConfigError, OutOfMemory
from experiments.process import Supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from experiments.running import Running
    from experiments.spec import CellSpec

POLL_S = 0.05
FILES = ("requests.jsonl", "go", "bench.jsonl")
OUTPUTS = ("requests.jsonl", "bench.jsonl")
USAGE = json.dumps({"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
"""What OpenAI's API is asked for beside a stream of text, so that tokens need not be guessed from chunks."""
KEYS = ("OPENAI_API_KEY", "API_KEY")
"""Names under which SGLang's client looks for a key, in that order."""
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Where it sees a GPU, SGLang's client imports kernels that its light route does not install."""
PASTED = ("/dev/stdout", "/dev/null", "/dev/stdout")


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """One line of requests.jsonl (clients/recorded_serving.py writes it)."""

    index: int
    id: str | None
    prompt_sha256: str
    asked_tokens: int
    prompt_tokens: int | None
    completion_tokens: int | None
    spec_verify_ct: int | None
    finish_reason: dict[str, Any] | None
    success: bool
    error: str
    ttft_s: float
    latency_s: float
    start_s: float
    """On the client's clock, whose zero means nothing."""
    stamps: list[tuple[float, int]]


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    summary: dict[str, Any]
    """The client's own figures, under its own names."""
    requests: tuple[RequestRow, ...]
    """In prompt order."""


def check_installed() -> None:
    if importlib.util.find_spec("sglang") is None:
        raise ConfigError("workload", "SGLang's load client is not installed; `make install` installs it")


def arguments(cell: CellSpec, *, url: str, dataset: Path, output: Path, served_name: str) -> tuple[str, ...]:
    """The client's command line. No warm-up of its own: it would use the first measured prompt."""
    load, backend = cell.workload, engine_of(cell).backend
    values = {
        "--backend": backend,
        "--base-url": url,
        "--model": cell.model.path,
        "--tokenizer": cell.model.tokenizer_path or cell.model.path,
        **({} if backend == "sglang" else {"--served-model-name": served_name, "--extra-request-body": USAGE}),
        "--dataset-name": load.dataset_name,
        "--dataset-path": dataset,
        "--num-prompts": load.num_prompts,
        **_lengths(cell),
        "--max-concurrency": load.max_concurrency,
        "--request-rate": math.inf,
        "--seed": load.seed,
        "--warmup-requests": 0,
        "--ready-check-timeout-sec": 0,
        "--output-file": output,
    }
    by_ids = load.dataset_name != "sharegpt" and backend == "sglang"
    flags = ["--output-details", "--disable-tqdm", *(["--tokenize-prompt"] if by_ids else [])]
    return (*(str(part) for pair in values.items() for part in pair), *flags)


def _lengths(cell: CellSpec) -> dict[str, int | float]:
    load = cell.workload
    if load.dataset_name == "sharegpt":
        return {"--sharegpt-output-len": load.output_len}
    assert load.input_len is not None, "checked with the configuration"
    return {"--random-input-len": load.input_len, "--random-output-len": load.output_len, "--random-range-ratio": 1.0}


def command(cell: CellSpec, *, url: str, dataset: Path, served_name: str, directory: Path | None = None) -> Command:
    """With its files in `directory`; without one, a line to paste, which starts at once and writes to the terminal."""
    requests, go, output = [directory / name for name in FILES] if directory else map(Path, PASTED)
    trusting = ("--trust-remote-code",) if cell.engine.trust_remote_code else ()
    program = (sys.executable, "-m", "experiments.clients.recorded_serving", *trusting, str(requests), str(go))
    line = arguments(cell, url=url, dataset=dataset, output=output, served_name=served_name)
    return Command((*program, *line), {**child_env(threads=1), **NO_GPU, **_no_key(cell)}, _key(cell))


def _key(cell: CellSpec) -> dict[str, str]:
    return {KEYS[0]: cell.engine.api_key_env} if cell.engine.api_key_env else {}


def _no_key(cell: CellSpec) -> dict[str, str]:
    """The client sends any key that it finds, and one that is not for this server would go to a stranger."""
    return {} if engine_of(cell).started else {name: "" for name in KEYS if name not in _key(cell)}


class BenchClient:
    """The client, started and parked; a context manager that stops it."""

    def __init__(
        self,
        cell: CellSpec,
        *,
        url: str,
        dataset: Path,
        directory: Path,
        served_name: str,
        cores: Sequence[int] = (),
    ) -> None:
        self._directory = directory
        self._asked = cell.workload.num_prompts
        self.command = command(cell, url=url, dataset=dataset, served_name=served_name, directory=directory)
        outputs = [directory / name for name in OUTPUTS]
        self.process = Supervised.start(self.command, log=directory / "bench.log", outputs=outputs, cores=cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()

    def run(self, server: Running, answered: Callable[[int], None]) -> BenchResult:
        """Open the gate and wait; `answered(n)` after n more. Raises ClientError, OutOfMemory or ServerDied."""
        (self._directory / "go").touch()
        seen = 0
        while self.process.alive():
            if (done := self._answered()) > seen:
                answered(done - seen)
                seen = done
            server.check_alive()
            time.sleep(POLL_S)
        server.check_alive()
        if code := self.process.stop():
            if said := self.process.memory_ran_out():
                raise OutOfMemory(f"the load client ran out of memory (code {code}): {said}", self.process.tail())
            raise ClientError(f"the load client ended with code {code}", self.process.tail())
        (self._directory / "go").unlink()
        return self._result()

    def _answered(self) -> int:
        rows = self._directory / "requests.jsonl"
        return rows.read_bytes().count(b"\n") if rows.exists() else 0

    def _result(self) -> BenchResult:
        summary = json.loads((self._directory / "bench.jsonl").read_text().splitlines()[-1])
        result = BenchResult(summary=summary, requests=read_requests(self._directory / "requests.jsonl"))
        failed = [row.error for row in result.requests if not row.success]
        if failed or summary["completed"] != self._asked:
            first = failed[0].strip().splitlines()[-1] if failed else "no error given"
            raise ClientError(f"{summary['completed']} of {self._asked} requests completed; first: {first}")
        return result


def read_requests(path: Path) -> tuple[RequestRow, ...]:
    """Rows in prompt order; the file has them in the order of completion."""
    rows = [RequestRow(**json.loads(line)) for line in path.read_text().splitlines()]
    return tuple(sorted(rows, key=lambda row: row.index))
