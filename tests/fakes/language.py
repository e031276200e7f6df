"""What the fake engine says: a pure function of prompt, position and fault, so that every expectation can be computed.

Token ids are bytes. The surprise: the number of tokens a verify step yields depends on the position alone, so accept
length is a number known in advance (1, 2, ..., W, 1, 2, ... tokens a step).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

ANSWER = " Two and forty make 42.\n#### 42\n\nQuestion"
"""What follows a prompt in GSM8K's form; other prompts are continued by letters."""


@dataclass(frozen=True)
class Step:
    """One verify step: tokens emitted so far, verify steps so far (the first token comes from prefill)."""

    tokens: int
    verifies: int


def encode(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def decode(ids: tuple[int, ...]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def continuation(prompt: tuple[int, ...], length: int, *, salt: str = "") -> tuple[int, ...]:
    """The `length` greedy tokens after a prompt; `salt` gives other tokens from position 40 on."""
    text = decode(prompt)
    answer = encode(ANSWER)[:length] if text.endswith("Answer:") else ()
    return answer + tuple(_letter(text, i, salt if i >= 40 else "") for i in range(len(answer), length))


def steps(total: int, window: int) -> list[Step]:
    """Prefill's token, then verify steps of 1, 2, ..., window, 1, ... tokens until `total`."""
    done = [Step(1, 0)]
    while done[-1].tokens < total:
        last = done[-1]
        done.append(Step(min(total, last.tokens + 1 + last.verifies % window), last.verifies + 1))
    return done


def accept_length(total: int, window: int) -> float:
    """Accept length of a request of `total` tokens (decisions: (n - 1) / verifies)."""
    last = steps(total, window)[-1]
    return (last.tokens - 1) / last.verifies


def logprobs(ids: tuple[int, ...]) -> list[list[float | int | None]]:
    return [[-0.125, token, None] for token in ids]


def alternatives(ids: tuple[int, ...], count: int) -> list[list[list[float | int | None]]]:
    return [[[-0.125 - 2.0 * rank, (token + rank) % 256, None] for rank in range(count)] for token in ids]


def _letter(text: str, position: int, salt: str) -> int:
    digest = hashlib.sha256(f"{salt}|{position}|{text}".encode()).digest()
    return ord("a") + digest[0] % 26
