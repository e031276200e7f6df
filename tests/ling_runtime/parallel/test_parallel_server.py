"""A server with several ranks as processes: it answers as one rank does, and no process outlives another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import ling_runtime
from ling_runtime.executor.build import ExecutorSettings, load_executor
from tests.ling_runtime.executor.driving import generate, prompt_of

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process
ROOT = Path(ling_runtime.__file__).parents[1]
SHIPPED = ROOT / "ling_runtime/checkpoints/ling_tiny"
PROMPT, TOKENS = prompt_of(4, 40), 24
FLAGS = ("--tp-size", "2", "--num-threads", "1", "--context-length", "256", "--port", "0")


class Server:
    """A server of two ranks that is ready, and the processes it consists of."""

    def __init__(self, *flags: str) -> None:
        command = [sys.executable, "-m", "ling_runtime.server", "--model-path", str(SHIPPED), *FLAGS, *flags]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "ready on" in line
        self.url = line.split(" on ", 1)[1].split(" ", 1)[0]
        self.info: dict[str, Any] = httpx.get(f"{self.url}/server_info", timeout=20).json()
        self.pids = [rank["pid"] for rank in self.info["executor"]["ranks"]]

    def generate(self) -> list[int]:
        body = {
            "input_ids": PROMPT,
            "sampling_params": {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True},
        }
        answer = httpx.post(f"{self.url}/generate", json=body, timeout=60).json()
        return list(answer["output_ids"])

    def end(self) -> tuple[int, str]:
        """(exit code, what it wrote on stderr), when it has ended by itself."""
        _, errors = self.process.communicate(timeout=20)
        return self.process.returncode, errors


@pytest.fixture
def start() -> Iterator[Any]:
    servers: list[Server] = []

    def run(*flags: str) -> Server:
        servers.append(Server(*flags))
        return servers[-1]

    yield run
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate(timeout=20)


def gone(pids: list[int], within_s: float = 10.0) -> bool:
    """Whether none of them runs any more; who reaps what has lost its parent takes its time."""
    deadline = time.monotonic() + within_s
    while any(running(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_it_answers_as_one_rank_does_and_leaves_no_process(start: Any) -> None:
    server = start("--speculative-algorithm", "NEXTN")
    alone = load_executor(str(SHIPPED), ExecutorSettings(context_length=256))
    assert server.generate() == generate(alone, PROMPT, TOKENS).tokens
    info = httpx.get(f"{server.url}/server_info", timeout=20).json()
    ranks = info["executor"]["ranks"]
    assert (info["tp_size"], [rank["rank"] for rank in ranks], len(set(server.pids))) == (2, [0, 1], 2)
    assert ranks[0]["digest"] == ranks[1]["digest"] != server.info["executor"]["ranks"][0]["digest"]
    assert info["internal_states"][0]["avg_spec_accept_length"] > 1
    os.killpg(server.process.pid, signal.SIGTERM)  # as a supervisor does it: every rank has the signal
    code, errors = server.end()
    assert code == 0
    assert "CRITICAL" not in errors
    assert gone(server.pids)


def test_a_rank_that_dies_ends_the_server_with_a_word_of_it(start: Any) -> None:
    server = start()
    os.kill(server.pids[1], signal.SIGKILL)
    code, errors = server.end()
    assert code == 1
    assert "rank 1 ended with -9" in errors
    assert gone(server.pids)


FAILING = """
import sys, time
from ling_runtime.arguments import parse
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.parallel.ranks import Ranks

config, settings = parse(sys.argv[1:]), ExecutorSettings(context_length=256)
with Ranks(2) as ranks:
    executor = load_executor(config.model_path, settings, ranks.join(config, settings))
    ranks.wait()
    ranks.tell("prefill", 99)
    time.sleep(30)
"""


def test_a_rank_that_fails_in_a_call_ends_everything_with_its_error() -> None:
    command = [sys.executable, "-c", FAILING, "--model-path", str(SHIPPED), *FLAGS]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=25)
    assert ended.returncode == 1
    assert "rank 1 ended with 1" in ended.stderr
    assert "KeyError: 99" in ended.stderr


@pytest.mark.slow
def test_ranks_do_not_outlive_a_server_that_is_killed(start: Any) -> None:
    server = start()
    server.process.kill()
    assert gone(server.pids[1:])


def test_a_model_that_cannot_be_shared_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    raw = json.loads((SHIPPED / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"num_attention_heads": 3}))
    command = [sys.executable, "-m", "ling_runtime.server", "--model-path", str(tmp_path), *FLAGS]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert ended.returncode == 2
    assert "tp_size=2: does not divide num_attention_heads=3" in ended.stderr
