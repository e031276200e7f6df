"""What step_bench times: a loaded model with one request of a given context, and its step by each path.

The model is loaded once and its operators are switched under it. Weights, context and tokens are noise from one seed,
which is all that a step's cost depends on besides how many different experts its rows choose.
"""

from __future__ import annotations

import statistics
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.graphs import (
    DEVICE_VARIANTS,
    RANK_VARIANTS,
    STREAMED_VARIANTS,
    VerifyStep,
    best_here,
    device_selection,
)
from ling_runtime.executor.nextn_graphs import DraftStep, ExtendStep, Seeds
from ling_runtime.executor.relay import Relay
from ling_runtime.executor.switches import DEFAULT, Switches
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.latent import pages_for
from ling_runtime.memory.window import Window
from ling_runtime.model.ling import Ling
from ling_runtime.model.nextn import Nextn
from ling_runtime.ops.cuda.build import obstacle
from ling_runtime.ops.registry import Kernels, variants
from ling_runtime.ops.triton.carveout import divide
from ling_runtime.ops.triton.launch import Pdl, pdl
from ling_runtime.parallel.communicator import ALONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.parallel.communicator import Communicator

ROOM = 1024
"""Positions past the context that steps may fill."""
TRITON_ONLY = {operator: DEVICE_VARIANTS[operator] for operator in STREAMED_VARIANTS}
"""What a machine without a compiler runs."""
BF16_GATE = {"moe_block": "triton_gate_norm_bf16" if obstacle() else "cuda_bf16"}
COUNTED = device_selection({"router": "triton"}, RANK_VARIANTS)
"""A router of its own, whose choices can be counted."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a captured step is made; the defaults are the server's own on a card."""

    pdl: Pdl = "early"
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Variants, where not the device's own."""
    switches: Switches = DEFAULT
    evenly: bool = True
    """Kernels divide a multiprocessor's memory alike (`ops/triton/carveout.py`)."""

    @property
    def selection(self) -> dict[str, str]:
        return device_selection(self.kernels, best_here(RANK_VARIANTS))

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Launches inside are made, and graphs recorded, as this says."""
        divide(self.evenly)
        try:
            with pdl(self.pdl):
                yield
        finally:
            divide(evenly=True)

    @property
    def runs_here(self) -> bool:
        """All of its variants are registered: those in CUDA C++ are only where there is a card and a compiler."""
        return self.selection.items() <= {(v.operator, v.name) for v in variants()}


STACKS: dict[str, Setting] = {
    "default": Setting(),
    "bf16-gate": Setting(kernels=BF16_GATE),
    "triton": Setting(kernels=TRITON_ONLY),
    "pdl-off": Setting(pdl="off"),
    "pdl-late": Setting(pdl="late"),
}
"""Captured steps; the first as the executor makes them here, the second with the post's gate."""


