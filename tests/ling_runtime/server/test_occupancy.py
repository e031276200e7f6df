"""What requests hold, as /server_info and /metrics tell it: nothing at rest, and a leak shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import httpx
from scripted import ScriptedExecutor

from tests.ling_runtime.soak.gauges import unreturned

if TYPE_CHECKING:
    import pytest

BODY = {"input_ids": [7] * 10, "stream": True, "sampling_params": {"max_new_tokens": 90, "ignore_eos": True}}


def free(url: str) -> tuple[int, int]:
    state = httpx.get(f"{url}/server_info").json()["internal_states"][0]
    return state["free_slots"], state["free_pages"]


def test_a_running_request_holds_a_slot_and_its_worst_case(listening: Any, says: Any) -> None:
    executor = ScriptedExecutor(says("abc"), num_slots=3, num_tokens=1000, step_s=0.01)
    url = listening(executor)
    assert free(url) == (3, 1000)
    with httpx.stream("POST", f"{url}/generate", json=BODY) as response:
        lines = response.iter_lines()
        next(lines)
        assert free(url) == (2, 900)
        metrics = httpx.get(f"{url}/metrics").text
        assert re.search(r"ling_runtime:free_slots{.*} 2\n", metrics)
        assert re.search(r"ling_runtime:free_pages{.*} 900\n", metrics)
        assert unreturned(url, patience_s=0.05) == ("1 num_running_reqs", "1 slots", "100 pages")
    assert unreturned(url) == ()
    assert free(url) == (3, 1000)


def test_a_slot_that_is_not_given_back_is_seen(listening: Any, says: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = ScriptedExecutor(says("abc"))
    url = listening(executor)
    monkeypatch.setattr(executor, "release", lambda slot: None)
    httpx.post(f"{url}/generate", json=BODY).raise_for_status()
    assert unreturned(url, patience_s=0.1) == ("1 slots", "100 pages")
