"""Clients that come, ask, wait, leave early or ask for the impossible, in an order that a seed fixes.

The surprise: now and then they all stop at a turnstile, so that what is measured in between (memory, the time of a
step) is measured under the same load each time.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMEOUT_S = 120.0
WORDS = "Tom Ann apples pears buys sells each day has 3 4 12 more than half of them in a basket".split()


@dataclass(frozen=True, kw_only=True)
class Wish:
    body: dict[str, Any]
    events: int | None = None
    """Leave a stream after so many chunks; None: stay to the end."""
    patience_s: float | None = None
    """Leave a whole answer after so long; None: wait for it."""
    status: int = 200


def wishes(seed: int) -> Iterator[Wish]:
    choose = random.Random(seed)
    while True:
        stream, leaves = choose.random() < 0.6, choose.random() < 0.3
        text = " ".join(choose.choices(WORDS, k=choose.choice((4, 20, 60, 150))))
        sampling: dict[str, Any] = {
            "max_new_tokens": choose.choice((1, 8, 24, 64)),
            "temperature": choose.choice((0, 0, 0.8)),
            "top_p": choose.choice((1.0, 0.9)),
            "ignore_eos": choose.random() < 0.5,
            "stop": choose.choice((None, ["\n\n"], ["####", "Question"])),
        }
        body = {"text": text, "stream": stream, "return_logprob": choose.random() < 0.2, "sampling_params": sampling}
        if choose.random() < 0.05:
            sampling["max_token"] = 3
            yield Wish(body=body, status=400)
        elif leaves and stream:
            yield Wish(body=body, events=choose.randrange(4))
        elif leaves:
            yield Wish(body=body, patience_s=choose.uniform(0.005, 0.5))
        else:
            yield Wish(body=body)


class Turnstile:
    """Lets clients through one request at a time, or keeps all of them out."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._open = True

    @contextmanager
    def passed(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._open)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Entered when the last client is out."""
        with self._changed:
            self._open = False
            self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._open = True
                self._changed.notify_all()


@dataclass
class Load:
    """`clients` threads against one server; `outcomes` and `problems` are read when it has ended."""

    url: str
    clients: int
    turnstile: Turnstile = field(default_factory=Turnstile)
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        ended = threading.Event()
        threads = [threading.Thread(target=self._client, args=(seed, ended)) for seed in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join(TIMEOUT_S)

    def _client(self, seed: int, ended: threading.Event) -> None:
        pause = random.Random(-seed)
        with httpx.Client(base_url=self.url, timeout=TIMEOUT_S) as http:
            for wish in wishes(seed):
                with self.turnstile.passed():
                    try:
                        outcome = ask(http, wish)
                    except (httpx.HTTPError, AssertionError) as error:
                        outcome = "problem"
                        self.problems.append(f"{wish}: {error!r}")
                self.outcomes[outcome] += 1
                if ended.wait(pause.choice((0, 0, 0.05, 0.2))):
                    return


def ask(http: httpx.Client, wish: Wish) -> str:
    """How it ended: served, left or refused; AssertionError when it should not have ended so."""
    if wish.body["stream"] and wish.status == 200:
        return _stream(http, wish)
    try:
        response = http.post("/generate", json=wish.body, timeout=wish.patience_s or TIMEOUT_S)
    except httpx.ReadTimeout:
        assert wish.patience_s is not None, "no answer"
        return "left"
    assert response.status_code == wish.status, response.text
    if wish.status != 200:
        return "refused"
    _check(wish, response.json())
    return "served"


def _stream(http: httpx.Client, wish: Wish) -> str:
    with http.stream("POST", "/generate", json=wish.body) as response:
        assert response.status_code == 200
        last, events = "", 0
        for line in response.iter_lines():
            if events == wish.events:
                return "left"
            if line == "data: [DONE]":
                _check(wish, json.loads(last))
                return "served"
            if line:
                last, events = line.removeprefix("data: "), events + 1
    raise AssertionError("the stream broke off")


def _check(wish: Wish, answer: dict[str, Any]) -> None:
    meta, asked = answer["meta_info"], wish.body["sampling_params"]["max_new_tokens"]
    assert 1 <= meta["completion_tokens"] <= asked
    assert meta["finish_reason"]["type"] == "stop" or meta["completion_tokens"] == asked
    assert "\ufffd" not in answer["text"]
