"""The real server with one fault in it: `python -m tests.fakes.planted FAULT[=AMOUNT] <arguments of the server>`.

Each fault is a mistake that somebody could make in the runtime, made by replacing one function of it before the server
starts. The surprise: most of these builds answer fluently, fast and without an error. Only a gate can tell.
"""

from __future__ import annotations

import random
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ling_runtime import completion, server
from ling_runtime.executor import build, step
from ling_runtime.memory.latent import LatentPool
from ling_runtime.memory.recurrent import RecurrentPool
from ling_runtime.model.ling import Ling
from ling_runtime.ops.moe import combine
from ling_runtime.ops.registry import Kernels, variant
from ling_runtime.request import Stop
from ling_runtime.speculation import sampling, verification
from ling_runtime.speculation.nextn import NextnProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

NOISE_SEED = 1


def none(_: float) -> None:
    """The clean build, started in the same way."""


# State ----------------------------------------------------------------------------------------------------------------


def wrong_row(_: float) -> None:
    """A commit takes the state one row past the accepted prefix."""
    commit = RecurrentPool.commit

    def planted(self: RecurrentPool, window: Any, accepted: Tensor) -> None:
        commit(self, window, (accepted + 1).clamp(max=window.rows))

    RecurrentPool.commit = planted


def conv_not_rolled_back(_: float) -> None:
    """The convolution keeps the last rows of the window, accepted or not."""
    commit = RecurrentPool.commit

    def planted(self: RecurrentPool, window: Any, accepted: Tensor) -> None:
        conv = torch.stack([staged.conv for staged in self._staged])
        commit(self, window, accepted)
        self._conv[:, window.slot_index] = conv[:, :, -self._conv.shape[2] :]

    RecurrentPool.commit = planted


def slot_not_cleared(_: float) -> None:
    """A new request starts from the recurrent state that the slot's last one left."""
    RecurrentPool.clear = lambda self, slot: None


def chunk_boundary(_: float) -> None:
    """Every prefill chunk but the first starts with an empty convolution."""
    prefill = step.StepExecutor.prefill

    def planted(self: step.StepExecutor, slot: int) -> Any:
        if self._slots[slot].length:
            self._caches.recurrent._conv[:, slot] = 0
        return prefill(self, slot)

    step.StepExecutor.prefill = planted


def shared_page(_: float) -> None:
    """The first cache page of a request belongs to a running neighbour as well."""
    reserve, release = LatentPool.reserve, LatentPool.release
    own: dict[int, int] = {}

    def planted_reserve(self: LatentPool, slot: int, tokens: int) -> None:
        neighbours = list(self._tables.values())
        reserve(self, slot, tokens)
        own[slot] = self._tables[slot][0]
        if neighbours:
            self._tables[slot][0] = neighbours[0][0]

    def planted_release(self: LatentPool, slot: int) -> None:
        self._tables[slot][0] = own.pop(slot)
        release(self, slot)

    LatentPool.reserve, LatentPool.release = planted_reserve, planted_release


# Speculation ----------------------------------------------------------------------------------------------------------


def always_accepted(_: float) -> None:
    """Every draft is emitted, whatever the target thinks of it."""

    def planted(drafts: Tensor, choices: Tensor) -> Tensor:
        steps = drafts.shape[1]
        choices[:, :steps] = drafts
        return torch.full((drafts.shape[0],), steps)

    verification.correct_drafts = planted


def verified_for_logprobs(_: float) -> None:
    """Drafts are verified only while somebody asks for logprobs."""
    decode, correct_drafts = step.StepExecutor.decode, verification.correct_drafts

    def planted(self: step.StepExecutor, slots: Any) -> Any:
        asked = any(self._slots[slot].asked.logprobs is not None for slot in slots)
        verification.correct_drafts = correct_drafts
        if not asked:
            always_accepted(0)
        return decode(self, slots)

    step.StepExecutor.decode = planted


def stale_extend(_: float) -> None:
    """After verification the draft layer keeps the cache rows that it made from its own guesses."""
    extend = NextnProposer.extend

    def planted(self: NextnProposer, pass_: Any, following: Tensor, target: Any, accepted: Tensor) -> None:
        rows = self._caches.latent.rows[-1].flatten(0, 1)
        written = pass_.places.written
        kept = rows[written]
        extend(self, pass_, following, target, accepted)
        if pass_.window.rows == self.steps + 1:  # not a chunk of a prompt
            rows[written] = kept

    NextnProposer.extend = planted


def late_stop(_: float) -> None:
    """Tokens behind a stop are kept if they came in the same step."""
    extend = completion.Completion._extend

    def planted(self: completion.Completion, tokens: Any, logprobs: Any) -> Any:
        update = extend(self, tokens, logprobs)
        if not isinstance(update.finish, Stop):
            return update
        self.tokens += len(tokens) - len(update.tokens)
        return replace(update, tokens=tuple(tokens), logprobs=tuple(logprobs or ()))

    completion.Completion._extend = planted


# Tokens and logits ----------------------------------------------------------------------------------------------------


