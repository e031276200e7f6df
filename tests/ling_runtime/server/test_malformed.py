"""A thousand malformed requests against the real executor: no 500, and afterwards everything is as before.

Some are derived from the published schemas (schemathesis), some are valid bodies with one thing wrong, some are no JSON
or no HTTP at all, some are cut off in mid-body or mid-stream. Deriving costs ten times as much as damaging, so the
default run damages most of its bodies, and the slow one derives a thousand.
"""

from __future__ import annotations

import json
import logging
import random
import re
import socket
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
from damage import VALID, damaged, garbled
from hypothesis import HealthCheck, Phase, given, settings

from ling_runtime.api.exchange import MAX_BODY
from ling_runtime.config import ModelConfig
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.weights import initialise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ling_runtime.executor.step import StepExecutor

pytestmark = pytest.mark.whole

CONTEXT = 64
NEGATIVE = {
    "/generate": 60,
    "/v1/completions": 40,
    "/v1/chat/completions": 40,
    "/start_profile": 20,
    "/flush_cache": 10,
}
MANY = 6
"""Times as many in the slow run."""
DAMAGED = 120
"""Bodies of each kind and path."""
POSITIVE = {"/generate": 12, "/v1/completions": 12, "/v1/chat/completions": 10}
LEAVING = 200

CANARY = {"input_ids": [7, 70, 300], "sampling_params": {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}}


@pytest.fixture(scope="module")
def executor(small_json: dict[str, Any]) -> StepExecutor:
    """Random weights, NEXTN on, a vocabulary that covers the tokenizer's."""
    config = ModelConfig.from_dict(small_json | {"vocab_size": 512})
    return build_executor(config, initialise(config, seed=3), ExecutorSettings(num_steps=3, context_length=CONTEXT))


@pytest.fixture
def url(listening: Any, executor: StepExecutor, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server that is unharmed at the end of the test."""
    monkeypatch.chdir(tmp_path)  # profiles are written where the client says
    url = listening(executor)
    with logged_errors() as errors:
        before = greedy(url)
        yield url
        assert eventually(lambda: state(url)["num_running_reqs"] + state(url)["num_queue_reqs"] == 0)
        free = state(url)
        assert (free["free_slots"], free["free_pages"]) == (free["slots"], free["pages"])
        assert httpx.get(f"{url}/health_generate").status_code == 200
        assert greedy(url) == before
    assert errors == []


@contextmanager
def logged_errors() -> Iterator[list[str]]:
    """What the server logs as an error meanwhile; uvicorn's loggers do not propagate."""
    messages: list[str] = []

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Notes(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "ling_runtime")]
    for logger in loggers:
        logger.addHandler(handler)
    yield messages
    for logger in loggers:
        logger.removeHandler(handler)


def state(url: str) -> dict[str, int]:
    state: dict[str, int] = httpx.get(f"{url}/server_info").json()["internal_states"][0]
    return state


def greedy(url: str) -> list[int]:
    ids: list[int] = httpx.post(f"{url}/generate", json=CANARY, timeout=20).json()["output_ids"]
    return ids


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def each_case(url: str, path: str, mode: Any, count: int, check: Callable[[Any, Any], None]) -> int:
    """Send `count` cases drawn from the published schema of a path; the number that was sent."""
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path]["POST"]
    sent = 0

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        nonlocal sent
        sent += 1
        check(case, case.call(timeout=20))

    send()
    return sent


