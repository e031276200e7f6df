"""Which path leads where: the routes of both APIs over one service, and the errors that become answers.

The surprise: bodies are not pydantic models. They are read key by key by the functions behind the routes, because an
unknown key has to be refused by name together with the keys that are allowed; what /openapi.json says of them is
written beside (schema.py).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.requests import ClientDisconnect

from ling_runtime.api import control, schema
from ling_runtime.api.chat import chat_completions
from ling_runtime.api.completions import completions
from ling_runtime.api.exchange import json_body, refused
from ling_runtime.api.generate import generate
from ling_runtime.engine import CLIENT_CLOSED_REQUEST
from ling_runtime.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ling_runtime.api.service import Service

JOIN_TIMEOUT_S = 5.0
"""Longest step worth waiting for at the end; the thread is a daemon."""


def create_app(service: Service, *, on_failure: Callable[[], None] = lambda: None) -> FastAPI:
    """The application; its lifespan starts and ends the engine thread."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.engine.start(on_failure, at_end=service.profiler.abandon)
        yield
        service.engine.shut_down()
        service.engine.join(JOIN_TIMEOUT_S)

    app = FastAPI(title="ling_runtime", lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_generation(app, service)
    _add_information(app, service)
    _add_operation(app, service)

    _add_errors(app)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def _refused(_: Request, refusal: Refusal) -> Response:
        return refused(refusal)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        return refused(Refusal(f"{first['loc'][-1]}: {first['msg']}", param=str(first["loc"][-1])))

    @app.exception_handler(ClientDisconnect)
    async def _left(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)


def _takes(body: schema.Schema, *, required: bool = True) -> dict[str, Any]:
    """What FastAPI publishes about a route whose body it does not read itself."""
    content = {"application/json": {"schema": body}}
    refusal = {"description": "Refused", "content": {"application/json": {"schema": schema.ERROR}}}
    return {
        "response_model": None,
        "openapi_extra": {"requestBody": {"required": required, "content": content}},
        "responses": {"4XX": refusal, "5XX": refusal},
    }


def _add_generation(app: FastAPI, service: Service) -> None:
    bodies = schema.Bodies(service.engine.executor.vocab_size, service.config.served_model_name)

    @app.post("/generate", **_takes(bodies.generate()))
    async def _generate(http: Request) -> Response:
        return await generate(service, http, await json_body(http))

    @app.post("/v1/completions", **_takes(bodies.completions()))
    async def _completions(http: Request) -> Response:
        return await completions(service, http, await json_body(http))

    @app.post("/v1/chat/completions", **_takes(bodies.chat()))
    async def _chat_completions(http: Request) -> Response:
        return await chat_completions(service, http, await json_body(http))


def _add_information(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models", response_model=None)
    async def _models() -> Response:
        return await control.models(service)

    @app.get("/model_info", response_model=None)
    @app.get("/get_model_info", response_model=None)
    async def _model_info() -> Response:
        return await control.model_info(service)

    @app.get("/server_info", response_model=None)
    @app.get("/get_server_info", response_model=None)
    async def _server_info() -> Response:
        return await control.server_info(service)

    @app.get("/metrics", response_model=None)
    async def _metrics() -> Response:
        return await control.metrics(service)


def _add_operation(app: FastAPI, service: Service) -> None:
    @app.get("/health", response_model=None)
    async def _health() -> Response:
        return await control.health(service)

    @app.get("/health_generate", response_model=None)
    async def _health_generate() -> Response:
        return await control.health_generate(service)

    @app.get("/flush_cache", response_model=None, include_in_schema=False)
    @app.post("/flush_cache", response_model=None)
    async def _flush_cache(timeout: float = Query(0.0, ge=0.0)) -> Response:
        return await control.flush_cache(service, timeout)

    @app.get("/start_profile", response_model=None, include_in_schema=False)
    @app.post("/start_profile", **_takes(schema.PROFILE, required=False))
    async def _start_profile(http: Request) -> Response:
        return await control.start_profile(service, await json_body(http, empty={}))

    @app.get("/stop_profile", response_model=None, include_in_schema=False)
    @app.post("/stop_profile", response_model=None)
    async def _stop_profile() -> Response:
        return await control.stop_profile(service)
