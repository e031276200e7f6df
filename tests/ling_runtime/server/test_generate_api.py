"""/generate and the calls around it, in process: fields of the protocol, refusals, batches, logprobs, failure."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from scripted import ScriptedExecutor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import httpx

    from ling_runtime.tokenizer import Tokenizer

ANSWER = " There are 12 apples.\n#### 12\n\nQuestion: and then"


@pytest.fixture
def ask(in_process: Any) -> Callable[..., Any]:
    """Run a coroutine function against a server over this executor."""

    def run(executor: ScriptedExecutor, talk: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async def conversation() -> Any:
            async with in_process(executor) as client:
                return await asyncio.wait_for(talk(client), 20)

        return asyncio.run(conversation())

    return run


@pytest.fixture
def generate(ask: Any, says: Any) -> Callable[..., httpx.Response]:
    """One POST /generate against a fresh server that says ANSWER."""

    def call(body: Any, **executor: Any) -> httpx.Response:
        content = json.dumps(body).encode()  # httpx's own encoding cannot spell half a surrogate pair
        return ask(ScriptedExecutor(says(ANSWER), **executor), lambda c: c.post("/generate", content=content))

    return call


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_an_answer_has_the_protocols_fields(generate: Any, tokenizer: Tokenizer) -> None:
    answer = generate(
        {"text": "How many?", "rid": "mine", "sampling_params": {"max_new_tokens": 5, "temperature": 0}}
    ).json()
    assert answer["output_ids"] == tokenizer.encode(ANSWER)[:5]
    assert answer["text"].encode() == b"".join(map(tokenizer.token_bytes, answer["output_ids"]))
    meta = answer["meta_info"]
    assert meta.pop("e2e_latency") > 0
    assert meta == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 5},
        "prompt_tokens": len(tokenizer.encode("How many?")),
        "completion_tokens": 5,
        "cached_tokens": 0,
        "weight_version": "default",
    }


def test_stop_strings_and_stop_tokens_say_what_matched(generate: Any, tokenizer: Tokenizer) -> None:
    answer = generate({"text": "How many?", "sampling_params": {"stop": ["Question", "Assistant:"]}}).json()
    assert answer["text"] == ANSWER[: ANSWER.index("Question")]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": "Question"}
    (apples,) = tokenizer.encode(" apples")
    answer = generate({"text": "How many?", "sampling_params": {"stop_token_ids": [apples]}}).json()
    assert answer["text"] == " There are 12"
    assert answer["output_ids"][-1] == apples
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": apples}


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_every_end_of_sequence_id_ends_the_answer(ask: Any, ignore_eos: bool) -> None:
    """generation_config.json lists two; the script repeats its tokens."""
    body = {"text": "x", "sampling_params": {"max_new_tokens": 7, "ignore_eos": ignore_eos}}
    for eos in (0, 1):
        executor = ScriptedExecutor(lambda _, eos=eos: [70, 71, eos])
        answer = ask(executor, lambda client: client.post("/generate", json=body)).json()
        expected = {"type": "length", "length": 7} if ignore_eos else {"type": "stop", "matched": eos}
        assert answer["meta_info"]["finish_reason"] == expected
        assert len(answer["output_ids"]) == (7 if ignore_eos else 3)


def test_the_stream_is_cumulative_and_ends_like_the_whole(generate: Any) -> None:
    body = {"text": "How many?", "sampling_params": {"max_new_tokens": 12, "temperature": 0}}
    whole = generate(body, window=3).json()
    response = generate({**body, "stream": True}, window=3)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response)
    for before, after in itertools.pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
        assert "e2e_latency" not in before["meta_info"]
        assert before["meta_info"]["completion_tokens"] == len(before["output_ids"])
    last = chunks[-1]
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    for key in ("finish_reason", "completion_tokens", "prompt_tokens", "spec_verify_ct"):
        assert last["meta_info"][key] == whole["meta_info"][key]


def test_speculation_keys_follow_sglangs_meaning(generate: Any) -> None:
    meta = generate({"text": "How many?", "sampling_params": {"max_new_tokens": 12}}, window=3).json()["meta_info"]
    histogram = meta["spec_correct_drafts_histogram"]
    assert len(histogram) == 3
    assert sum(histogram) == meta["spec_verify_ct"] > 0
    assert meta["spec_num_correct_drafts"] == sum(k * count for k, count in enumerate(histogram))
    assert meta["spec_num_proposed_drafts"] == 2 * meta["spec_verify_ct"]
    assert meta["spec_accept_length"] == pytest.approx(12 / meta["spec_verify_ct"])
    assert meta["spec_accept_rate"] == pytest.approx(meta["spec_num_correct_drafts"] / (2 * meta["spec_verify_ct"]))


def test_without_speculation_there_are_no_spec_keys(generate: Any) -> None:
    meta = generate({"text": "How many?", "sampling_params": {"max_new_tokens": 12}}).json()["meta_info"]
    assert not [key for key in meta if key.startswith("spec_")]


def test_input_ids_need_no_tokenizer(generate: Any) -> None:
    meta = generate({"input_ids": [10, 11, 12], "sampling_params": {"max_new_tokens": 2}}).json()["meta_info"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (3, 2)


def test_logprobs_have_sglangs_shape(generate: Any) -> None:
    body = {
        "input_ids": [10, 11, 12, 13],
        "sampling_params": {"max_new_tokens": 2},
        "return_logprob": True,
        "top_logprobs_num": 2,
        "logprob_start_len": 1,
    }
    answer = generate(body, chunk=2).json()
    meta = answer["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 11, None], [-1.5, 12, None], [-1.625, 13, None]]
    assert meta["input_top_logprobs"] == [None, *[[[0.0, 0, None], [-0.25, 1, None]]] * 2]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    assert [len(row) for row in meta["output_top_logprobs"]] == [2, 2]
    del body["logprob_start_len"], body["top_logprobs_num"]
    meta = generate(body).json()["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert "output_top_logprobs" not in meta


def test_a_prompt_can_be_scored_without_generating(generate: Any) -> None:
    body = {"input_ids": [10, 11, 12], "return_logprob": True, "logprob_start_len": 0}
    answer = generate({**body, "sampling_params": {"max_new_tokens": 0}}).json()
    assert answer["output_ids"] == []
    assert [entry[1] for entry in answer["meta_info"]["input_token_logprobs"]] == [10, 11, 12]
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 0}


def test_a_list_of_prompts_gives_a_list_of_answers(generate: Any) -> None:
    lengths = [{"max_new_tokens": 2}, {"max_new_tokens": 3}]
    answers = generate({"text": ["a", "b"], "sampling_params": lengths}).json()
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [2, 3]
    answers = generate({"input_ids": [[10], [11, 12]], "sampling_params": {"max_new_tokens": 1}}).json()
    assert [answer["meta_info"]["prompt_tokens"] for answer in answers] == [1, 2]
    assert len(generate({"text": ["one"], "sampling_params": {"max_new_tokens": 1}}).json()) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"text": "x", "sampling_params": {"max_token": 3}}, "unknown key 'max_token'"),
        ({"text": "x", "sampling_params": {"temperature": "warm"}}, "temperature must be a finite number"),
        ({"text": "x", "sampling_params": {"presence_penalty": 1}}, "presence_penalty=1 is not supported"),
        ({"text": "x", "sampling_parms": {}}, "unknown key 'sampling_parms'"),
        ({"text": "x", "lora_path": "adapter"}, "lora_path='adapter' is not supported"),
        ({"text": "x", "stream": "yes"}, "stream must be a boolean"),
        ({"text": "half \ud83d a pair"}, "lone surrogate at 5"),
        ({"text": 3}, "text must be a string"),
        ({"text": "x", "input_ids": [1]}, "either text or input_ids"),
        ({}, "either text or input_ids"),
        ([], "must be a JSON object"),
        ({"text": ""}, "empty"),
        ({"input_ids": []}, "empty"),
        ({"input_ids": [1, "2"]}, "list of integers"),
        ({"input_ids": [1, True]}, "list of integers"),
        ({"input_ids": [512]}, "id 512 is outside the vocabulary; allowed: 0 to 511"),
        ({"input_ids": [-1]}, "id -1 is outside the vocabulary"),
        ({"text": "x", "sampling_params": {"stop_token_ids": [512]}}, "stop_token_ids: id 512"),
        ({"input_ids": [5] * 64}, r"The input \(64 tokens\) is longer than the model's context length \(64 tokens\)"),
        ({"input_ids": [5] * 60, "sampling_params": {"max_new_tokens": 5}}, "60 tokens of input and max_new_tokens=5"),
        ({"text": "x", "return_logprob": True, "logprob_start_len": 99}, "logprob_start_len=99"),
        ({"text": "x", "top_logprobs_num": -1}, "top_logprobs_num must be an integer of at least 0"),
        ({"text": ["a", "b"], "stream": True}, "cannot be streamed"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "1 entries for 2 prompts"),
        ({"text": ["a"] * 4097}, "4097 prompts in one call; allowed: 4096"),
        ({"text": "never encoded " * 10_000}, r"\(140000 characters\) is longer than the model's context"),
        ({"text": "x", "sampling_params": {"temperature": 10**400}}, "temperature must be a finite number"),
        ({"text": "x", "sampling_params": {"stop": ["half \ud83d"]}}, "stop must be Unicode text"),
        ({"text": "x", "sampling_params": {"n": True}}, "n=True is not supported here; allowed: None or 1"),
        ({"text": "x", "half \ud83d": 1}, "unknown key"),
        ({"text": "x", "rid": "r" * 257}, "rid must be a string of at most 256 characters"),
        ({"text": "x", "lora_path": "long" * 1000}, r"lora_path='long.{40,80}' is not supported"),
        ({"text": "x", "stream": nested(300)}, r"stream must be a boolean, got list \[\["),
    ],
)
def test_a_bad_request_is_told_why(generate: Any, body: Any, reason: str) -> None:
    response = generate(body, max_context=64)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == 400
    assert error["type"] == "BadRequestError"
    assert re.search(reason, error["message"])


def test_the_server_lives_on_after_refusals(ask: Any, says: Any) -> None:
    async def talk(client: httpx.AsyncClient) -> list[int]:
        broken = await client.post("/generate", content=b"{not json")
        deep = await client.post("/generate", content=b"[" * 100_000)
        assert deep.status_code == 400
        unknown = await client.post("/generate", json={"text": "x", "what": 1})
        fine = await client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 1}})
        return [broken.status_code, unknown.status_code, fine.status_code]

    assert ask(ScriptedExecutor(says("a")), talk) == [400, 400, 200]


def test_a_length_of_null_fills_the_context(generate: Any) -> None:
    body = {"input_ids": [5] * 10, "sampling_params": {"max_new_tokens": None}}
    assert generate(body, max_context=64).json()["meta_info"]["completion_tokens"] == 54


def test_a_request_larger_than_the_cache_is_refused(generate: Any) -> None:
    body = {"input_ids": [5] * 10, "sampling_params": {"max_new_tokens": 50}}
    response = generate(body, num_tokens=32)
    assert response.status_code == 400
    assert "never fit" in response.json()["error"]["message"]
    assert "never fit" in events(generate({**body, "stream": True}, num_tokens=32))[0]["error"]["message"]


def test_seeds_are_the_requests_or_come_from_the_server(ask: Any, says: Any) -> None:
    executor = ScriptedExecutor(says("a"), num_slots=8)
    seen: list[int] = []
    admit = executor.admit
    executor.admit = lambda asked: seen.append(asked.sampling.seed) or admit(asked)  # type: ignore[method-assign,func-returns-value]

    async def talk(client: httpx.AsyncClient) -> None:
        for params in ({"sampling_seed": 41}, {}, {}):
            await client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 1, **params}})

    ask(executor, talk)
    assert seen[0] == 41
    assert seen[1] != seen[2]


def test_server_info_counts_since_the_flush(ask: Any, says: Any) -> None:
    async def talk(client: httpx.AsyncClient) -> tuple[Any, Any]:
        await client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 20}})
        before = (await client.get("/server_info")).json()
        assert (await client.post("/flush_cache?timeout=60.0")).status_code == 200
        return before, (await client.get("/get_server_info")).json()

    before, after = ask(ScriptedExecutor(says(ANSWER), window=3), talk)
    steps = before["steps"]
    assert steps["count"] == sum(steps["buckets"]) > 0
    assert len(steps["buckets"]) == len(steps["bucket_edges_ms"]) + 1
    assert steps["total_s"] > 0
    assert 1 <= before["internal_states"][0]["avg_spec_accept_length"] <= 3
    assert before["kernels"] == [
        {"operator": "linear", "variant": "reference", "numerics": "reference", "calls": steps["count"]}
    ]
    assert (before["served_model_name"], before["max_running_requests"], before["context_length"]) == ("tiny", 8, 2048)
    assert before["executor"] == {"path": "eager", "threads": 1}
    assert before["host"]["gc_threshold"] == list(gc.get_threshold())
    assert after["steps"]["count"] == 0
    assert after["internal_states"][0]["avg_spec_accept_length"] is None
    assert after["kernels"][0]["calls"] == 0


def test_flush_is_refused_while_a_request_runs(ask: Any, says: Any) -> None:
    async def talk(client: httpx.AsyncClient) -> tuple[int, int]:
        running = asyncio.ensure_future(
            client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 60}})
        )
        await asyncio.sleep(0.1)
        at_once = await client.get("/flush_cache")
        patient = await client.post("/flush_cache?timeout=10")
        assert (await asyncio.wait_for(running, 1)).status_code == 200
        assert "pending requests" in at_once.json()["error"]["message"]
        return at_once.status_code, patient.status_code

    assert ask(ScriptedExecutor(says("abc"), step_s=0.01), talk) == (400, 200)


def test_information_and_health(ask: Any, says: Any) -> None:
    async def talk(client: httpx.AsyncClient) -> dict[str, httpx.Response]:
        paths = ("/health", "/health_generate", "/v1/models", "/model_info", "/get_model_info", "/metrics")
        return {path: await client.get(path) for path in paths}

    answers = ask(ScriptedExecutor(says("a")), talk)
    assert {response.status_code for response in answers.values()} == {200}
    assert answers["/v1/models"].json()["data"][0]["id"] == "tiny"
    info = answers["/model_info"].json()
    assert info == answers["/get_model_info"].json()
    assert info["model_path"]
    assert info["is_generation"] is True
    metrics = answers["/metrics"].text
    assert 'sglang:generation_tokens_total{model_name="tiny"} 1\n' in metrics  # health_generate's
    assert 'sglang:e2e_request_latency_seconds_bucket{model_name="tiny",le="+Inf"} 1\n' in metrics


def test_health_generate_does_not_wait_behind_running_requests(ask: Any, says: Any) -> None:
    async def talk(client: httpx.AsyncClient) -> int:
        body = {"text": "x", "sampling_params": {"max_new_tokens": 1000}}
        running = [asyncio.ensure_future(client.post("/generate", json=body)) for _ in range(9)]
        await asyncio.sleep(0.1)
        status = (await asyncio.wait_for(client.get("/health_generate"), 2)).status_code
        for task in running:
            task.cancel()
        return status

    assert ask(ScriptedExecutor(says("abc"), step_s=0.01, num_tokens=10**6), talk) == 200


def test_the_engines_failure_reaches_every_request_and_health(ask: Any, says: Any) -> None:
    async def talk(client: httpx.AsyncClient) -> tuple[list[httpx.Response], httpx.Response, httpx.Response]:
        body = {"text": "x", "sampling_params": {"max_new_tokens": 50}}
        answers = await asyncio.gather(
            *(client.post("/generate", json=body) for _ in range(9)),
            client.post("/generate", json={**body, "stream": True}),
        )
        return answers, await client.get("/health"), await client.post("/generate", json=body)

    executor = ScriptedExecutor(says("abc"), num_slots=4, step_s=0.02, fail_at_step=5)
    (*whole, stream), health, later = ask(executor, talk)
    assert {response.status_code for response in whole} == {500}
    assert "a kernel went wrong" in whole[0].json()["error"]["message"]
    assert events(stream)[-1]["error"]["code"] == 500
    assert health.status_code == 503
    assert later.status_code == 503


def test_a_profile_is_written(ask: Any, says: Any, tmp_path: Any) -> None:
    pytest.importorskip("torch")

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        start = {"output_dir": str(tmp_path), "activities": ["CPU", "GPU"], "num_steps": None, "profile_prefix": "p"}
        return [
            await client.post("/stop_profile"),
            await client.post("/start_profile", json=start),
            await client.post("/start_profile", json=start),
            await client.post("/generate", json={"text": "x", "sampling_params": {"max_new_tokens": 3}}),
            await client.post("/stop_profile", json={}),
        ]

    statuses = [response.status_code for response in ask(ScriptedExecutor(says("abc")), talk)]
    assert statuses == [400, 200, 400, 200, 200]
    assert [file.name[:2] for file in tmp_path.glob("*.trace.json.gz")] == ["p-"]
