"""The server over the real executor and the checkpoint that ships: what its clients get does not depend on each other.

Nothing here knows what the weights say; every expectation is another call's answer.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from ling_runtime.executor.build import ExecutorSettings, load_executor

if TYPE_CHECKING:
    from pathlib import Path

    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.tokenizer import Tokenizer

pytestmark = pytest.mark.whole

CLIENTS = 8
TOKENS = 24


@pytest.fixture(scope="module", params=[3])
def executor(shipped: Path, request: pytest.FixtureRequest) -> StepExecutor:
    """The parameter is the number of NEXTN steps."""
    return load_executor(str(shipped), ExecutorSettings(num_steps=request.param, context_length=512, chunk=48))


@pytest.fixture
def url(listening: Any, executor: StepExecutor, shipped_tokenizer: Tokenizer) -> str:
    url: str = listening(executor, shipped_tokenizer)
    return url


@pytest.fixture
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, max_retries=0)


def ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, without what differs from call to call."""
    content = httpx.post(f"{url}/generate", json=body, timeout=60).content
    if body["stream"]:
        *events, done, end = content.split(b"\n\n")
        assert (done, end) == (b"data: [DONE]", b"")
        content = events[-1].removeprefix(b"data: ")
    answer: dict[str, Any] = json.loads(content)
    del answer["meta_info"]["e2e_latency"], answer["meta_info"]["id"]
    return answer


def bodies(temperature: float) -> list[dict[str, Any]]:
    """Prompts of different lengths, answers of different lengths, every second one streamed."""
    return [
        {
            "text": f"Question: Tom has {3 + i} apples and buys {'some more, ' * i} 4. How many?\nAnswer:",
            "stream": i % 2 == 0,
            "return_logprob": True,
            "top_logprobs_num": 2,
            "sampling_params": {
                "temperature": temperature,
                "sampling_seed": i,
                "max_new_tokens": TOKENS + 2 * i,
                "ignore_eos": i % 3 == 0,
                "stop": ["####"] if i % 4 == 1 else None,
            },
        }
        for i in range(CLIENTS)
    ]


@pytest.mark.parametrize(
    ("executor", "temperature"),
    [(0, 0.0), (3, 0.0), (3, 0.8)],
    ids=["greedy", "greedy with drafts", "sampled with drafts"],
    indirect=["executor"],
)
def test_eight_clients_at_once_get_what_one_alone_gets(url: str, executor: StepExecutor, temperature: float) -> None:
    """Text, ids, logprob bits, finish and speculation counts; the order of arrival is another one each time."""
    wanted = bodies(temperature)
    alone = [ask(url, body) for body in wanted]
    together_at = threading.Barrier(CLIENTS)

    def at_once(body: dict[str, Any]) -> dict[str, Any]:
        together_at.wait()
        return ask(url, body)

    most = 0
    decode = executor.decode

    def counted(slots: Any) -> Any:
        nonlocal most
        most = max(most, len(slots))
        return decode(slots)

    executor.decode = counted  # type: ignore[method-assign]
    with ThreadPoolExecutor(CLIENTS) as pool:
        together = list(pool.map(at_once, wanted))
    del executor.decode
    assert together == alone
    assert most > CLIENTS // 2, "they hardly met"
    free = executor.occupancy()
    assert (free.free_slots, free.free_pages) == (free.slots, free.pages)


def test_the_openai_client_gets_the_native_text(url: str, client: openai.OpenAI) -> None:
    (body,) = bodies(0.0)[1:2]
    native = ask(url, body)
    call = {"model": "tiny", "prompt": body["text"], "temperature": 0.0, "max_tokens": TOKENS + 2, "stop": ["####"]}
    whole = client.completions.create(**call)
    assert whole.choices[0].text == native["text"]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == native["meta_info"]["completion_tokens"]
    streamed = client.completions.create(**call, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == native["text"]


def test_the_openai_client_chats_through_the_shipped_template(
    url: str, client: openai.OpenAI, shipped_tokenizer: Tokenizer
) -> None:
    messages = [{"role": "system", "content": "Answer."}, {"role": "user", "content": "Tom has 3 apples. How many?"}]
    template = shipped_tokenizer.chat_template
    assert template is not None
    prompt = template.render(messages, {})
    sampling = {"temperature": 0, "max_new_tokens": TOKENS}
    native = ask(url, {"text": prompt, "stream": False, "sampling_params": sampling})
    call: Any = {"model": "tiny", "messages": messages, "temperature": 0, "max_completion_tokens": TOKENS}
    whole = client.chat.completions.create(**call)
    assert whole.choices[0].message.content == native["text"]
    chunks = list(client.chat.completions.create(**call, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == native["text"]
    assert chunks[-1].usage.completion_tokens == native["meta_info"]["completion_tokens"]
