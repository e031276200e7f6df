"""A second process on the host does not change the tokens: the server's, alone and beside busy loops on its own cores.

On a card its steps are replayed ahead of the host, so what a late host might spoil is all there: buffers that are used
in turn, results that are read a step late, slots that change hands.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
import pytest
import torch

import ling_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(ling_runtime.__file__).parents[1]
SHIPPED = ROOT / "ling_runtime/checkpoints/ling_tiny"
PROMPTS = [f"Question: Mia had {n} coins and found {n + 3} more. How many has she now?\nAnswer:" for n in range(4, 8)]
BURNER = "while True: sum(range(100_000))"
A_CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = [
    pytest.param("cpu", "float32", 24, marks=[pytest.mark.process, pytest.mark.slow]),
    pytest.param("cuda", "bfloat16", 256, marks=[pytest.mark.gpu, A_CARD]),
]


@pytest.fixture
def start() -> Iterator[Any]:
    """Processes of this test; all of them are gone behind it."""
    running: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, *arguments], text=True, **options)
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait(10)
        if process.stdout:
            process.stdout.close()


def serve(start: Any, device: str, dtype: str) -> str:
    flags = ["--model-path", str(SHIPPED), "--port", "0", "--device", device, "--dtype", dtype, "--num-threads", "1"]
    chain = ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--context-length", "1024"]
    server = start("-m", "ling_runtime.server", *flags, *chain, stdout=subprocess.PIPE, cwd=ROOT)
    line = server.stdout.readline()
    assert " on http://" in line, "the server did not start; its log is above"
    return str(line.split(" on ", 1)[1].split(" ", 1)[0])


def ask(url: str, tokens: int) -> list[list[int]]:
    """All prompts at once, then each alone."""
    sampling = {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True}
    with httpx.Client(timeout=200) as client:
        together = client.post(f"{url}/generate", json={"text": PROMPTS, "sampling_params": sampling}).json()
        alone = [client.post(f"{url}/generate", json={"text": text, "sampling_params": sampling}) for text in PROMPTS]
    return [answer["output_ids"] for answer in [*together, *(one.json() for one in alone)]]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("device", "dtype", "tokens"), DEVICES)
def test_tokens_beside_a_burner_are_those_of_a_quiet_host(start: Any, device: str, dtype: str, tokens: int) -> None:
    url = serve(start, device, dtype)
    quiet = ask(url, tokens)
    assert quiet[: len(PROMPTS)] == quiet[len(PROMPTS) :]
    burners = [start("-c", BURNER) for _ in range(2 * len(os.sched_getaffinity(0)))]
    time.sleep(1)
    assert ask(url, tokens) == quiet
    assert all(psutil.Process(burner.pid).cpu_times().user > 0.2 for burner in burners), "nobody was in the way"
    decode = httpx.get(f"{url}/server_info").json()["executor"]
    assert decode["path"] == ("graphs" if device == "cuda" else "eager")
