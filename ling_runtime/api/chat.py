"""POST /v1/chat/completions: messages through the checkpoint's chat template, then a completion like any other.

The surprise: a checkpoint without a template gets a 400 that says so. A made-up template would give answers that look
right and score wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ling_runtime.api import openai
from ling_runtime.fields import Fields
from ling_runtime.refusal import Refusal

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest
    from fastapi.responses import Response

    from ling_runtime.api.service import Service

SHAPE = openai.Shape(
    prefix="chatcmpl",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    whole=lambda text: {"message": {"role": "assistant", "content": text}},
    piece=lambda text: {"delta": {"content": text}},
    opening={"delta": {"role": "assistant", "content": ""}},
)


async def chat_completions(service: Service, http: HttpRequest, body: object) -> Response:
    return await openai.respond(service, http, SHAPE, _read(service, body))


def _read(service: Service, body: object) -> openai.Call:
    fields = Fields("request", body)
    openai.read_model(service, fields)
    messages = [_message(item) for item in _list(fields.take("messages"))]
    options = fields.mapping("chat_template_kwargs")
    delivery = openai.read_delivery(fields)
    older = fields.integer("max_tokens", None, low=1)
    asked = fields.integer("max_completion_tokens", older, low=1)
    sampling = openai.read_sampling(fields, asked, default_new_tokens=None)
    fields.finish()
    template = service.tokenizer.chat_template
    if template is None:
        raise Refusal("messages: this checkpoint has no chat template; start the server with --chat-template FILE")
    prompt = template.render(messages, options)
    return openai.Call([service.request(prompt, sampling, add_special_tokens=False)], delivery)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise Refusal("request: messages must be a non-empty list", param="messages")
    return value


def _message(raw: object) -> dict[str, str]:
    fields = Fields("messages", raw)
    role = fields.string("role", None)
    content = _text(fields.take("content"))
    fields.ignore(("name",))
    fields.finish()
    if role is None:
        raise Refusal("messages: role is missing", param="messages")
    return {"role": role, "content": content}


def _text(content: object) -> str:
    """A string, or OpenAI's list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal("messages: content must be a string or a list of text parts", param="messages")
    parts = [Fields("messages.content", part) for part in content]
    if any(part.string("type", None) != "text" for part in parts):
        raise Refusal("messages: only parts of type 'text' are supported", param="messages")
    return "".join(part.string("text", "") for part in parts)
