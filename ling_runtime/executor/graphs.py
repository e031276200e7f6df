"""The verify step as one CUDA graph: embed, all layers, head, accept, commit, and the relay advanced.

The same function runs eagerly and under capture. It reads the request's slot, length, tokens and pages from the device
and writes its results there, so replaying it is all the host does. The surprise: nothing may be read back inside, not
even a length to size a tensor, which is why its operators are the device variants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING

import torch

from ling_runtime.executor.graph_memory import GraphMemory
from ling_runtime.memory.device import DevicePass, DeviceRecurrent, DeviceWindow
from ling_runtime.ops.cuda.build import obstacle
from ling_runtime.ops.triton.commit import Results, accept, commit
from ling_runtime.ops.triton.relay import look_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from ling_runtime.executor.relay import Relay
    from ling_runtime.memory.caches import Caches
    from ling_runtime.model.ling import Ling
    from ling_runtime.ops.registry import Kernels

DEVICE_VARIANTS = {
    "linear": "triton",
    "rms_norm": "triton",
    "add_rms_norm": "triton",
    "kda_window": "triton",
    "mla_window": "triton",
    "moe": "triton",
    "router": "triton",
    "greedy_head": "triton",
    "lm_head": "triton",
    "dense_mlp": "triton",
    "moe_block": "triton_gate_norm",
}
"""What a captured step runs if nothing else is asked for: the fastest that keeps the checkpoint's precision.

