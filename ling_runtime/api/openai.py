"""What /v1/completions and /v1/chat/completions share: OpenAI's key names, usage, and the two shapes of an answer.

The surprise: SGLang's extensions (top_k, min_p, ignore_eos, ...) are top-level keys here, where the openai client puts
its `extra_body`, and an unknown one is refused although OpenAI's own server would ignore it.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse, Response

from ling_runtime.api.exchange import EventStream, answer, event, together, updates
from ling_runtime.api.meta import meta_info
from ling_runtime.fields import Fields, shown
from ling_runtime.refusal import Refusal
from ling_runtime.request import Stop
from ling_runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from fastapi import Request as HttpRequest

    from ling_runtime.api.service import Service
    from ling_runtime.request import Request, Update

WITHOUT_EFFECT = ("user", "rid", "metadata", "store", "parallel_tool_calls", "separate_reasoning", "stream_reasoning")

NEUTRAL: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "reasoning_effort": (),
    "lora_path": ("",),
}

Choice = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """How one endpoint dresses a choice: the object names, a finished choice, and one streamed piece."""

    prefix: str
    object: str
    chunk_object: str
    whole: Callable[[str], Choice]
    piece: Callable[[str], Choice]
    opening: Choice | None = None


@dataclass(frozen=True)
class Delivery:
    """How the answer is wanted; `meta_info` is SGLang's extension: the native call's, beside each finished choice."""

    stream: bool
    include_usage: bool
    meta_info: bool


@dataclass(frozen=True)
class Call:
    """One call of an endpoint, read and checked."""

    requests: Sequence[Request]
    delivery: Delivery


@dataclass(frozen=True)
class Progress:
    """One choice so far, or what was added to it."""

    request: Request
    text: str
    tokens: int
    last: Update


def read_sampling(fields: Fields, max_new_tokens: int | None, *, default_new_tokens: int | None) -> SamplingParams:
    """Consume the keys common to both endpoints."""
    fields.ignore(WITHOUT_EFFECT)
    fields.neutral(NEUTRAL)
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        default_new_tokens=default_new_tokens,
        temperature=fields.number("temperature", 1.0),
        top_p=fields.number("top_p", 1.0),
        top_k=fields.integer("top_k", -1),
        min_p=fields.number("min_p", 0.0),
        stop=fields.strings("stop"),
        stop_token_ids=fields.integers("stop_token_ids"),
        ignore_eos=fields.boolean("ignore_eos", False),
        sampling_seed=fields.integer("seed", None),
        skip_special_tokens=fields.boolean("skip_special_tokens", True),
        no_stop_trim=fields.boolean("no_stop_trim", False),
    )


def read_model(service: Service, fields: Fields) -> None:
    """The name must be the served one; OpenAI's status for another is 404."""
    name = fields.string("model", service.config.served_model_name)
    if name != service.config.served_model_name:
        message = f"The model {shown.repr(name)} does not exist; this server has {service.config.served_model_name!r}"
        raise Refusal(message, param="model", status=404)


def read_delivery(fields: Fields) -> Delivery:
    options = Fields("stream_options", fields.mapping("stream_options"))
    options.neutral({"continuous_usage_stats": (False,)})
    include_usage = options.boolean("include_usage", False)
    options.finish()
    return Delivery(fields.boolean("stream", False), include_usage, fields.boolean("return_meta_info", False))


async def respond(service: Service, http: HttpRequest, shape: Shape, call: Call) -> Response:
    """The answer as a stream or whole, as the call wants it."""
    if call.delivery.stream:
        return EventStream(_chunks(service, shape, call))
    return await answer(http, _whole(service, shape, call))


async def _whole(service: Service, shape: Shape, call: Call) -> Response:
    answers = await together(_collect(service, request) for request in call.requests)
    choices = [_choice(service, call, answer, shape.whole(answer.text)) for answer in answers]
    body = _head(service, shape.prefix, call.requests[0], shape.object)
    body["choices"] = [{**choice, "index": index} for index, choice in enumerate(choices)]
    prompt_tokens = sum(len(request.prompt) for request in call.requests)
    body["usage"] = _usage(prompt_tokens, sum(answer.tokens for answer in answers))
    return JSONResponse(body)


async def _chunks(service: Service, shape: Shape, call: Call) -> AsyncIterator[bytes]:
    """Pieces of the only choice, then the usage if it was asked for."""
    request = call.requests[0]
    head = _head(service, shape.prefix, request, shape.chunk_object)
    if shape.opening is not None:
        yield _event(head, [{"index": 0, **shape.opening, "logprobs": None, "finish_reason": None}])
    tokens = 0
    async for portion in updates(service.engine, request):
        tokens += sum(len(update.tokens) for update in portion)
        progress = Progress(request, "".join(update.text for update in portion), tokens, portion[-1])
        if progress.text or progress.last.finish is not None:
            yield _event(head, [_choice(service, call, progress, shape.piece(progress.text))])
    if call.delivery.include_usage:
        yield _event({**head, "usage": _usage(len(request.prompt), tokens)}, [])


async def _collect(service: Service, request: Request) -> Progress:
    taken = [update async for portion in updates(service.engine, request) for update in portion]
    text = "".join(update.text for update in taken)
    return Progress(request, text, sum(len(update.tokens) for update in taken), taken[-1])


def _choice(service: Service, call: Call, progress: Progress, dressed: Choice) -> Choice:
    finish = progress.last.finish
    choice = {
        "index": 0,
        **dressed,
        "logprobs": None,
        "finish_reason": None if finish is None else finish.type,
        "matched_stop": finish.matched if isinstance(finish, Stop) else None,
    }
    if call.delivery.meta_info and finish is not None:
        version = service.config.weight_version
        choice["meta_info"] = meta_info(progress.request, progress.last, progress.tokens, version)
    return choice


def _head(service: Service, prefix: str, request: Request, kind: str) -> dict[str, Any]:
    model = service.config.served_model_name
    return {"id": f"{prefix}-{request.id}", "object": kind, "created": int(time.time()), "model": model}


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def _event(head: Mapping[str, object], choices: list[Choice]) -> bytes:
    return event(json.dumps({**head, "choices": choices}).encode())
