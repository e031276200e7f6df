"""Who runs next: first come, first served, one prompt chunk and then one decode step for all, by plain calls.

No threads and no clocks in here: the engine drives it, tests drive it by hand. The surprise: a request is admitted
only when its worst case fits, so nothing is ever preempted, and the head of the queue is never overtaken by a smaller
request.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ling_runtime.refusal import Refusal
from ling_runtime.request import Abort
from ling_runtime.statistics import Statistics

if TYPE_CHECKING:
    from ling_runtime.completion import Completion
    from ling_runtime.executor.interface import Executor
    from ling_runtime.request import Update

    Deliveries = list[tuple[Completion, Update]]


class Scheduler:
    def __init__(self, executor: Executor, max_running_requests: int) -> None:
        self.executor = executor
        self.statistics = Statistics()
        self._max_running = max_running_requests
        self._waiting: deque[Completion] = deque()
        self._prefilling: deque[Completion] = deque()
        self._decoding: dict[int, Completion] = {}

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_prefilling(self) -> int:
        return len(self._prefilling)

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def idle(self) -> bool:
        return not (self._decoding or self._prefilling or self._waiting)

    def add(self, completion: Completion) -> None:
        self._waiting.append(completion)

    def abort(self, completion: Completion, message: str, status: int) -> Deliveries:
        """End one request wherever it is; one that has already finished is left alone."""
        if completion.finished:
            return []
        for queue in (self._waiting, self._prefilling):
            if completion in queue:
                queue.remove(completion)
        return [self._settle(completion, completion.abort(message, status))]

    def abort_all(self, message: str, status: int) -> Deliveries:
        everyone = [*self._decoding.values(), *self._prefilling, *self._waiting]
        return [delivery for completion in everyone for delivery in self.abort(completion, message, status)]

    def prefill(self) -> Deliveries:
        """Admit what fits, then compute one chunk of the oldest unfinished prompt."""
        refused = self._admit()
        if not self._prefilling:
            return refused
        completion = self._prefilling[0]
        assert completion.slot is not None
        update = completion.prefilled(self.executor.prefill(completion.slot))
        if update is None:
            return refused
        self._prefilling.popleft()
        self._decoding[completion.slot] = completion
        return [*refused, self._settle(completion, update)]

    def decode(self) -> Deliveries:
        """One step of every request whose prompt is done; an executor that runs ahead returns the step before."""
        if not self._decoding:
            return []
        outputs = self.executor.decode(tuple(self._decoding))
        window = self.statistics.window
        window.verify_rows += len(outputs)
        window.accepted += len(outputs) + sum(output.correct_drafts for output in outputs.values())
        running = [(self._decoding[slot], output) for slot, output in outputs.items()]
        return [self._settle(completion, completion.decoded(output)) for completion, output in running]

    def flush(self) -> None:
        """Start the measured window anew; Refusal while any request is pending, as SGLang does."""
        if not self.idle:
            raise Refusal(
                f"Cache not flushed because there are pending requests. #queue-req: {self.num_waiting}, "
                f"#running-req: {self.num_running}"
            )
        self.executor.reset_counters()
        self.statistics.flush()

    def _admit(self) -> Deliveries:
        """Move the head of the queue into the executor while it fits; one that never will is refused."""
        refused: Deliveries = []
        while self._waiting and self.num_running < self._max_running:
            completion = self._waiting[0]
            request = completion.request
            if self.executor.can_admit(len(request.prompt), request.max_new_tokens):
                self._waiting.popleft()
                completion.slot = self.executor.admit(request.admission)
                self._prefilling.append(completion)
            elif self.num_running:
                break
            else:
                self._waiting.popleft()
                message = f"{len(request.prompt)} + {request.max_new_tokens} tokens never fit into the cache"
                refused.append(self._settle(completion, completion.abort(message, 400)))
        return refused

    def _settle(self, completion: Completion, update: Update) -> tuple[Completion, Update]:
        """Count the update, and give the slot back if it was the last."""
        lifetime = self.statistics.lifetime
        lifetime.generation_tokens += len(update.tokens)
        if update.finish is not None:
            if completion.slot is not None:
                self._decoding.pop(completion.slot, None)
                self.executor.release(completion.slot)
            lifetime.requests += 1
            lifetime.prompt_tokens += len(completion.request.prompt)
            lifetime.aborted_requests += isinstance(update.finish, Abort)
            lifetime.latency_s.record(update.latency_s or 0.0)
            if completion.first_token_at is not None:
                lifetime.ttft_s.record(completion.first_token_at - completion.arrived)
        return completion, update
