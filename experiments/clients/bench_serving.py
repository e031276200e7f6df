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
from experiments.errors import ClientError, ConfigError, OutOfMemory
from experiments.process import Supervised

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from experiments.server import Server
    from experiments.spec import CellSpec

POLL_S = 0.05
FILES = ("requests.jsonl", "go", "bench.jsonl")
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


def arguments(cell: CellSpec, *, url: str, dataset: Path, output: Path) -> tuple[str, ...]:
    """The client's command line. No warm-up of its own: it would use the first measured prompt."""
    load = cell.workload
    values = {
        "--backend": "sglang",
        "--base-url": url,
        "--model": cell.model.path,
        "--tokenizer": cell.model.tokenizer_path or cell.model.path,
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
    flags = ["--output-details", "--disable-tqdm", *([] if load.dataset_name == "sharegpt" else ["--tokenize-prompt"])]
    return (*(str(part) for pair in values.items() for part in pair), *flags)


def _lengths(cell: CellSpec) -> dict[str, int | float]:
    load = cell.workload
    if load.dataset_name == "sharegpt":
        return {"--sharegpt-output-len": load.output_len}
    assert load.input_len is not None, "checked with the configuration"
    return {"--random-input-len": load.input_len, "--random-output-len": load.output_len, "--random-range-ratio": 1.0}


def command(cell: CellSpec, *, url: str, dataset: Path, directory: Path | None = None) -> Command:
    """With its files in `directory`; without one, a line to paste, which starts at once and writes to the terminal."""
    requests, go, output = [directory / name for name in FILES] if directory else map(Path, PASTED)
    program = (sys.executable, "-m", "experiments.clients.recorded_serving", str(requests), str(go))
    return Command((*program, *arguments(cell, url=url, dataset=dataset, output=output)), child_env(threads=1))


class BenchClient:
    """The client, started and parked; a context manager that stops it."""

    def __init__(self, cell: CellSpec, *, url: str, dataset: Path, directory: Path, cores: Sequence[int] = ()) -> None:
        self._directory = directory
        self._asked = cell.workload.num_prompts
        self.command = command(cell, url=url, dataset=dataset, directory=directory)
        self.process = Supervised.start(self.command, log=directory / "bench.log", cores=cores)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()

    def run(self, server: Server, answered: Callable[[int], None]) -> BenchResult:
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