class SwitchedKernels(Kernels):
    """Kernels whose selection can change under a loaded model, and that count the experts a step chooses."""

    def __init__(self) -> None:
        super().__init__()
        self._active = Kernels()
        self.chosen: list[Tensor] | None = None

    def select(self, selection: Mapping[str, str]) -> None:
        self._active = Kernels(selection)

    def variant_of(self, operator: str) -> str:
        return self._active.variant_of(operator)

    def report(self) -> list[dict[str, object]]:
        return self._active.report()

    def __getitem__(self, operator: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = self._active[operator](*args, **kwargs)
            if operator == "router" and self.chosen is not None:
                self.chosen.append(result[0])
            return result

        return call


class Bench:
    """A loaded model with one request of `context` positions, and its step run by either path."""

    def __init__(
        self, whole: ModelConfig, *, context: int, seed: int, most_rows: int, device: str = "cuda",
        ranks: Communicator = ALONE,
    ) -> None:  # fmt: skip
        """Of several `ranks`, each has its own, and all make the same calls."""
        config = whole.of_rank(ranks.size)
        self.config, self.context, self.device, self.ranks = config, context, torch.device(device), ranks
        self.share = replace(config, vocab_size=config.vocab_size // ranks.size)
        """What a rank reads, for floors: its part of the vocabulary, too."""
        self.kernels = SwitchedKernels()
        longest = context + ROOM
        self._weights = DummyTensors(whole, seed=seed, device=self.device, rank=ranks.rank, size=ranks.size)
        self.model = Ling(
            config,
            self._weights,
            self.kernels,
            positions=longest,
            dtype=torch.bfloat16,
            device=self.device,
            ranks=ranks,
        )
        self.nextn = Nextn(self.model, self._weights, index=len(config.layers(mla=True)))
        self.caches = Caches(config, max_requests=1, pages=pages_for(longest), dtype=torch.bfloat16, device=self.device)
        self.relay = Relay(2, drafts=most_rows - 1, longest=longest, device=self.device)
        self.slot = self.caches.reserve(longest)
        self._noise = torch.Generator(self.device).manual_seed(seed)
        self.reset()

    def reset(self) -> None:
        """A full context of noise: latents of unit size, states and rows small, tokens at random."""
        self.caches.latent.rows.normal_(generator=self._noise)
        pools = self.caches.recurrent.pools
        for pool in (pools.conv, pools.ring, pools.state):
            pool.normal_(generator=self._noise).mul_(0.1)
        pools.ring[..., -1 - self.config.head_dim :].sub_(1.0).clamp_(-4.9, -0.1)  # decays are negative logarithms
        pools.ring[..., -1] = 0.5
        pools.walked.fill_(-1)
        self.relay.admit(self.slot, self.caches, length=self.context, token=7)
        self.relay.drafts.random_(self.config.vocab_size, generator=self._noise)

    @torch.inference_mode()
    def eager_reference(self, rows: int) -> None:
        """The step as the reference executor runs it: lengths on the host, operators one by one."""
        window = Window(slots=(self.slot,), starts=(self.context,), rows=rows, device=self.device)
        ids = torch.cat([self.relay.tokens[self.slot : self.slot + 1], self.relay.drafts[self.slot, : rows - 1]])
        hidden = self.model(ids, self.caches.begin(window))
        choices = self.model.logits(hidden[:rows]).argmax(-1)
        agree = (ids[1:] == choices[:-1]).long().cumprod(0).sum()
        self.caches.recurrent.commit(window, (agree + 1).view(1))

    def distinct_experts(self, step: Callable[[], None], rows: int) -> float:
        """Mean number of different experts that a MoE layer's `rows` real rows choose in one step."""
        self.kernels.chosen = []
        step()
        counts = [int(ids[:rows].unique().numel()) for ids in self.kernels.chosen]
        self.kernels.chosen = None
        return statistics.fmean(counts)


def captured(bench: Bench, rows: int, setting: Setting) -> tuple[Callable[[], None], float]:
    """(replay of the verify step, distinct experts of an eager run) with the device operators."""
    bench.kernels.select(COUNTED)
    verify = VerifyStep(bench.model, bench.caches, bench.relay, batch=1, rows=rows)
    verify.slots.fill_(bench.slot)
    with setting.launching():
        distinct = bench.distinct_experts(verify.run, rows)
        bench.kernels.select(setting.selection)
        verify.capture()
    return verify.replay, distinct


def nextn(bench: Bench, steps: int, setting: Setting) -> tuple[Callable[[], None], float]:
    """(three replays that make a whole NEXTN step, distinct experts of its verification)."""
    bench.kernels.select(COUNTED)
    model, device = bench.model, bench.device
    relay = Relay(2, drafts=steps, longest=bench.context + ROOM, device=device)
    relay.admit(bench.slot, bench.caches, length=bench.context, token=7)
    verify = VerifyStep(model, bench.caches, relay, batch=1, rows=steps + 1)
    verify.slots.fill_(bench.slot)
    seeds = Seeds(torch.zeros_like(relay.tokens), model.lookup(torch.arange(2, device=device)))
    draft = DraftStep(model, bench.nextn, relay, seeds, verify, steps)
    extend = ExtendStep(model, bench.nextn, seeds, verify)
    with setting.launching():
        draft.run()
        distinct = bench.distinct_experts(verify.run, steps + 1)
        bench.kernels.select(setting.selection)
        for part in (draft, verify, extend):
            part.capture()

    def step() -> None:
        draft.replay()
        verify.replay()
        extend.replay()

    return step, distinct


def referred(bench: Bench, rows: int) -> tuple[Callable[[], None], float]:
    bench.kernels.select({})
    step = partial(bench.eager_reference, rows)
    return step, bench.distinct_experts(step, rows)