`lm_head` is run by eager steps alone, which must choose from its logits as a captured one does by `greedy_head`.
"""
RANK_VARIANTS = DEVICE_VARIANTS | {"shard_head": "triton"}
"""The same where several ranks share the vocabulary."""
STREAMED_VARIANTS = {"linear": "cuda", "kda_window": "cuda", "moe_block": "cuda"}
"""Instead of those on a card that has a compiler beside it; in the same precision, in another order of sums."""
OF_OTHERS = {"dense_mlp", "moe_block"}
"""Operators whose references are made of other operators, and run wherever those do."""
INSIDE = {"moe_block": ("moe", "router")}
"""Operators that a fused one would leave uncalled."""


def best_here(defaults: Mapping[str, str] = DEVICE_VARIANTS) -> dict[str, str]:
    """`defaults`, with what this machine has built for its card."""
    return dict(defaults) | ({} if obstacle() else STREAMED_VARIANTS)


def device_selection(asked: Mapping[str, str], defaults: Mapping[str, str] = DEVICE_VARIANTS) -> dict[str, str]:
    """Variants of a captured step where `asked` are chosen: no default is fused over one that was asked for."""
    kept = {o: v for o, v in defaults.items() if o in asked or not asked.keys() & set(INSIDE.get(o, ()))}
    return kept | dict(asked)


def missing_variants(kernels: Kernels, needed: Mapping[str, str] = DEVICE_VARIANTS) -> list[str]:
    """Operators that run a variant that does not take lengths from the device, as all of Triton's and CUDA's do."""
    chosen = {str(row["operator"]): str(row["variant"]) for row in kernels.report()}
    return sorted(o for o in needed if o not in OF_OTHERS and chosen[o].split("_")[0] not in {"triton", "cuda"})


class Recorded(ABC):
    """Work on persistent buffers that can be run launch by launch, or recorded once and replayed."""

    _replay: Callable[[], None] | None = None

    @abstractmethod
    def run(self) -> None: ...

    @property
    def name(self) -> str:
        return type(self).__name__

    def capture(self, memory: GraphMemory | None = None) -> None:
        """Record `run`, after one eager run that compiles its kernels and does its work; recording does none."""
        self.run()
        self._replay = (memory or GraphMemory()).record(self.run, self.name)

    def step(self, memory: GraphMemory) -> int:
        """Do the work once: by replay, or launch by launch the first time and where `memory` takes no recording.

        Returns how often Python ran it: not at all, once, or twice, to record it.
        """
        if self._replay is not None:
            self._replay()
            return 0
        if memory.open:
            self.capture(memory)
            return 2
        memory.refuse(self.name)
        self.run()
        return 1

    def replay(self) -> None:
        assert self._replay is not None, "capture comes first"
        self._replay()


class Replays:
    """Runs recorded parts and keeps call counts true: a replay calls no Python, so what its recording called counts."""

    def __init__(self, kernels: Kernels, memory: GraphMemory) -> None:
        self._calls, self._launched, self._memory = kernels.calls, dict[Recorded, Counter[str]](), memory

    def step(self, part: Recorded) -> None:
        before = Counter(self._calls)
        times = part.step(self._memory)
        ran = Counter(self._calls)
        ran.subtract(before)
        if times:
            self._launched[part] = Counter({operator: calls // times for operator, calls in ran.items()})
        self._calls.update(before)
        launched = self._launched.get(part, Counter[str]())
        self._calls.update({operator: self._calls[operator] + calls for operator, calls in launched.items()})


class VerifyStep(Recorded):
    """Greedy verification of `rows` rows for `batch` requests: `slots` says whose, `results` what came.

    `starts` and `hidden` are left for a proposer: where the window began, and its rows after the final norm.
    `simulated` replaces acceptance by a mean accept length, to time steps of weights that nobody trained. `capture`
    names layers whose residual rows are left, too, side by side in `captured`. Steps that share `slots` are one
    choice of how many rows to verify. `fed`: what is looked up by slot is there before the step begins
    (`executor.refill`).
    """

    def __init__(
        self, model: Ling, caches: Caches, relay: Relay, *, batch: int, rows: int, simulated: float | None = None,
        capture: tuple[int, ...] = (), slots: Tensor | None = None, fed: bool = False,
    ) -> None:  # fmt: skip
        self._simulated, self._fed = simulated, fed
        self._model, self._relay, self._latent, self._rows = model, relay, caches.latent.rows, rows
        self._recurrent = DeviceRecurrent(caches.recurrent.pools, batch, rows)
        self.slots = torch.zeros(batch, dtype=torch.int64, device=model.device) if slots is None else slots
        self.starts = torch.zeros_like(self.slots)
        self._verified = torch.zeros(batch, rows, dtype=torch.int64, device=model.device)
        self._table = torch.zeros(batch, relay.tables.shape[1], dtype=torch.int64, device=model.device)
        self.results = Results(torch.zeros_like(self._verified), torch.zeros_like(self.slots))
        self.hidden = torch.zeros(batch * rows, model.config.hidden_size, dtype=model.dtype, device=model.device)
        self._capture, self.captured = capture, self.hidden.repeat(1, len(capture))

    @torch.inference_mode()
    def run(self) -> None:
        """One step, launch by launch."""
        self.look_up()
        pass_ = self.window_pass()
        rows = self._model.rows(self._verified.flatten(), pass_, self._capture)  # type: ignore[arg-type]
        self.hidden.copy_(rows.hidden)
        if self._capture:
            torch.cat(rows.captured, dim=1, out=self.captured)
        choices = self._model.greedy(self.hidden)
        relay = self._relay
        accept(pass_.window, self._verified, choices, relay.lengths, relay.tokens, self.results, self._simulated)
        commit(self._recurrent, pass_.window, self.results.accepted)

    @property
    def name(self) -> str:
        return f"VerifyStep of {len(self.slots)} x {self._rows}"

    @property
    def anchors(self) -> Tensor:
        """[B] each window's first token, as last looked up."""
        return self._verified[:, 0]

    def look_up(self) -> None:
        """What the slots hold now: where their windows start, the tokens to verify, their pages."""
        if self._fed:
            return
        recurrent = self._recurrent
        walked = recurrent.pools.walked
        look_up(self._relay, walked, self.slots, self.starts, self._verified, self._table, recurrent.walked)

    def look_up_by_operations(self) -> None:
        """The same as a chain of tensor operations on the same buffers."""
        relay, slots, recurrent = self._relay, self.slots, self._recurrent
        self.starts.copy_(relay.lengths.index_select(0, slots))
        self._verified[:, 0].copy_(relay.tokens.index_select(0, slots))
        self._verified[:, 1:].copy_(relay.drafts.index_select(0, slots)[:, : self._rows - 1])
        self._table.copy_(relay.tables.index_select(0, slots))
        recurrent.walked.copy_(recurrent.pools.walked.index_select(0, slots))

    def window_pass(self, *, ahead_by: int = 0, rows: int | None = None) -> DevicePass:
        """A pass over the window that was or is verified, or over `rows` rows `ahead_by` positions behind its start."""
        starts = self.starts + ahead_by if ahead_by else self.starts
        window = DeviceWindow(batch=len(self.slots), rows=rows or self._rows, slot_index=self.slots, start_index=starts)
        return DevicePass(window, self._recurrent, self._latent, self._table)
