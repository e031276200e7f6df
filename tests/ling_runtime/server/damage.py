"""Valid request bodies, and one thing made wrong in them: nearer to a client's mistakes than what a schema forbids.

The surprise: some damage leaves a body valid, so whoever sends one may expect an answer as well as a refusal.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

VALID: dict[str, dict[str, Any]] = {
    "/generate": {
        "text": "x",
        "stream": False,
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 0,
        "rid": "one",
        "sampling_params": {
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.1,
            "max_new_tokens": 1,
            "stop": ["a", "b"],
            "ignore_eos": True,
            "sampling_seed": 1,
        },
    },
    "/v1/completions": {"model": "tiny", "prompt": ["x", "y"], "max_tokens": 1, "temperature": 0.5, "stop": ["a"]},
    "/v1/chat/completions": {
        "model": "tiny",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "max_completion_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    },
}
WRONG = (None, True, -1, 0, 10**30, 1e308, -0.5, "", "1", "\ud800", "x" * 3000, [], [[]], [None], {}, {"a": 1})


def damaged(body: dict[str, Any], choose: random.Random) -> bytes:
    """The body with one value replaced, dropped or put into a list, or one key misspelt, at any depth."""
    whole = copy.deepcopy(body)
    places = [*places_in(whole)]
    holder, key = choose.choice(places)
    match choose.randrange(5):
        case 0:
            del holder[key]
        case 1:
            holder[key] = [holder[key]]
        case 2 if isinstance(holder, dict):
            holder[f"{key}s"] = holder.pop(key)
        case _:
            holder[key] = choose.choice(WRONG)
    return json.dumps(whole).encode()


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container below `value` with each of its keys."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places_in(inner)


def garbled(body: dict[str, Any], choose: random.Random) -> bytes:
    """Its bytes with a piece overwritten, missing, or there twice."""
    text = json.dumps(body).encode()
    start, length = choose.randrange(len(text)), choose.randrange(1, 9)
    end = start + length
    noise = choose.randbytes(length)
    return text[:start] + choose.choice([noise, b"", 2 * text[start:end]]) + text[end:]
