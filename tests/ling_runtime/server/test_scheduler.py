"""Who runs when: order, admission, one chunk and one step an iteration, cancellation in every phase, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scripted import ScriptedExecutor

from ling_runtime.completion import Completion
from ling_runtime.refusal import Refusal
from ling_runtime.request import Abort, Length, Request
from ling_runtime.sampling import SamplingParams
from ling_runtime.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_runtime.tokenizer import Tokenizer

    Arrive = Callable[..., Completion]


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor(lambda _: [7, 8, 9], chunk=4, num_slots=3, num_tokens=100, window=3)


@pytest.fixture
def scheduler(executor: ScriptedExecutor) -> Scheduler:
    return Scheduler(executor, max_running_requests=2)


@pytest.fixture
def arrive(scheduler: Scheduler, tokenizer: Tokenizer) -> Arrive:
    def add(name: str, prompt_tokens: int = 3, max_new_tokens: int = 9) -> Completion:
        request = Request(
            id=name,
            prompt=tuple(range(10, 10 + prompt_tokens)),
            max_new_tokens=max_new_tokens,
            sampling=SamplingParams(),
            seed=1,
            stop_tokens={},
        )
        completion = Completion(request, tokenizer, scheduler.executor.window, lambda _: None)
        scheduler.add(completion)
        return completion

    return add


def test_first_come_first_served_up_to_the_limit(
    scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive
) -> None:
    first, second, third = arrive("a"), arrive("b"), arrive("c")
    assert [c for c, _ in scheduler.prefill()] == [first]
    assert [c for c, _ in scheduler.prefill()] == [second]
    assert scheduler.prefill() == []
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    while not first.finished:
        scheduler.decode()
    assert [c for c, _ in scheduler.prefill()] == [third]
    assert ("decode", (1, 2)) in executor.log


def test_a_long_prompt_takes_one_chunk_between_steps(
    scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive
) -> None:
    arrive("short", max_new_tokens=50)
    scheduler.prefill()
    arrive("long", prompt_tokens=10)
    for _ in range(3):
        scheduler.prefill()
        scheduler.decode()
    kinds = [kind for kind, _ in executor.log]
    assert kinds == ["admit", "prefill", "admit", "prefill", "decode", "prefill", "decode", "prefill", "decode"]
    assert executor.log[-1] == ("decode", (1, 2))


def test_the_head_of_the_queue_is_not_overtaken(
    scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive
) -> None:
    running = arrive("a", max_new_tokens=60)
    scheduler.prefill()
    arrive("big", max_new_tokens=90)
    arrive("small")
    assert scheduler.prefill() == []
    assert scheduler.num_waiting == 2
    scheduler.abort(running, "gone", 499)
    assert [c.request.id for c, _ in scheduler.prefill()] == ["big"]


def test_a_request_that_can_never_fit_is_refused(
    scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive
) -> None:
    arrive("huge", max_new_tokens=200)
    small = arrive("small")
    deliveries = scheduler.prefill()
    assert isinstance(deliveries[0][1].finish, Abort)
    assert deliveries[0][1].finish.status == 400
    assert deliveries[1][0] is small


@pytest.mark.parametrize("phase", ["waiting", "prefilling", "decoding"])
def test_cancellation_frees_the_slot_in_every_phase(
    scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive, phase: str
) -> None:
    completion = arrive("a", prompt_tokens=10)
    for _ in range({"waiting": 0, "prefilling": 1, "decoding": 3}[phase]):
        scheduler.prefill()
    ((cancelled, update),) = scheduler.abort(completion, "gone", 499)
    assert cancelled is completion
    assert update.finish == Abort("gone", 499)
    assert scheduler.idle
    assert executor.slots == {}
    assert scheduler.abort(completion, "again", 499) == []


def test_every_slot_comes_back(scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive) -> None:
    completions = [arrive(str(i), prompt_tokens=1 + i, max_new_tokens=2 + i) for i in range(7)]
    for _ in range(100):
        scheduler.prefill()
        scheduler.decode()
    assert all(completion.finished for completion in completions)
    assert [c.tokens for c in completions] == [2 + i for i in range(7)]
    assert executor.slots == {}


def test_counts_of_the_window_and_of_the_lifetime(
    scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive
) -> None:
    completion = arrive("a", max_new_tokens=7)
    scheduler.prefill()
    while not completion.finished:
        scheduler.decode()
    # Emitted 1, then steps of 2, 1 and 2 tokens (1 + emitted % 3), and one more of which a single token is wanted.
    window = scheduler.statistics.window
    assert window.accept_length() == pytest.approx(window.accepted / window.verify_rows)
    assert window.verify_rows == executor.steps
    assert window.accepted >= 6
    lifetime = scheduler.statistics.lifetime
    assert (lifetime.generation_tokens, lifetime.prompt_tokens, lifetime.requests) == (7, 3, 1)
    assert lifetime.ttft_s.count == lifetime.latency_s.count == 1


def test_flush_starts_a_new_window_and_waits_for_nobody(
    scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive
) -> None:
    completion = arrive("a", max_new_tokens=4)
    with pytest.raises(Refusal, match="#queue-req: 1, #running-req: 0"):
        scheduler.flush()
    scheduler.prefill()
    while not completion.finished:
        scheduler.decode()
    scheduler.flush()
    assert scheduler.statistics.window.accept_length() is None
    assert executor.steps == 0
    assert scheduler.statistics.lifetime.requests == 1


def test_abort_all_ends_everyone(scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive) -> None:
    for name in "abcd":
        arrive(name)
    scheduler.prefill()
    deliveries = scheduler.abort_all("shutting down", 503)
    assert len(deliveries) == 4
    assert scheduler.idle
    assert executor.slots == {}


def test_an_answer_of_one_token_needs_no_step(scheduler: Scheduler, executor: ScriptedExecutor, arrive: Arrive) -> None:
    arrive("a", max_new_tokens=1)
    ((_, update),) = scheduler.prefill()
    assert update.finish == Length(1)
    assert scheduler.decode() == []
    assert executor.steps == 0
