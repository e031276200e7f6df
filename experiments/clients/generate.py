"""One engine's HTTP protocol as typed calls; tasks, gates and the supervisor ask through here and nothing else.

The surprise: an answer whose token ids and counts contradict each other is an error and not a generation. Every
number of a record rests on these counts, and an engine that miscounts must not look fast.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import httpx

from experiments import secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

Alternatives = tuple[tuple[tuple[float, int], ...], ...]
TokenLogprobs = tuple[tuple[float | None, int], ...]

BODY_HEAD = 300


class ProtocolError(RuntimeError):
    """An engine that did not answer, refused, or answered something the protocol does not allow."""


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


class GenerateClient:
    """Synchronous client of one base URL; safe to share between threads."""

    def __init__(self, base_url: str, timeout_s: float = 600.0) -> None:
        self.base_url = base_url.rstrip("/")
        # No proxy from the environment: the engine is on this host, or reached as the caller spelled it. A connection
        # per call: a kept one may be closed by the engine at the very moment it is used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=self.base_url, timeout=timeout_s, trust_env=False, limits=limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

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
        self._call("GET", "/health")

    def health_generate(self) -> None:
        self._call("GET", "/health_generate")

    def model_info(self) -> dict[str, Any]:
        return self._json("GET", "/model_info")

    def models(self) -> list[str]:
        """Served model names."""
        return [str(model["id"]) for model in self._json("GET", "/v1/models")["data"]]

    def server_info(self) -> dict[str, Any]:
        return self._json("GET", "/server_info")

    def flush_cache(self) -> None:
        self._call("POST", "/flush_cache")

    def _post(self, body: Mapping[str, Any]) -> Generation:
        start = time.perf_counter()
        payload = self._json("POST", "/generate", body)
        return generation(payload, ttft_s=None, latency_s=time.perf_counter() - start)

    def _stream(self, body: Mapping[str, Any]) -> Generation:
        start = time.perf_counter()
        ttft_s: float | None = None
        last: dict[str, Any] | None = None
        try:
            with self._http.stream("POST", "/generate", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise refused("POST /generate", response)
                for last in events(response.iter_lines()):
                    if ttft_s is None and last.get("text"):
                        ttft_s = time.perf_counter() - start
        except httpx.HTTPError as error:
            raise ProtocolError(f"POST /generate: {type(error).__name__}: {error}") from error
        if last is None:
            raise ProtocolError("POST /generate: the stream ended without an event")
        return generation(last, ttft_s=ttft_s, latency_s=time.perf_counter() - start)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ProtocolError(f"{method} {path}: {type(error).__name__}: {error}") from error
        if not response.is_success:
            raise refused(f"{method} {path}", response)
        return response

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        response = self._call(method, path, body)
        return parsed(f"{method} {path}", response.text)


def head(text: str) -> str:
    """Masked before it is cut, or half a secret would be none that anybody knows."""
    return secrets.masked(text)[:BODY_HEAD]


def refused(call: str, response: httpx.Response) -> ProtocolError:
    return ProtocolError(f"{call}: HTTP {response.status_code}: {head(response.text)}")


def parsed(call: str, text: str) -> dict[str, Any]:
    try:
        payload = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProtocolError(f"{call}: not JSON: {head(text)!r}") from error
    if not isinstance(payload, dict):
        raise ProtocolError(f"{call}: not a JSON object: {head(text)!r}")
    return payload


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Events of a server-sent stream; one that stops before [DONE] or carries an error raises ProtocolError."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if not line.startswith("data: "):
            continue
        event = parsed("POST /generate", line.removeprefix("data: "))
        if "error" in event:
            raise ProtocolError(f"POST /generate: {head(str(event['error']))}")
        yield event
    raise ProtocolError("POST /generate: the stream ended before [DONE]")


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
