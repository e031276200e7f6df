"""POST /generate, SGLang's native call: one prompt or a list of them, at once or as a stream of cumulative chunks.

The surprise: some keys are read only to be ignored. SGLang's clients send them in every call, so they are listed here
one by one, and any key that is not listed is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi.responses import Response

from ling_runtime.api.exchange import EventStream, answer, event, together, updates
from ling_runtime.api.payload import Payload
from ling_runtime.api.service import require_few
from ling_runtime.fields import Fields
from ling_runtime.refusal import Refusal
from ling_runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fastapi import Request as HttpRequest

    from ling_runtime.api.service import Service
    from ling_runtime.request import Request

WITHOUT_EFFECT = (
    "log_metrics",
    "no_logs",
    "priority",
    "extra_key",
    "routing_key",
    "conversation_id",
    "session_id",
    "custom_labels",
    "background",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "routed_dp_rank",
    "data_parallel_rank",
)

NEUTRAL: dict[str, tuple[object, ...]] = {
    "lora_path": ("",),
    "return_routed_experts": (False,),
    "return_hidden_states": (False,),
    "return_text_in_logprobs": (False,),
    "return_prompt_token_ids": (False,),
    "token_ids_logprob": ([],),
    "image_data": ([],),
    "video_data": ([],),
    "audio_data": ([],),
    "modalities": ([],),
    "input_embeds": (),
    "session_params": ({},),
    "custom_logit_processor": ("",),
}

MAX_RID = 256
"""Characters: every chunk of a stream repeats it."""

Prompt = str | list[int]


async def generate(service: Service, http: HttpRequest, body: object) -> Response:
    requests, batch, stream = _read(service, body)
    payloads = [Payload(request, weight_version=service.config.weight_version) for request in requests]
    if stream:
        return EventStream(_chunks(service, requests[0], payloads[0]))
    return await answer(http, _whole(service, requests, payloads, batch=batch))


async def _chunks(service: Service, request: Request, payload: Payload) -> AsyncIterator[bytes]:
    async for portion in updates(service.engine, request):
        for update in portion:
            payload.add(update)
        yield event(payload.render())


async def _whole(
    service: Service, requests: Sequence[Request], payloads: Sequence[Payload], *, batch: bool
) -> Response:
    pairs = zip(requests, payloads, strict=True)
    await together(_collect(service, request, payload) for request, payload in pairs)
    bodies = [payload.render() for payload in payloads]
    return Response(b"[" + b", ".join(bodies) + b"]" if batch else bodies[0], media_type="application/json")


async def _collect(service: Service, request: Request, payload: Payload) -> None:
    async for portion in updates(service.engine, request):
        for update in portion:
            payload.add(update)


def _read(service: Service, body: object) -> tuple[list[Request], bool, bool]:
    """Requests, whether a list was asked for, and whether to stream; Refusal names what is wrong."""
    fields = Fields("request", body)
    fields.ignore(WITHOUT_EFFECT)
    fields.neutral(NEUTRAL)
    prompts, batch = _prompts(fields)
    require_few("text or input_ids", prompts)
    stream = fields.boolean("stream", False)
    if stream and batch:
        raise Refusal("stream: a list of prompts cannot be streamed; send one prompt a call", param="stream")
    alternatives = fields.integer("top_logprobs_num", 0, low=0)
    logprobs = alternatives if fields.boolean("return_logprob", False) else None
    start = fields.integer("logprob_start_len", -1, low=-1)
    sampling = _per_prompt("sampling_params", fields.take("sampling_params"), len(prompts))
    ids = _per_prompt("rid", fields.take("rid"), len(prompts))
    fields.finish()
    requests = [
        service.request(
            prompt,
            SamplingParams.from_json(params),
            request_id=_request_id(rid),
            logprobs=logprobs,
            logprob_start=start,
        )
        for prompt, params, rid in zip(prompts, sampling, ids, strict=True)
    ]
    return requests, batch, stream


def _prompts(fields: Fields) -> tuple[list[Prompt], bool]:
    """`text` or `input_ids`, each a single prompt or a list of them."""
    text, ids = fields.take("text"), fields.take("input_ids")
    if (text is None) == (ids is None):
        raise Refusal("give either text or input_ids", param="text")
    if text is not None:
        prompts, batch = (text, True) if isinstance(text, list) else ([text], False)
        if not prompts or not all(isinstance(prompt, str) for prompt in prompts):
            raise Refusal("request: text must be a string or a non-empty list of strings", param="text")
        return prompts, batch
    batch = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
    prompts = ids if batch else [ids]
    if not all(isinstance(p, list) and all(type(token) is int for token in p) for p in prompts):
        raise Refusal("request: input_ids must be a list of integers or a list of such lists", param="input_ids")
    return prompts, batch


def _per_prompt(key: str, value: Any, count: int) -> list[Any]:
    """One value for all prompts, or a list with one for each."""
    if not isinstance(value, list):
        return [value] * count
    if len(value) != count:
        raise Refusal(f"request: {key} has {len(value)} entries for {count} prompts", param=key)
    return value


def _request_id(value: object) -> str | None:
    if value is not None and not (isinstance(value, str) and len(value) <= MAX_RID):
        raise Refusal(f"request: rid must be a string of at most {MAX_RID} characters", param="rid")
    return value
