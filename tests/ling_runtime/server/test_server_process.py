"""The server as a process: its start-up line, its end on a signal, on failure, and before it has started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.ling_runtime.soak.gauges import cpu_ms

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture
def start(checkpoint: Path) -> Iterator[Any]:
    """Start the scripted server; gives the process and its start-up line."""
    processes: list[subprocess.Popen[str]] = []

    def run(*flags: str, **environment: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, HERE / "scripted_server.py", "--model-path", checkpoint, "--port", "0", *flags],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline()

    yield run
    for process in processes:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


def url_of(line: str) -> str:
    return line.split(" on ", 1)[1].split(" ", 1)[0]


def test_the_start_up_line_names_the_resolved_arguments(start: Any, checkpoint: Path) -> None:
    _, line = start("--served-model-name", "tiny", "--speculative-algorithm", "NEXTN", "--disable-radix-cache")
    arguments = json.loads(line[line.index("{") :])
    assert arguments["model_path"] == str(checkpoint)
    assert arguments["served_model_name"] == "tiny"
    assert arguments["speculative_num_draft_tokens"] == 4
    assert arguments["context_length"] == 2048
    assert arguments["without_effect"] == ["--disable-radix-cache"]
    assert arguments["port"] != 0
    assert httpx.get(f"{url_of(line)}/health").status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_quickly_with_a_stream_open(start: Any, number: signal.Signals) -> None:
    process, line = start()
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 2000}}
    with httpx.stream("POST", f"{url_of(line)}/generate", json=body, timeout=10) as response:
        lines = response.iter_lines()
        next(lines)
        began = time.monotonic()
        process.send_signal(number)
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert process.wait(5) == 0
    assert time.monotonic() - began < 3
    assert "shutting down" in events[-1]["error"]["message"]


def test_a_failing_engine_ends_the_process_after_answering(start: Any) -> None:
    process, line = start(SCRIPTED_FAIL_AT_STEP="3")
    response = httpx.post(f"{url_of(line)}/generate", json={"text": "x"}, timeout=10)
    assert response.status_code == 500
    assert "a kernel went wrong" in response.json()["error"]["message"]
    assert process.wait(10) == 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ling_runtime.server", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def test_a_model_path_that_is_none_ends_with_two() -> None:
    ended = run("--model-path", "not_a_dir")
    assert ended.returncode == 2
    assert "'not_a_dir'" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_an_unknown_flag_ends_with_two() -> None:
    ended = run("--model-path", "x", "--max-running-request", "3")
    assert ended.returncode == 2
    assert "nearest known one is --max-running-requests" in ended.stderr


def test_a_port_in_use_ends_with_two(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process, line = start("--port", str(taken.getsockname()[1]))
        assert process.wait(10) == 2
    assert line == ""


def test_a_streamed_token_costs_the_server_little(start: Any) -> None:
    """Processor time beside the executor's, which here only sleeps; 0.17 ms where this was written."""
    process, line = start("--speculative-algorithm", "NEXTN")
    body = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 1500, "ignore_eos": True}}
    httpx.post(f"{url_of(line)}/generate", json=body)
    httpx.post(f"{url_of(line)}/flush_cache").raise_for_status()
    before = cpu_ms(process.pid)
    httpx.post(f"{url_of(line)}/generate", json=body)
    spent = cpu_ms(process.pid) - before
    steps = httpx.get(f"{url_of(line)}/server_info").json()["steps"]["count"]
    assert steps > 300
    assert spent / steps < 0.7


def test_an_idle_server_ends_at_once(start: Any) -> None:
    """The engine thread sleeps in its inbox then."""
    process, _ = start()
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0


def test_a_profile_left_running_does_not_break_the_end(start: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    process, line = start()
    httpx.post(f"{url_of(line)}/start_profile", json={"output_dir": str(tmp_path)}, timeout=60).raise_for_status()
    httpx.post(f"{url_of(line)}/generate", json={"text": "x"}, timeout=10).raise_for_status()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert list(tmp_path.iterdir()) == [], "no half-written trace"