def leaked_seed(_: float) -> None:
    """After a sampled request, greedy ones draw with its seed."""
    choose, leaked = sampling.choose, []

    def planted(logits: Tensor, requests: Any, positions: Tensor) -> Tensor:
        leaked.extend(one for one in requests if one.temperature > 0)
        return choose(logits, [*leaked[-1:]] * len(requests) or requests, positions)

    step.choose = verification.choose = planted


def swapped_tokens(position: float) -> None:
    """Once per request, from `position` on, two tokens of a step change places."""
    decode = step.StepExecutor.decode

    def planted(self: step.StepExecutor, slots: Any) -> Any:
        outputs = decode(self, slots)
        for slot, output in outputs.items():
            request = self._slots[slot]
            emitted = request.length - len(request.asked.prompt)
            first, second, *rest = (*output.tokens, None, None)
            if emitted >= position and None not in (first, second) and first != second and not hasattr(request, "done"):
                request.done = True
                outputs[slot] = replace(output, tokens=(second, first, *rest[:-2]))
        return outputs

    step.StepExecutor.decode = planted


def one_bit(_: float) -> None:
    """Adds a variant of `moe_combine`, called bitwise, that has the last bit of every value the other way round."""

    @variant("moe_combine", "last_bit", "bitwise")
    def last_bit(out: Tensor, weights: Tensor) -> Tensor:
        return (combine(out, weights).view(torch.int32) ^ 1).view(torch.float32)


def last_bit(_: float) -> None:
    """The reference of `moe_combine` has the last bit of every value the other way round, and nobody is told."""

    @variant("moe_combine")
    def changed(out: Tensor, weights: Tensor) -> Tensor:
        return (combine(out, weights).view(torch.int32) ^ 1).view(torch.float32)


def kernel_ignored(_: float) -> None:
    """The variants that were asked for are forgotten, and the references run."""
    initialise = Kernels.__init__
    Kernels.__init__ = lambda self, selection=None: initialise(self)


def near_ties_flip(margin: float) -> None:
    """What rounding does to greedy decoding: a best logit that leads by less than `margin` comes second."""
    logits = Ling.logits

    def planted(self: Ling, hidden: Tensor) -> Tensor:
        rows = logits(self, hidden)
        (best, second), (first, runner_up) = (part.unbind(-1) for part in rows.topk(2, dim=-1))
        flipped = (best - second < margin).nonzero().flatten()
        rows[flipped, first[flipped]], rows[flipped, runner_up[flipped]] = second[flipped], best[flipped]
        return rows

    Ling.logits = planted


def jitter(amount: float) -> None:
    """Logits carry noise that is new in every step."""
    logits = Ling.logits

    def planted(self: Ling, hidden: Tensor) -> Tensor:
        rows = logits(self, hidden)
        return rows + amount * torch.randn_like(rows)

    Ling.logits = planted


def worse_target(amount: float) -> None:
    """Noise on every matrix of the target, `amount` of its own spread; from a fixed seed, so always the same model."""
    load = build.load

    def planted(path: str, specs: Mapping[str, Any], **share: int) -> dict[str, Tensor]:
        noise = torch.Generator().manual_seed(NOISE_SEED)
        return {name: worse(tensor, noise) for name, tensor in load(path, specs, **share).items()}

    def worse(tensor: Tensor, noise: torch.Generator) -> Tensor:
        if tensor.ndim < 2:
            return tensor
        wide = tensor.float()
        return (wide + amount * wide.std() * torch.randn(wide.shape, generator=noise)).to(tensor.dtype)

    build.load = planted


# Cost -----------------------------------------------------------------------------------------------------------------


def slow(amount: float) -> None:
    """Every decode step takes `amount` of itself longer, in the clock's time and not in sleep, which wakes up late."""
    decode = step.StepExecutor.decode

    def planted(self: step.StepExecutor, slots: Any) -> Any:
        begun = time.perf_counter()
        outputs = decode(self, slots)
        until = time.perf_counter() + amount * (time.perf_counter() - begun)
        while time.perf_counter() < until:
            pass
        return outputs

    step.StepExecutor.decode = planted


def fewer_accepted(amount: float) -> None:
    """In so many of 100 verifications the last accepted draft is thrown away: right tokens, in more steps."""
    correct_drafts = verification.correct_drafts
    coin = random.Random(NOISE_SEED)

    def planted(drafts: Tensor, choices: Tensor) -> Tensor:
        correct = correct_drafts(drafts, choices)
        lost = torch.tensor([coin.random() < amount / 100 for _ in range(len(correct))])
        return (correct - lost.to(correct.dtype)).clamp(min=0)

    verification.correct_drafts = planted


FAULTS: dict[str, Callable[[float], None]] = {
    fault.__name__: fault
    for fault in (
        none,
        wrong_row,
        conv_not_rolled_back,
        slot_not_cleared,
        chunk_boundary,
        shared_page,
        always_accepted,
        verified_for_logprobs,
        stale_extend,
        late_stop,
        leaked_seed,
        swapped_tokens,
        one_bit,
        last_bit,
        kernel_ignored,
        near_ties_flip,
        jitter,
        worse_target,
        slow,
        fewer_accepted,
    )
}


def main(arguments: list[str]) -> int:
    fault, _, amount = arguments[0].partition("=")
    FAULTS[fault](float(amount or 0))
    return server.main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
