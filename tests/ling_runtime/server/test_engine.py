"""The engine thread and the event loop: one wake-up per step, calls between steps, and a loud death."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from scripted import ScriptedExecutor

from ling_runtime.engine import Engine
from ling_runtime.refusal import Refusal
from ling_runtime.request import Abort, Request
from ling_runtime.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from ling_runtime.request import Update
    from ling_runtime.tokenizer import Tokenizer

CLIENTS = 8
TOKENS = 40


def request(index: int = 0, max_new_tokens: int = TOKENS) -> Request:
    prompt = (70 + index, 71)
    return Request(
        id=str(index), prompt=prompt, max_new_tokens=max_new_tokens, sampling=SamplingParams(), seed=1, stop_tokens={}
    )


@contextlib.asynccontextmanager
async def running(executor: ScriptedExecutor, tokenizer: Tokenizer) -> AsyncIterator[Engine]:
    engine = Engine(executor, tokenizer, max_running_requests=CLIENTS)
    failed = asyncio.Event()
    engine.start(failed.set)
    yield engine
    if engine.failure is not None:
        assert failed.is_set()
    engine.shut_down()
    engine.join(5)


async def collect(engine: Engine, wanted: Request) -> list[Update]:
    updates: list[Update] = []
    async with engine.stream(wanted) as stream:
        while not updates or updates[-1].finish is None:
            updates += await stream.take()
    return updates


def test_the_event_loop_is_woken_once_a_step(tokenizer: Tokenizer) -> None:
    """Eight requests and three tokens a step make no difference to the number of wake-ups."""
    executor = ScriptedExecutor(lambda prompt: [prompt[0]], window=3, step_s=0.001)
    wakes = 0

    async def talk() -> None:
        nonlocal wakes
        loop = asyncio.get_running_loop()
        call = loop.call_soon_threadsafe

        def counted(callback: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return call(callback, *args, **kwargs)

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign]
        async with running(executor, tokenizer) as engine:
            answers = await asyncio.gather(*(collect(engine, request(i)) for i in range(CLIENTS)))
        for index, updates in enumerate(answers):
            assert [token for update in updates for token in update.tokens] == [70 + index] * TOKENS

    asyncio.run(talk())
    assert wakes <= executor.steps + CLIENTS  # each prompt's last chunk delivers its first token


def test_a_slow_reader_gets_everything_at_once(tokenizer: Tokenizer) -> None:
    async def talk() -> list[int]:
        sizes = []
        async with (
            running(ScriptedExecutor(lambda _: [70], step_s=0.001), tokenizer) as engine,
            engine.stream(request()) as stream,
        ):
            while not stream.finished:
                await asyncio.sleep(0.01)
            sizes.append(len(await stream.take()))
        return sizes

    assert asyncio.run(talk()) == [TOKENS]


def test_calls_run_in_the_engine_thread_and_raise_in_the_caller(tokenizer: Tokenizer) -> None:
    async def talk() -> None:
        async with running(ScriptedExecutor(lambda _: [70]), tokenizer) as engine:
            assert await engine.call(lambda: threading.current_thread().name) == "engine"
            with pytest.raises(ZeroDivisionError):
                await engine.call(lambda: 1 // 0)
            assert (await collect(engine, request()))[-1].finish is not None

    asyncio.run(talk())


def test_a_failure_ends_requests_and_calls_and_refuses_new_ones(tokenizer: Tokenizer) -> None:
    async def talk() -> None:
        executor = ScriptedExecutor(lambda _: [70], fail_at_step=3, step_s=0.01)
        async with running(executor, tokenizer) as engine:
            first, second = await asyncio.gather(collect(engine, request(0)), collect(engine, request(1)))
            for updates in (first, second):
                assert isinstance(updates[-1].finish, Abort)
                assert "a kernel went wrong" in updates[-1].finish.message
            assert isinstance(engine.failure, RuntimeError)
            with pytest.raises(Refusal, match="the engine has failed") as refusal:
                await engine.call(lambda: None)
            assert refusal.value.status == 503
            with pytest.raises(Refusal, match="the engine has failed"):
                await collect(engine, request())

    asyncio.run(talk())


def test_shutting_down_ends_pending_requests(tokenizer: Tokenizer) -> None:
    async def talk() -> None:
        async with running(ScriptedExecutor(lambda _: [70], step_s=0.01), tokenizer) as engine:
            pending = [asyncio.ensure_future(collect(engine, request(i, 1000))) for i in range(12)]
            await asyncio.sleep(0.05)
            engine.shut_down()
            for updates in await asyncio.gather(*pending):
                assert updates[-1].finish == Abort("the server is shutting down", 503)

    asyncio.run(talk())
