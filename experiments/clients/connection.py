"""HTTP as every client of an engine uses it: one call, one JSON object, one server-sent stream, one error.

The surprise: an API key is the name of an environment variable until it becomes a header here. No spec, command line or
record ever holds its value.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Self

import httpx

from experiments import secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

BODY_HEAD = 300


class ProtocolError(RuntimeError):
    """An engine that did not answer, refused, or answered something the protocol does not allow."""


class Connection:
    """To one base URL; a context manager, safe to share between threads. Every call raises ProtocolError."""

    def __init__(self, base_url: str, timeout_s: float = 600.0, *, api_key_env: str | None = None) -> None:
        self.base_url = base_url.rstrip("/")
        # No proxy from the environment: the engine is on this host, or reached as the caller spelled it. A connection
        # per call: a kept one may be closed by the engine at the very moment it is used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        headers = {"Authorization": f"Bearer {os.environ[api_key_env]}"} if api_key_env else {}
        self._http = httpx.Client(
            base_url=self.base_url, timeout=timeout_s, trust_env=False, limits=limits, headers=headers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ProtocolError(f"{method} {path}: {type(error).__name__}: {error}") from error
        if not response.is_success:
            raise _refused(f"{method} {path}", response)
        return response

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return _parsed(f"{method} {path}", self.call(method, path, body).text)

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Events of the stream that a POST is answered with, as they come."""
        try:
            with self._http.stream("POST", path, json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise _refused(f"POST {path}", response)
                yield from events(response.iter_lines(), f"POST {path}")
        except httpx.HTTPError as error:
            raise ProtocolError(f"POST {path}: {type(error).__name__}: {error}") from error


def head(text: str) -> str:
    """On one line; masked before it is cut, or half a secret would be none that anybody knows."""
    return "a web page" if text.lstrip().startswith("<") else " ".join(secrets.masked(text).split())[:BODY_HEAD]


def events(lines: Iterator[str], call: str) -> Iterator[dict[str, Any]]:
    """Events of a server-sent stream; one that stops before [DONE] or carries an error raises ProtocolError."""
    for line in lines:
        if line == "data: [DONE]":
            return
        if not line.startswith("data: "):
            continue
        event = _parsed(call, line.removeprefix("data: "))
        if "error" in event:
            raise ProtocolError(f"{call}: {head(str(event['error']))}")
        yield event
    raise ProtocolError(f"{call}: the stream ended before [DONE]")


def _refused(call: str, response: httpx.Response) -> ProtocolError:
    return ProtocolError(f"{call}: HTTP {response.status_code}: {head(response.text)}")


def _parsed(call: str, text: str) -> dict[str, Any]:
    try:
        payload = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProtocolError(f"{call}: not JSON: {head(text)!r}") from error
    if not isinstance(payload, dict):
        raise ProtocolError(f"{call}: not a JSON object: {head(text)!r}")
    return payload
