"""The protocol client against the fake engine: what comes back, and what it refuses to believe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from experiments.clients.connection import events, head
from experiments.clients.generate import GenerateClient, ProtocolError, generation
from experiments.server import Server
from tests.fakes import language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from experiments.spec import CellSpec

pytestmark = pytest.mark.process

PROMPT = "hello"


@pytest.fixture
def client(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Iterator[GenerateClient]:
    with Server(make_cell(), log=tmp_path / "log") as server:
        server.wait_ready(10.0)
        yield server.client


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_carries_ids_counts_and_reason(client: GenerateClient, *, stream: bool) -> None:
    answer = client.generate(text=PROMPT, max_new_tokens=12, stream=stream)
    expected = language.continuation(language.encode(PROMPT), 12)
    assert (answer.output_ids, answer.text) == (expected, language.decode(expected))
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (5, 12, "length")
    assert answer.spec_verify_ct == language.steps(12, 4)[-1].verifies
    assert (answer.ttft_s is not None) == stream
    assert answer.latency_s > (answer.ttft_s or 0.0)


def test_ids_go_in_as_text_does(client: GenerateClient) -> None:
    ids = client.generate(input_ids=language.encode(PROMPT), max_new_tokens=9)
    assert ids.output_ids == client.generate(text=PROMPT, max_new_tokens=9).output_ids


def test_a_stop_string_ends_and_is_named(client: GenerateClient) -> None:
    answer = client.generate(text="Question: x\nAnswer:", max_new_tokens=60, stop=("Question",))
    assert (answer.finish_reason, answer.matched) == ("stop", "Question")
    assert answer.text.endswith("#### 42\n\n")


def test_alternatives_come_as_pairs(client: GenerateClient) -> None:
    answer = client.generate(
        text=PROMPT, max_new_tokens=3, return_logprob=True, top_logprobs_num=2, logprob_start_len=0
    )
    assert answer.output_top_logprobs is not None
    assert answer.input_top_logprobs is not None
    assert [row[0] for row in answer.output_top_logprobs] == [(-0.125, token) for token in answer.output_ids]
    assert len(answer.input_top_logprobs) == answer.prompt_tokens
    assert answer.output_token_logprobs == tuple((-0.125, token) for token in answer.output_ids)


def test_the_other_calls(client: GenerateClient) -> None:
    client.health()
    client.health_generate()
    assert client.model_info()["model_path"]
    client.generate(text=PROMPT, max_new_tokens=5)
    assert client.server_info()["steps"]["count"] > 0
    client.flush_cache()
    assert client.server_info()["steps"]["count"] == 0


def test_counts_that_contradict_the_ids_are_refused() -> None:
    meta = {"finish_reason": {"type": "length"}, "prompt_tokens": 1, "completion_tokens": 4}
    payload = {"text": "abc", "output_ids": [1, 2, 3], "meta_info": meta}
    with pytest.raises(ProtocolError, match="3 output_ids but completion_tokens = 4"):
        generation(payload, ttft_s=None, latency_s=0.0)


def test_a_stream_that_breaks_off_is_no_answer(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    with Server(make_cell("drop_mid_stream"), log=tmp_path / "log") as server:
        server.wait_ready(10.0)
        with pytest.raises(ProtocolError, match=r"before \[DONE\]"):
            server.client.generate(text=PROMPT, max_new_tokens=12, stream=True)


def test_refusals_name_call_status_and_body(client: GenerateClient) -> None:
    refusal = r'POST /flush_cache\?timeout=60: HTTP 404: \{"error": "not found"\}'
    with GenerateClient(client.base_url + "/nowhere") as lost, pytest.raises(ProtocolError, match=refusal):
        lost.flush_cache()


def test_a_body_is_shown_on_one_line_and_a_web_page_not_at_all() -> None:
    assert head('{"error":\n  "not found"}') == '{"error": "not found"}'
    assert head("\n<!doctype html>\n<html>...") == "a web page"


def test_an_error_inside_a_stream_is_raised() -> None:
    with pytest.raises(ProtocolError, match="out of slots"):
        list(events(iter(['data: {"error": {"message": "out of slots"}}']), "POST /generate"))


@pytest.mark.parametrize("payload", [{}, {"text": "x", "output_ids": [1], "meta_info": {"finish_reason": None}}])
def test_a_malformed_answer_is_shown(payload: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="malformed answer"):
        generation(payload, ttft_s=None, latency_s=0.0)
