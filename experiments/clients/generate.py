"""One engine's HTTP protocol as typed calls; tasks, gates and the supervisor ask through here and nothing else.

The surprise: an answer whose token ids and counts contradict each other is an error and not a generation. Every
number of a record rests on these counts, and an engine that miscounts must not look fast.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments import secrets
from experiments.clients.connection import Connection, ProtocolError, head

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Alternatives", "GenerateClient", "Generation", "ProtocolError", "TokenLogprobs", "generation"]

Alternatives = tuple[tuple[tuple[float, int], ...], ...]
TokenLogprobs = tuple[tuple[float | None, int], ...]

FLUSH_WAIT_S = 60.0
"""An engine refuses to flush while it is busy, and SGLang still is for a moment after its last answer."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    text: str
    output_ids: tuple[int, ...]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    """"length", "stop" or "abort"."""
    matched: int | str | None
    """What ended a "stop": an id or a stop string."""
    spec_verify_ct: int | None
    """Target decode steps; None where the engine reports none."""
    ttft_s: float | None
    """First text after the request; None without streaming."""
    latency_s: float
    output_top_logprobs: Alternatives | None
    input_top_logprobs: Alternatives | None
    """Per position (logprob, id), best first; an empty tuple where the engine has none (position 0)."""
    input_token_logprobs: TokenLogprobs | None
    output_token_logprobs: TokenLogprobs | None

    def __post_init__(self) -> None:
        """A model may repeat a secret. It goes no further, so that gates compare what records can hold."""
        object.__setattr__(self, "text", secrets.masked(self.text))


class GenerateClient(Connection):
    """SGLang's native API, synchronously."""

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
        sampling: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "ignore_eos": ignore_eos,
        }
        if stop:
            sampling["stop"] = list(stop)
        if seed is not None:
            sampling["sampling_seed"] = seed
        body: dict[str, Any] = {"sampling_params": sampling, "stream": stream}
        body |= {"text": text} if input_ids is None else {"input_ids": list(input_ids)}
        if return_logprob:
            body |= {
                "return_logprob": True,
                "top_logprobs_num": top_logprobs_num,
                "logprob_start_len": logprob_start_len,
            }
        return self._stream(body) if stream else self._post(body)

    def health(self) -> None:
        self.call("GET", "/health")

    def health_generate(self) -> None:
        self.call("GET", "/health_generate")

    def model_info(self) -> dict[str, Any]:
        return self.json("GET", "/model_info")

    def models(self) -> list[str]:
        """Served model names."""
        return [str(model["id"]) for model in self.json("GET", "/v1/models")["data"]]

    def server_info(self) -> dict[str, Any]:
        return self.json("GET", "/server_info")

    def flush_cache(self) -> None:
        self.call("POST", f"/flush_cache?timeout={FLUSH_WAIT_S:g}")

    def _post(self, body: Mapping[str, Any]) -> Generation:
        start = time.perf_counter()
        payload = self.json("POST", "/generate", body)
        return generation(payload, ttft_s=None, latency_s=time.perf_counter() - start)

    def _stream(self, body: Mapping[str, Any]) -> Generation:
        start = time.perf_counter()
        ttft_s: float | None = None
        last: dict[str, Any] | None = None
        for last in self.events("/generate", body):
            if ttft_s is None and last.get("text"):
                ttft_s = time.perf_counter() - start
        if last is None:
            raise ProtocolError("POST /generate: the stream ended without an event")
        return generation(last, ttft_s=ttft_s, latency_s=time.perf_counter() - start)


def generation(payload: Mapping[str, Any], *, ttft_s: float | None, latency_s: float) -> Generation:
    """The engine's answer, checked. Raises ProtocolError for missing keys and for counts that disagree."""
    try:
        meta = payload["meta_info"]
        reason = meta["finish_reason"]
        answer = Generation(
            text=payload["text"],
            output_ids=tuple(payload["output_ids"]),
            prompt_tokens=meta["prompt_tokens"],
            completion_tokens=meta["completion_tokens"],
            finish_reason=reason["type"],
            matched=reason.get("matched"),
            spec_verify_ct=meta.get("spec_verify_ct"),
            ttft_s=ttft_s,
            latency_s=latency_s,
            output_top_logprobs=_alternatives(meta.get("output_top_logprobs")),
            input_top_logprobs=_alternatives(meta.get("input_top_logprobs")),
            input_token_logprobs=_token_logprobs(meta.get("input_token_logprobs")),
            output_token_logprobs=_token_logprobs(meta.get("output_token_logprobs")),
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"POST /generate: malformed answer ({error!r}): {head(str(payload))}") from error
    if answer.finish_reason != "abort" and len(answer.output_ids) != answer.completion_tokens:
        raise ProtocolError(
            f"POST /generate: {len(answer.output_ids)} output_ids but completion_tokens = {answer.completion_tokens}"
        )
    return answer


def _alternatives(rows: Sequence[Sequence[Sequence[Any]] | None] | None) -> Alternatives | None:
    if rows is None:
        return None
    return tuple(tuple((float(entry[0]), int(entry[1])) for entry in row or ()) for row in rows)


def _token_logprobs(entries: Sequence[Sequence[Any]] | None) -> TokenLogprobs | None:
    if entries is None:
        return None
    return tuple((None if entry[0] is None else float(entry[0]), int(entry[1])) for entry in entries)
