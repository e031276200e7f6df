"""The calls that do not generate: health, what is served, what was measured, flush, profile, metrics.

Whatever reads or changes the engine's state runs in the engine thread between two steps. The surprise: that alone
makes `/health_generate` meaningful while requests run. An answer proves that steps still end, without adding a request
to them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse, PlainTextResponse, Response

from ling_runtime import host, speculative_flags
from ling_runtime.api import prometheus
from ling_runtime.api.exchange import updates
from ling_runtime.refusal import Refusal
from ling_runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ling_runtime.api.service import Service

FLUSH_POLL_S = 0.02

HEALTH_TIMEOUT_S = 20
"""SGLang's limit: an engine that has not answered by then hangs."""


async def health(service: Service) -> Response:
    """200 while the engine thread answers."""
    await _in_time(service.engine.call(lambda: None))
    return Response()


async def health_generate(service: Service) -> Response:
    """200 after one generated token; while requests run, after the current step."""
    await _in_time(_prove_generation(service))
    return Response()


async def _prove_generation(service: Service) -> None:
    if not await service.engine.call(lambda: service.engine.scheduler.idle):
        return
    request = service.request([0], SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True))
    async for _ in updates(service.engine, request):
        pass


async def _in_time(work: Awaitable[None]) -> None:
    try:
        await asyncio.wait_for(work, HEALTH_TIMEOUT_S)
    except TimeoutError as error:
        raise Refusal(f"no step has ended for {HEALTH_TIMEOUT_S} s", status=503) from error


async def models(service: Service) -> Response:
    card = {
        "id": service.config.served_model_name,
        "object": "model",
        "created": int(service.started),
        "owned_by": "ling_runtime",
        "root": service.config.served_model_name,
        "max_model_len": service.engine.executor.max_context,
    }
    return JSONResponse({"object": "list", "data": [card]})


async def model_info(service: Service) -> Response:
    config = service.config
    return JSONResponse(
        {
            "model_path": config.model_path,
            "tokenizer_path": config.tokenizer_path,
            "served_model_name": config.served_model_name,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": config.weight_version,
            **service.architecture,
        }
    )


async def server_info(service: Service) -> Response:
    return JSONResponse(await service.engine.call(lambda: _server_info(service)))


async def flush_cache(service: Service, timeout_s: float) -> Response:
    """Flush when nothing is pending, or as soon as that is so within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await service.engine.call(service.engine.scheduler.flush)
        except Refusal as refusal:
            if refusal.status != 400 or time.monotonic() >= deadline:
                raise
            await asyncio.sleep(FLUSH_POLL_S)
        else:
            host.settle(service.config)
            return PlainTextResponse("Cache flushed.\n")


async def start_profile(service: Service, body: object) -> Response:
    await service.engine.call(lambda: service.profiler.start(body))
    return PlainTextResponse("Start profiling.\n")


async def stop_profile(service: Service) -> Response:
    file = await service.engine.call(service.profiler.stop)
    return PlainTextResponse(f"Stop profiling. Trace: {file}\n")


async def metrics(service: Service) -> Response:
    name = service.config.served_model_name
    text = await service.engine.call(lambda: prometheus.exposition(service.engine.scheduler, name))
    return Response(text, media_type=prometheus.CONTENT_TYPE)


def _server_info(service: Service) -> dict[str, Any]:
    """Resolved arguments under their own names, then what was counted since the last flush.

    No key may be `decode` or `prefill`: SGLang's client takes those for servers behind a router.
    """
    scheduler, executor = service.engine.scheduler, service.engine.executor
    window = scheduler.statistics.window
    state: dict[str, object] = {
        "num_running_reqs": scheduler.num_running,
        "num_queue_reqs": scheduler.num_waiting,
        **dataclasses.asdict(executor.occupancy()),
    }
    if executor.window > 1:
        state["avg_spec_accept_length"] = window.accept_length()
    return {
        **service.config.to_json(),
        "context_length": executor.max_context,
        "startup_time": service.started,
        "internal_states": [state],
        "kernels": executor.kernel_report(),
        "speculation": speculative_flags.section(service.config, executor.speculation_report()),
        "steps": window.steps_json(),
        "executor": executor.executor_report(),
        "host": host.report(),
    }