@pytest.mark.parametrize("times", [1, pytest.param(MANY, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", NEGATIVE)
def test_what_the_schema_forbids_is_refused_and_explained(url: str, path: str, times: int) -> None:
    def check(case: Any, response: Any) -> None:
        assert response.status_code < 500, case.as_curl_command()
        if path == "/flush_cache" or case.body is schemathesis.core.NOT_SET:
            return  # a query parameter too many, or a profile without wishes, is no error
        assert response.status_code >= 400, case.as_curl_command()
        assert json.loads(response.content)["error"]["message"]

    count = times * NEGATIVE[path]
    assert each_case(url, path, schemathesis.GenerationMode.NEGATIVE, count, check) == count


@pytest.mark.parametrize("path", POSITIVE)
def test_what_the_schema_allows_is_served_or_explained(url: str, path: str) -> None:
    """The schema cannot say that a prompt is too long or that two lists differ in length."""
    served = 0

    def check(case: Any, response: Any) -> None:
        nonlocal served
        served += response.status_code == 200
        assert response.status_code in (200, 400), case.as_curl_command()

    each_case(url, path, schemathesis.GenerationMode.POSITIVE, POSITIVE[path], check)
    assert served > 0


@pytest.mark.parametrize("harm", [damaged, garbled])
@pytest.mark.parametrize("path", VALID)
def test_a_valid_body_with_one_thing_wrong_is_refused_or_served(url: str, path: str, harm: Any) -> None:
    """Some damage leaves a body valid, so what counts is that nothing is a fault of the server."""
    choose, refused = random.Random(path), 0
    with httpx.Client(base_url=url, timeout=20) as client:
        assert client.post(path, json=VALID[path]).status_code == 200
        for _ in range(DAMAGED):
            body = harm(VALID[path], choose)
            response = client.post(path, content=body)
            assert response.status_code in (200, 400, 404), body
            if response.status_code != 200:
                refused += 1
                assert response.json()["error"]["message"], body
    assert refused > DAMAGED / 2


NOT_JSON = {
    "empty": b"",
    "cut": b'{"text": "x", "sampling_params": {',
    "invalid UTF-8": b'{"text": "\xff\xfe\xc3("}',
    "binary": bytes(range(256)) * 40,
    "a form": b"text=x&stream=true",
    "deep list": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep object": b'{"text": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "a number of many digits": b'{"text": "x", "sampling_params": {"temperature": ' + b"9" * 5000 + b"}}",
    "two values": b'{"text": "x"}{"text": "y"}',
}
NOT_ALLOWED = {
    "NaN": b'{"text": "x", "sampling_params": {"temperature": NaN}}',
    "Infinity": b'{"text": "x", "sampling_params": {"top_p": Infinity}}',
    "-Infinity": b'{"text": "x", "sampling_params": {"min_p": -Infinity}}',
    "1e999": b'{"text": "x", "sampling_params": {"temperature": 1e999}}',
    "huge integer": b'{"text": "x", "sampling_params": {"temperature": ' + b"9" * 400 + b"}}",
    "seed of 65 bits": b'{"text": "x", "sampling_params": {"sampling_seed": 18446744073709551616}}',
    "half a surrogate pair": b'{"text": "\\ud83d", "rid": "\\udc00"}',
    "half a pair as a stop": b'{"text": "x", "sampling_params": {"stop": "\\ud83d"}}',
    "half a pair as a key": b'{"text": "x", "\\ud83d": 1}',
    "nested where a flag is wanted": b'{"text": "x", "stream": ' + b"[" * 400 + b"]" * 400 + b"}",
    "nested where nothing is wanted": b'{"text": "x", "lora_path": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}",
    "a long text": b'{"text": "' + b"word " * 1_000_000 + b'"}',
    "a text without spaces": b'{"text": "' + b"x" * 1_000_000 + b'"}',
    "long ids": b'{"input_ids": [' + b"5," * 1_000_000 + b"5]}",
    "many prompts": b'{"text": [' + b'"x",' * 100_000 + b'"x"]}',
    "a long unknown key": b'{"text": "x", "' + b"k" * 1_000_000 + b'": 1}',
}


@pytest.mark.parametrize("bodies", [NOT_JSON, NOT_ALLOWED], ids=["not JSON", "not allowed"])
def test_raw_bodies_are_refused_briefly(url: str, bodies: dict[str, bytes]) -> None:
    answers = {name: httpx.post(f"{url}/generate", content=body, timeout=20) for name, body in bodies.items()}
    assert {name: answer.status_code for name, answer in answers.items()} == dict.fromkeys(bodies, 400)
    assert max(len(answer.json()["error"]["message"]) for answer in answers.values()) < 1000


def test_the_content_type_does_not_matter(url: str) -> None:
    """curl sends a form's unless told otherwise."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "*"):
        response = httpx.post(f"{url}/generate", content=json.dumps(CANARY), headers={"content-type": kind})
        assert response.status_code == 200, kind


def test_a_body_without_end_is_cut_off(url: str) -> None:
    sent, piece = 0, b" " * (1 << 20)
    with connection_to(url) as connection, suppress(ConnectionError):
        connection.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (1 << 40))
        while sent < 4 * MAX_BODY:
            connection.sendall(piece)
            sent += len(piece)
    assert MAX_BODY <= sent < 4 * MAX_BODY


NOT_HTTP = {
    "words": b"GARBAGE\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    "negative length": b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "bad chunk": b"POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "long path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
}


def test_what_is_no_http_gets_no_500(url: str) -> None:
    for name, head in NOT_HTTP.items():
        with connection_to(url) as connection, suppress(ConnectionError):
            connection.sendall(head)
            connection.shutdown(socket.SHUT_WR)
            assert b" 500 " not in connection.recv(1000), name


def test_clients_that_leave_anywhere_free_everything(url: str) -> None:
    """Cut at a random byte of the request, or after a random wait in mid-answer, some with a reset."""
    choose = random.Random(20)
    for _ in range(LEAVING):
        body = {**CANARY, "stream": choose.random() < 0.6}
        body["sampling_params"] = {"max_new_tokens": 50, "ignore_eos": True, "temperature": choose.choice([0, 1])}
        leave(url, json.dumps(body).encode(), choose)
    aborted = re.search(r"num_aborted_requests_total.* (\d+)", httpx.get(f"{url}/metrics").text)
    assert aborted is not None
    assert int(aborted[1]) > LEAVING / 10, "too few were running when their client left"


def leave(url: str, content: bytes, choose: random.Random) -> None:
    raw = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    cut = choose.choice([choose.randrange(1, len(raw)), len(raw), len(raw)])
    with connection_to(url) as connection:
        connection.sendall(raw[:cut])
        if cut == len(raw):
            connection.settimeout(choose.uniform(0.001, 0.06))
            with suppress(TimeoutError):
                connection.recv(choose.choice([1, 200, 4000]))
        if choose.random() < 0.5:  # RST instead of FIN
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def connection_to(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=10)
