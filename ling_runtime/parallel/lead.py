"""The executor of a server with several ranks: rank 0's own, every call of which is told to the others first.

They run ahead of each other as far as sums allow: a call is a message of some bytes on a socket, and nobody answers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ling_runtime.parallel.rank import Rank

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.executor.interface import Admission, Occupancy, PrefillOutput, StepOutput
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.parallel.communicator import Communicator
    from ling_runtime.parallel.ranks import Ranks


class LeadExecutor:
    """Satisfies `executor.interface.Executor`."""

    def __init__(self, executor: StepExecutor, ranks: Ranks, group: Communicator, device: str) -> None:
        self.max_context, self.vocab_size, self.window = executor.max_context, executor.vocab_size, executor.window
        self._own, self._ranks, self._rank = executor, ranks, Rank(executor, group, device)

    def can_admit(self, prompt_tokens: int, max_new_tokens: int) -> bool:
        return self._own.can_admit(prompt_tokens, max_new_tokens)

    def admit(self, asked: Admission) -> int:
        slot: int = self._all("admit", asked)
        return slot

    def prefill(self, slot: int) -> PrefillOutput:
        out: PrefillOutput = self._all("prefill", slot)
        return out

    def decode(self, slots: Sequence[int]) -> dict[int, StepOutput]:
        outputs: dict[int, StepOutput] = self._all("decode", tuple(slots))
        return outputs

    def release(self, slot: int) -> None:
        self._all("release", slot)

    def occupancy(self) -> Occupancy:
        return self._own.occupancy()

    def kernel_report(self) -> list[dict[str, Any]]:
        return self._own.kernel_report()

    def executor_report(self) -> dict[str, Any]:
        """With `ranks`, in their own words; they end here if they have not all done the same."""
        reports = [self._rank.report(), *self._ranks.reports()]
        if len({(one["calls"], one["digest"]) for one in reports}) > 1:
            self._ranks.lose(f"ranks have gone different ways: {reports}")
        return self._own.executor_report() | {"ranks": reports}

    def speculation_report(self) -> dict[str, Any] | None:
        return self._own.speculation_report()

    def reset_counters(self) -> None:
        self._all("reset_counters")

    def _all(self, name: str, *args: Any) -> Any:
        self._ranks.tell(name, *args)
        return self._rank.call(name, *args)
