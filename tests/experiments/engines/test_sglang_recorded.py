"""What a real SGLang 0.5.23 answered, recorded on a CPU, read by the client, the gates and the activation proof.

Where it differs from our own server: it refuses to flush for a moment after an answer, the first position has no
logprob, `meta_info` has keys of its own and none of speculation, and a cached prefix changes the bits of the rest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from omegaconf import OmegaConf

from experiments.clients.connection import ProtocolError, events
from experiments.clients.generate import GenerateClient, Generation, generation
from experiments.engines.registry import engine_of
from experiments.spec import EngineSpec, SpeculationSpec
from gates.engine import engine_traits
from gates.probe import float32_bits
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.spec import CellSpec

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "recorded/sglang-0.5.23-cpu.json").read_text())


def answer(name: str) -> Generation:
    return generation(RECORDED[name]["body"], ttft_s=None, latency_s=0.1)


def answered_by(serve: Callable[[httpx.Request], httpx.Response]) -> GenerateClient:
    client = GenerateClient("http://recorded")
    client._http = httpx.Client(base_url=client.base_url, transport=httpx.MockTransport(serve))
    return client


def test_a_generation() -> None:
    seen = answer("greedy")
    assert (seen.completion_tokens, len(seen.output_ids), seen.finish_reason) == (8, 8, "length")
    assert seen.spec_verify_ct is None
    assert seen.output_top_logprobs is None


def test_alternatives_at_every_position_best_first() -> None:
    seen = answer("logprobs")
    assert seen.output_top_logprobs is not None
    assert [len(row) for row in seen.output_top_logprobs] == [5] * 4
    assert [row[0][1] for row in seen.output_top_logprobs] == [*seen.output_ids]
    assert all(row == tuple(sorted(row, reverse=True)) for row in seen.output_top_logprobs)


def test_the_first_position_of_a_prompt_has_no_logprob() -> None:
    seen = answer("input_logprobs")
    assert seen.input_token_logprobs is not None
    assert seen.input_top_logprobs is not None
    assert seen.input_token_logprobs[0] == (None, 310)
    assert seen.input_top_logprobs[0] == ()
    assert len(seen.input_token_logprobs) == seen.prompt_tokens


def test_a_stop_string_is_named_and_cut_off() -> None:
    seen = answer("stop_string")
    assert (seen.finish_reason, seen.matched) == ("stop", "sti")
    assert "sti" not in seen.text
    assert seen.completion_tokens == len(seen.output_ids)


def test_a_stream_ends_with_all_of_the_answer() -> None:
    last = [*events(iter(RECORDED["stream"]["body"]), "POST /generate")][-1]
    seen = generation(last, ttft_s=0.1, latency_s=0.2)
    assert seen.output_ids == answer("greedy").output_ids[:3]
    assert answer("greedy").text.startswith(seen.text)


def test_a_flush_waits_until_the_server_is_idle() -> None:
    """Eleven of forty flushes right behind an answer were refused, and each prompt of a gate begins with one."""
    asked = []

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        said = RECORDED["flush_waits" if float(request.url.params.get("timeout", 0)) else "flush_busy"]
        return httpx.Response(said["status"], text=said["body"])

    with answered_by(serve) as client:
        client.flush_cache()
    assert asked == ["/flush_cache"]
    assert RECORDED["flush_busy"]["status"] == 400


@pytest.mark.parametrize(("name", "why"), [("too_long", "longer than"), ("unknown_sampling", "no_such")])
def test_a_refusal_says_why(name: str, why: str) -> None:
    said = RECORDED[name]
    client = answered_by(lambda _: httpx.Response(said["status"], json=said["body"]))
    with client, pytest.raises(ProtocolError, match=f"HTTP 400: .*{why}"):
        client.generate(text="x", max_new_tokens=1)


def test_a_cached_prefix_changes_the_bits_of_a_token_that_stays() -> None:
    """Why its digest binds nobody: the same prompt, the same token, once from the cache and once computed whole."""
    cached, whole = answer("logprobs"), answer("input_logprobs")
    assert cached.output_token_logprobs is not None
    assert whole.output_token_logprobs is not None
    (warm, first), (cold, again) = cached.output_token_logprobs[0], whole.output_token_logprobs[0]
    assert first == again
    assert warm is not None
    assert cold is not None
    assert float32_bits(warm) != float32_bits(cold)
    assert warm == pytest.approx(cold, abs=1e-5)
    traits = engine_traits("sglang_cpu")
    assert not traits.ours
    assert not traits.row_invariant


@pytest.fixture
def cell(make_cell: Callable[..., CellSpec]) -> CellSpec:
    """With the values that the server was launched with."""
    values: Any = OmegaConf.to_container(OmegaConf.load(ROOT / "conf/engine/sglang_cpu.yaml"))
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    del values["defaults"]
    return make_cell(engine=EngineSpec(**values), speculation=SpeculationSpec())


def test_the_server_proves_every_flag_that_it_was_given(cell: CellSpec) -> None:
    engine, info = engine_of(cell), RECORDED["server_info"]["body"]
    expected = engine.expected(cell)
    assert {"--attention-backend", "--sleep-on-idle", "--max-total-tokens", "--dtype"} <= expected.keys()
    assert expected["--random-seed"] == "0", "0 is a value like others"
    assert engine.observed(cell, info, log="") == expected


def test_a_flag_that_it_did_not_take_is_seen(cell: CellSpec) -> None:
    engine, info = engine_of(cell), RECORDED["server_info"]["body"]
    other = engine.observed(cell, info | {"attention_backend": "intel_amx"}, log="")
    assert other["--attention-backend"] == "intel_amx"
    assert other != engine.expected(cell)
