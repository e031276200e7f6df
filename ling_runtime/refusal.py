"""The one exception that becomes an answer instead of a crash: a request the server will not serve, and why.

It carries the HTTP status and the offending key, so that the borders of both APIs can phrase it in their own shape.
The surprise: nothing else is ever turned into a 400. An error that is not a refusal is a bug, and ends the engine.
"""

from __future__ import annotations


class Refusal(Exception):  # noqa: N818 - the server is healthy; it is the request that cannot be served
    """`message` names the key and the allowed values; `param` is the key alone."""

    def __init__(self, message: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
