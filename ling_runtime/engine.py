"""The engine thread: it owns the executor and the scheduler, and runs steps for as long as there is work.

The event loop talks to it through one inbox of calls that run between steps, and hears from it once per step, not once
per token. When there is nothing to do the thread sleeps in the inbox. The surprise: an exception in a step is never
survived. Every pending request gets an error, `failure` is set, health turns 503 and the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from ling_runtime.completion import Completion
from ling_runtime.refusal import Refusal
from ling_runtime.request import Abort, Update
from ling_runtime.scheduler import Scheduler
from ling_runtime.stream import Stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ling_runtime.executor.interface import Executor
    from ling_runtime.request import Request
    from ling_runtime.scheduler import Deliveries
    from ling_runtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Result = TypeVar("Result")

CLIENT_CLOSED_REQUEST = 499
"""nginx's status for a client that went away; nobody is left to read it."""


class Engine:
    def __init__(
        self,
        executor: Executor,
        tokenizer: Tokenizer,
        *,
        max_running_requests: int,
        at_start: Callable[[], None] = lambda: None,
    ) -> None:
        """`at_start` is the first that the engine thread does."""
        self.executor = executor
        self.scheduler = Scheduler(executor, max_running_requests)
        self.failure: BaseException | None = None
        self._tokenizer = tokenizer
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._closed = False
        """Set in the event loop, so that nothing is asked of the thread after it was told to stop."""
        self._stopping = False
        """Set in the engine thread, when it has settled everything that was asked before."""
        self._loop: asyncio.AbstractEventLoop
        self._at_start, self._on_failure = at_start, _nothing
        self._at_end: Callable[[], None] = lambda: None
        self._streams: set[Stream] = set()
        self._calls: set[asyncio.Future[Any]] = set()

    def start(self, on_failure: Callable[[], None], at_end: Callable[[], None] = lambda: None) -> None:
        """Called in the event loop that will receive the updates; `on_failure` runs there if the thread dies.

        `at_end` is the last that the thread does, however it ends.
        """
        self._loop = asyncio.get_running_loop()
        self._on_failure, self._at_end = on_failure, at_end
        self._thread.start()

    def shut_down(self) -> None:
        """Abort what is pending and end the thread after its current step. May be called in a signal handler."""
        self._closed = True
        self._inbox.put(self._stop)

    def fail(self, error: BaseException) -> None:
        """End as if a step had failed with `error`; from any thread, after `start`."""
        self._loop.call_soon_threadsafe(self._fail, error)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[Stream]:
        """Run a request; leaving the block before its end cancels it and frees its slot."""
        self._require_alive()
        stream = Stream()
        completion = Completion(request, self._tokenizer, self.executor.window, stream.push)
        self._streams.add(stream)
        self._inbox.put(lambda: self.scheduler.add(completion))
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            if not stream.finished:
                self._inbox.put(lambda: self._cancel(completion))

    async def call(self, function: Callable[[], Result]) -> Result:
        """Run `function` in the engine thread between two steps; its exception is raised here."""
        self._require_alive()
        future: asyncio.Future[Result] = self._loop.create_future()
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        self._inbox.put(lambda: self._answer(future, function))
        return await future

    def _require_alive(self) -> None:
        if self.failure is not None:
            raise Refusal(f"the engine has failed: {self.failure!r}", status=503)
        if self._closed:
            raise Refusal("the server is shutting down", status=503)

    # -- engine thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._at_start()
            self._steps()
        except BaseException as error:
            log.critical("the engine thread failed", exc_info=error)
            self._loop.call_soon_threadsafe(self._fail, error)
        finally:
            self._at_end()

    def _steps(self) -> None:
        """One prompt chunk, then one decode step, until told to stop; each phase is timed up to its hand-over."""
        mark = time.perf_counter()
        while not self._stopping:
            if self._read_inbox():
                mark = time.perf_counter()
            first = self.scheduler.prefill()
            if first or self.scheduler.num_prefilling:
                self._deliver(first)
                mark = time.perf_counter()
            decoded = self.scheduler.decode()
            if decoded:
                self._deliver(decoded)
                now = time.perf_counter()
                self.scheduler.statistics.window.steps_ms.record((now - mark) * 1e3)
                mark = now

    def _read_inbox(self) -> bool:
        """Run what the event loop asked for; True when the thread slept, so that the pause is not a step's."""
        slept = self.scheduler.idle
        if slept:
            self._inbox.get()()
        while not self._inbox.empty():
            self._inbox.get()()
        return slept

    def _deliver(self, deliveries: Deliveries) -> None:
        if deliveries:
            self._loop.call_soon_threadsafe(_push, deliveries)

    def _cancel(self, completion: Completion) -> None:
        self._deliver(self.scheduler.abort(completion, "the client went away", CLIENT_CLOSED_REQUEST))

    def _stop(self) -> None:
        self._stopping = True
        self._deliver(self.scheduler.abort_all("the server is shutting down", 503))

    def _answer(self, future: asyncio.Future[Result], function: Callable[[], Result]) -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - it is raised again in the caller, who waits for it
            self._loop.call_soon_threadsafe(_settle, future, None, error)
        else:
            self._loop.call_soon_threadsafe(_settle, future, result, None)

    # -- event loop ----------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for stream in self._streams:
            if not stream.finished:
                stream.push(Update(text="", tokens=(), finish=Abort(f"the engine has failed: {error!r}", 500)))
        for future in tuple(self._calls):
            _settle(future, None, Refusal(f"the engine has failed: {error!r}", status=503))
        self._on_failure()


def _nothing() -> None:
    pass


def _push(deliveries: Deliveries) -> None:
    for completion, update in deliveries:
        completion.sink(update)


def _settle(future: asyncio.Future[Result], result: Any, error: Exception | None) -> None:
    if future.done():  # its caller was cancelled
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
