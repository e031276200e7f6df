"""The OpenAI subset as the openai client sees it, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from scripted import ScriptedExecutor

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_runtime.tokenizer import Tokenizer

openai = pytest.importorskip("openai")

ANSWER = " There are 12 apples. Question"


@pytest.fixture(scope="module")
def url(listening_on: Callable[[ScriptedExecutor], str], says: Any) -> str:
    return listening_on(ScriptedExecutor(says(ANSWER), window=3))


@pytest.fixture
def client(url: str) -> Any:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=20, max_retries=0)


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_completion(client: Any, tokenizer: Tokenizer) -> None:
    answer = client.completions.create(model="tiny", prompt="How many?", max_tokens=50, stop="Question", temperature=0)
    assert answer.choices[0].text == " There are 12 apples. "
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(tokenizer.encode("How many?"))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_completion_defaults_to_sixteen_tokens(client: Any) -> None:
    answer = client.completions.create(model="tiny", prompt=[70, 71])
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (16, "length")


def test_several_prompts_give_several_choices(client: Any) -> None:
    answer = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == 6


def test_streamed_completion(client: Any) -> None:
    whole = client.completions.create(model="tiny", prompt="x", max_tokens=9).choices[0].text
    chunks = list(
        client.completions.create(
            model="tiny", prompt="x", max_tokens=9, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 9


def test_chat_goes_through_the_template(client: Any, tokenizer: Tokenizer) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "many?"}]}],
        max_tokens=5,
        extra_body={"top_k": 4, "ignore_eos": True},
    )
    assert answer.choices[0].message.role == "assistant"
    prompt = tokenizer.encode("<|user|>How many?<|assistant|>", add_special_tokens=False)
    assert answer.usage.prompt_tokens == len(prompt)
    assert prompt[0] in tokenizer.special_ids


def test_streamed_chat(client: Any) -> None:
    messages = [{"role": "user", "content": "How many?"}]
    whole = client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=9)
    chunks = list(client.chat.completions.create(model="tiny", messages=messages, max_completion_tokens=9, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"prompt": "x", "temprature": 1}, "temprature"),
        ("completions", {"prompt": "x", "logprobs": 3}, "logprobs"),
        ("completions", {"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ("completions", {"prompt": {"a": 1}}, "prompt"),
        ("completions", {"prompt": ["a", "b"], "stream": True}, "stream"),
        ("completions", {"prompt": [9999]}, "prompt"),
        ("chat/completions", {"messages": []}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 1}]}, "tools"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "stream_options": 1}, "stream_options"),
    ],
)
def test_refusals_have_openais_shape(url: str, path: str, body: dict[str, Any], param: str) -> None:
    response = httpx.post(f"{url}/v1/{path}", json={"model": "tiny", **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, 400, "BadRequestError")


def test_meta_info_can_be_asked_for(url: str) -> None:
    body = {"prompt": "x", "max_tokens": 9, "return_meta_info": True}
    meta = httpx.post(f"{url}/v1/completions", json=body).json()["choices"][0]["meta_info"]
    assert (meta["completion_tokens"], meta["spec_accept_length"]) == (9, 9 / meta["spec_verify_ct"])


def test_another_models_name_is_not_found(client: Any) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.completions.create(model="other", prompt="x")


def test_a_checkpoint_without_a_template_cannot_chat(url: str, tokenizer: Tokenizer, monkeypatch: Any) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", None)
    response = httpx.post(f"{url}/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert response.status_code == 400
    assert "--chat-template" in response.json()["error"]["message"]
