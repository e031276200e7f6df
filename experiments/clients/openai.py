"""OpenAI's completions API, as vLLM extends it, behind the same calls as SGLang's native one.

Ids go in and come out (`return_token_ids`), counts come from `usage`, and a prompt is scored by `prompt_logprobs`. The
surprise: `flush_cache` does nothing. vLLM resets its prefix cache only in development mode, so engine=vllm launches it
without one, and then no request leaves anything behind.
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from experiments.clients.connection import Connection, ProtocolError, head
from experiments.clients.generate import Generation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from experiments.clients.generate import Alternatives, TokenLogprobs

PATH = "/v1/completions"
TOKEN = "token_id:"  # noqa: S105 - how vLLM spells an id among logprobs


class OpenAIClient(Connection):
    """Of the first model that is served."""

    @cached_property
    def _model(self) -> str:
        return self.models()[0]

    def generate(
        self,
        *,
        text: str | None = None,
        input_ids: Sequence[int] | None = None,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        seed: int | None = None,
        return_logprob: bool = False,
        top_logprobs_num: int = 0,
        logprob_start_len: int = -1,
        stream: bool = False,
    ) -> Generation:
        """One completion of `text` or of `input_ids` (exactly one of them). Raises ProtocolError."""
        assert (text is None) != (input_ids is None), "give text or input_ids"
        assert not (stream and return_logprob), "nobody asks for both"
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": text if input_ids is None else list(input_ids),
            "max_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "stop": list(stop),
            "ignore_eos": ignore_eos,
            "seed": seed,
            "stream": stream,
            "return_token_ids": True,
        }
        if return_logprob:
            body |= {"logprobs": top_logprobs_num, "return_tokens_as_token_ids": True}
            if logprob_start_len >= 0:
                body["prompt_logprobs"] = top_logprobs_num
        if stream:
            return self._stream(body | {"stream_options": {"include_usage": True}})
        start = time.perf_counter()
        payload = self.json("POST", PATH, body)
        latency_s = time.perf_counter() - start
        return completion(payload, latency_s=latency_s, top=top_logprobs_num, start=logprob_start_len)

    def models(self) -> list[str]:
        """Served model names."""
        return [str(model["id"]) for model in self.json("GET", "/v1/models")["data"]]

    def server_info(self) -> dict[str, Any]:
        """What vLLM says of itself without its development mode."""
        card = self.json("GET", "/v1/models")["data"][0]
        return {
            "version": self.json("GET", "/version")["version"],
            "model_path": card["root"],
            "max_model_len": card["max_model_len"],
        }

    def flush_cache(self) -> None:
        """Nothing is kept that could be flushed."""

    def _stream(self, body: Mapping[str, Any]) -> Generation:
        """The chunks put together as the answer that they are parts of."""
        start = time.perf_counter()
        ttft_s: float | None = None
        text, ids, last, counts = "", [], dict[str, Any](), dict[str, Any]()
        for event in self.events(PATH, body):
            counts |= {key: event[key] for key in ("usage", "metrics") if event.get(key)}
            for choice in event["choices"]:
                text, last = text + choice["text"], choice
                ids += choice["token_ids"]
                if ttft_s is None and choice["text"]:
                    ttft_s = time.perf_counter() - start
        whole = {"choices": [last | {"text": text, "token_ids": ids}], **counts}
        return completion(whole, latency_s=time.perf_counter() - start, ttft_s=ttft_s)


def completion(
    payload: Mapping[str, Any], *, latency_s: float, ttft_s: float | None = None, top: int = 0, start: int = -1
) -> Generation:
    """vLLM's answer, checked. Raises ProtocolError for missing keys and for counts that disagree.

    `top`: alternatives asked for at every position; `start`: first position of the prompt that was to be scored.
    """
    try:
        choice, usage = payload["choices"][0], payload["usage"]
        ids = tuple(choice["token_ids"])
        scored = choice.get("logprobs")
        prompt = _scored_prompt(choice, start) if scored and start >= 0 else None
        answer = Generation(
            text=choice["text"],
            output_ids=ids,
            prompt_tokens=usage["prompt_tokens"],
            completion_tokens=usage["completion_tokens"],
            finish_reason=choice["finish_reason"],
            matched=choice["stop_reason"],
            spec_verify_ct=verify_steps(payload.get("metrics"), usage["completion_tokens"]),
            ttft_s=ttft_s,
            latency_s=latency_s,
            output_token_logprobs=tuple(zip(scored["token_logprobs"], ids, strict=True)) if scored else None,
            output_top_logprobs=_alternatives(map(_by_id, scored["top_logprobs"]), top) if scored and top else None,
            input_token_logprobs=None if prompt is None else _chosen(prompt),
            input_top_logprobs=_alternatives((row for _, row in prompt), top) if prompt and top else None,
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ProtocolError(f"POST {PATH}: malformed answer ({error!r}): {head(str(payload))}") from error
    if len(ids) != answer.completion_tokens:
        raise ProtocolError(f"POST {PATH}: {len(ids)} token_ids but completion_tokens = {answer.completion_tokens}")
    return answer


def verify_steps(metrics: Mapping[str, Any] | None, tokens: int) -> int | None:
    """The target's decode steps, of which vLLM counts those that verified a draft; None where it reports none.

    Every step emits one token beside the drafts that it accepted. So tokens that neither are drafts nor come from the
    prefill or a counted step are steps without a draft.
    """
    told = (metrics or {}).get("speculative_decoding")
    if not told:
        return None
    return max(int(told["num_spec_steps"]), tokens - 1 - int(told["num_accepted_draft_tokens"]))


def _scored_prompt(choice: Mapping[str, Any], start: int) -> list[tuple[int, dict[int, float]]]:
    """Per position from `start` on: the token's id, and logprobs by id. Position 0 has none."""
    rows = [{int(token): one["logprob"] for token, one in (row or {}).items()} for row in choice["prompt_logprobs"]]
    return list(zip(choice["prompt_token_ids"], rows, strict=True))[start:]


def _chosen(prompt: Sequence[tuple[int, Mapping[int, float]]]) -> TokenLogprobs:
    return tuple((row.get(token), token) for token, row in prompt)


def _by_id(row: Mapping[str, float]) -> dict[int, float]:
    return {int(token.removeprefix(TOKEN)): logprob for token, logprob in row.items()}


def _alternatives(rows: Iterable[Mapping[int, float]], top: int) -> Alternatives:
    """Best first. vLLM adds the chosen token where it is not among the best."""
    return tuple(
        tuple(sorted(((logprob, token) for token, logprob in row.items()), key=lambda pair: -pair[0])[:top])
        for row in rows
    )
