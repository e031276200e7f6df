"""One HTTP exchange: a JSON body in, JSON or server-sent events out, and a client that may leave in the middle.

The surprise: work is always raced against the client's disconnect. Losing the race cancels the work, whose cleanup
gives the request's slot back, so nobody computes tokens that no one will read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi.responses import Response, StreamingResponse

from ling_runtime.refusal import Refusal
from ling_runtime.request import Abort

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterable

    from fastapi import Request as HttpRequest
    from starlette.types import Receive, Scope, Send

    from ling_runtime.engine import Engine
    from ling_runtime.request import Request, Update

Result = TypeVar("Result")

DONE = b"data: [DONE]\n\n"

BODY_TOO_LARGE = 413

MAX_BODY = 32 << 20
"""Bytes: a hundred prompts of 40,000 tokens as ids. Larger ones are refused before they fill the memory."""


async def json_body(http: HttpRequest, *, empty: Any = None) -> Any:
    """The parsed body, whatever its content type says, or `empty`; Refusal when it is not JSON or too large."""
    body = await _body(http)
    if not body and empty is not None:
        return empty
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the request body is not JSON: {error}") from error


async def _body(http: HttpRequest) -> bytes:
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > MAX_BODY:
            raise Refusal(f"the request body is larger than {MAX_BODY} bytes", status=BODY_TOO_LARGE)
    return bytes(body)


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def error_json(refusal: Refusal) -> dict[str, object]:
    """SGLang's and OpenAI's shape at once: both put the reason under error.message."""
    kind = "BadRequestError" if refusal.status < 500 else "InternalServerError"
    return {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.status}}


def refused(refusal: Refusal) -> Response:
    """In ASCII, because a refusal may quote half a surrogate pair, which has no UTF-8."""
    headers = {"connection": "close"} if refusal.status == BODY_TOO_LARGE else None  # or the rest would be read
    return Response(json.dumps(error_json(refusal)), refusal.status, headers, media_type="application/json")


async def updates(engine: Engine, request: Request) -> AsyncIterator[list[Update]]:
    """Everything the request yields, in as few portions as the reader's pace allows; an abort raises Refusal."""
    async with engine.stream(request) as stream:
        while True:
            portion = await stream.take()
            finish = portion[-1].finish
            if isinstance(finish, Abort):
                raise Refusal(finish.message, status=finish.status)
            yield portion
            if finish is not None:
                return


async def together(works: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run all to their end; the first failure cancels the rest and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class EventStream(StreamingResponse):
    """Events until the iterator ends; a refusal in the middle becomes the last event, as the status has been sent."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        super().__init__(_to_the_end(events))

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self.stream_response(send))


async def answer(http: HttpRequest, work: Coroutine[Any, Any, Response]) -> Response:
    """The response of `work`, or one that nobody reads when the client has left."""
    response = await until_disconnect(http.receive, work)
    return Response(status_code=499) if response is None else response


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Run `work` to its end and return its result; cancel it when the client disconnects first, and return None."""
    serving = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (serving, leaving):
            task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        return await serving
    return None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _to_the_end(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for item in events:
            yield item
    except Refusal as refusal:
        yield event(json.dumps(error_json(refusal)).encode())
    yield DONE
