"""Over a real socket: characters, stop strings, disconnects, and many clients at once."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from scripted import ScriptedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ling_runtime.tokenizer import Tokenizer


def stream(url: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with httpx.stream("POST", f"{url}/generate", json={**body, "stream": True}, timeout=20) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            if line == "data: [DONE]":
                return
            if line:
                yield json.loads(line.removeprefix("data: "))
    pytest.fail("the stream ended before [DONE]")


def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("text", ["日本語のテキスト、漢字", "नमस्ते दुनिया", "😀👍🏽👩‍👩‍👧 fine", "Ελληνικά, ไทย, 한국어"])
def test_every_chunk_ends_at_a_whole_character(listening: Any, tokenizer: Tokenizer, says: Any, text: str) -> None:
    url = listening(ScriptedExecutor(says(text), window=2, step_s=0.002))
    length = len(tokenizer.encode(text))
    chunks = list(stream(url, {"text": "x", "sampling_params": {"max_new_tokens": length, "temperature": 0}}))
    assert chunks[-1]["text"] == text
    assert all(text.startswith(chunk["text"]) for chunk in chunks)
    assert len(chunks) > 2


@pytest.mark.parametrize("window", [1, 4])
def test_a_partial_stop_string_is_never_shown(listening: Any, says: Any, window: int) -> None:
    answer = " 12 apples. Quest 7.\n#### 12\n\nQuestion: more"
    url = listening(ScriptedExecutor(says(answer), window=window, step_s=0.002))
    body = {"text": "x", "sampling_params": {"stop": ["Question"], "max_new_tokens": 60}}
    chunks = list(stream(url, body))
    expected = answer[: answer.index("Question")]
    assert chunks[-1]["text"] == expected
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "stop", "matched": "Question"}
    assert all(expected.startswith(chunk["text"]) for chunk in chunks)
    assert len(chunks) > 2


def test_counts_grow_with_the_text(listening: Any, says: Any) -> None:
    url = listening(ScriptedExecutor(says("one two three "), window=3))
    chunks = list(stream(url, {"text": "x", "sampling_params": {"max_new_tokens": 40}}))
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert all(before < after for before, after in pairwise(counts))
    assert counts[-1] == 40


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_frees_its_slot(listening: Any, says: Any, streaming: bool) -> None:
    executor = ScriptedExecutor(says("abc"), num_slots=1, step_s=0.005, num_tokens=10**6)
    url = listening(executor)
    body = {"text": "x", "stream": streaming, "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True}}
    with httpx.Client(timeout=20) as client:
        if streaming:
            with client.stream("POST", f"{url}/generate", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                assert len(executor.slots) == 1
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post(f"{url}/generate", json=body, timeout=0.2)
            assert executor.steps > 0
    assert eventually(lambda: not executor.slots), "the slot is still taken"
    steps = executor.steps
    answer = httpx.post(f"{url}/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 3}}, timeout=5)
    assert answer.json()["meta_info"]["completion_tokens"] == 3
    assert executor.steps <= steps + 3
    assert httpx.get(f"{url}/health").status_code == 200


def test_a_client_that_reads_nothing_and_leaves_frees_its_slot(listening: Any, says: Any) -> None:
    """Its socket is full by then, so the server waits in a write and not for the next token."""
    executor = ScriptedExecutor(
        says("a long answer "), num_slots=1, step_s=0.0005, max_context=10**6, num_tokens=10**7, window=8
    )
    url = listening(executor)
    body = json.dumps({"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 500_000}}).encode()
    with socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1]))) as connection:
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert eventually(lambda: executor.steps > 1000), "the engine does not wait for the reader"
        assert len(executor.slots) == 1
    assert eventually(lambda: not executor.slots), "the slot is still taken"


def test_a_client_that_leaves_the_queue_is_never_run(listening: Any, says: Any) -> None:
    executor = ScriptedExecutor(says("abc"), num_slots=1, step_s=0.005, num_tokens=10**6)
    url = listening(executor)
    long = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 1900}}
    with httpx.stream("POST", f"{url}/generate", json=long, timeout=20) as running:
        lines = running.iter_lines()
        next(lines)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/generate", json={"text": "waits"}, timeout=0.1)
        assert eventually(lambda: 'sglang:num_queue_reqs{model_name="tiny"} 0' in httpx.get(f"{url}/metrics").text)
    assert eventually(lambda: not executor.slots)
    assert [kind for kind, _ in executor.log].count("admit") == 1


@pytest.mark.whole
def test_eight_clients_at_once_get_what_one_gets(listening: Any, tokenizer: Tokenizer) -> None:
    """Each prompt has its own script, so an answer that strays to another client shows."""
    executor = ScriptedExecutor(lambda prompt: [*prompt, 70, 71], window=3, step_s=0.001)
    url = listening(executor)
    bodies = [
        {"input_ids": [80 + i, 90 + i], "stream": i % 2 == 0, "sampling_params": {"max_new_tokens": 30 + i}}
        for i in range(16)
    ]

    def ask(body: dict[str, Any]) -> dict[str, Any]:
        if body["stream"]:
            return list(stream(url, body))[-1]
        answer: dict[str, Any] = httpx.post(f"{url}/generate", json=body, timeout=20).json()
        return answer

    alone = [ask(body) for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, bodies))
    assert [a["output_ids"] for a in alone] == [a["output_ids"] for a in together]
    assert [a["text"] for a in alone] == [a["text"] for a in together]
    assert max(len(slots) for kind, slots in executor.log if kind == "decode") > 2
    assert executor.slots == {}


def test_an_idle_engine_uses_no_processor(listening: Any, says: Any) -> None:
    url = listening(ScriptedExecutor(says("abc")))
    httpx.get(f"{url}/health_generate")
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.1
