"""POST /v1/completions: prompts as text or ids, one choice for each.

The surprise: `max_tokens` defaults to 16, as OpenAI has it, where the native call defaults to 128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ling_runtime.api import openai
from ling_runtime.api.service import require_few
from ling_runtime.fields import Fields
from ling_runtime.refusal import Refusal

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest
    from fastapi.responses import Response

    from ling_runtime.api.service import Service

DEFAULT_MAX_TOKENS = 16

SHAPE = openai.Shape(
    prefix="cmpl",
    object="text_completion",
    chunk_object="text_completion",
    whole=lambda text: {"text": text},
    piece=lambda text: {"text": text},
)


async def completions(service: Service, http: HttpRequest, body: object) -> Response:
    return await openai.respond(service, http, SHAPE, _read(service, body))


def _read(service: Service, body: object) -> openai.Call:
    fields = Fields("request", body)
    openai.read_model(service, fields)
    prompts = _prompts(fields.take("prompt"))
    require_few("prompt", prompts)
    delivery = openai.read_delivery(fields)
    asked = fields.integer("max_tokens", None, low=1)
    sampling = openai.read_sampling(fields, asked, default_new_tokens=DEFAULT_MAX_TOKENS)
    fields.finish()
    if delivery.stream and len(prompts) > 1:
        raise Refusal("stream: several prompts cannot be streamed; send one prompt a call", param="stream")
    return openai.Call([service.request(prompt, sampling) for prompt in prompts], delivery)


def _prompts(value: object) -> list[str | list[int]]:
    """A text, ids, or a list of either."""
    items: list[Any] = value if isinstance(value, list) and value and not isinstance(value[0], int) else [value]
    if all(_is_prompt(item) for item in items):
        return items
    raise Refusal("request: prompt must be a string, a list of ids, or a list of those", param="prompt")


def _is_prompt(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, list) and all(type(token) is int for token in item))
