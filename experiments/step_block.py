"""What step_bench times of DSPARK: a draft whose weights are drawn, over a full context, and its step part by part.

A step is three replays, and each is held against a floor of its own: the draft reads its layers, the context of all of
them and the head, verification what any window of its rows does, injection the products that make context of the
target's rows. The factors of the Markov chain count once: they are read for every draft, but stay in the cache. What is
verified is what was drafted, so the experts of a step are counted over a few whole ones, each with a block of its own.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.step_floor import block_bytes
from experiments.step_subject import ROOM
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.dspark_graphs import BLOCK_VARIANTS, BlockStep, InjectStep
from ling_runtime.executor.graphs import Recorded, VerifyStep, best_here, device_selection
from ling_runtime.executor.relay import Relay
from ling_runtime.memory.draft import DraftPool
from ling_runtime.model.dspark import Dspark
from ling_runtime.speculation.dspark.proposer import DsparkProposer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from experiments.step_subject import Bench, Setting
    from ling_runtime.draft_config import DraftConfig

COUNTED_STEPS = 4
"""Whole steps whose experts are counted."""
COUNTED_BLOCK = device_selection({"router": "triton"}, BLOCK_VARIANTS)
"""With a router of its own, whose choices can be counted."""
SHARD = Path(__file__).parent.parent / "ling_runtime/checkpoints/ling_3_flash_rank_shard_dspark"


@dataclass(frozen=True)
class Part:
    """One replay of a step, or all of them."""

    name: str
    rows: int
    step: Callable[[], None]
    size: float
    distinct: float


class Drafted:
    """A draft on the bench's model; `accept`: a simulated accept length, else that of the drawn weights, about one."""

    def __init__(self, bench: Bench, config: DraftConfig, seed: int, accept: float | None = None) -> None:
        self._bench, self._config = bench, captured_of(config, bench.config.num_hidden_layers)
        weights = DummyTensors(self._config, seed=seed, device=bench.device)
        self._draft = Dspark(bench.model, weights, self._config, positions=bench.context + ROOM)
        self._pool = DraftPool(bench.caches.latent, self._config.num_hidden_layers, self._draft.width)
        self._accept = accept

    def parts(self, drafts: int, setting: Setting) -> Iterator[Part]:
        """Draft, verify, inject, and the whole step, at a block of `drafts`; the bench is reset before each."""
        bench, rows = self._bench, drafts + 1
        relay, graphs = self.graphs(drafts)

        def whole() -> None:
            for graph in graphs:
                graph.replay()

        with setting.launching():
            distinct = self.distinct_experts(relay, graphs, rows)
            bench.kernels.select(device_selection(setting.kernels, best_here(BLOCK_VARIANTS)))
            for graph in graphs:
                graph.capture()
        sizes = block_bytes(bench.config, self._config, drafts=drafts, context=bench.context, distinct=distinct)
        steps = (graphs[0].replay, graphs[1].replay, graphs[2].replay, whole)
        experts = (0.0, distinct, 0.0, distinct)
        of = (self._draft.rows(drafts), rows, rows, rows)
        for name, step, size, count, used in zip(sizes, steps, sizes.values(), of, experts, strict=True):
            self.begin(relay, graphs)
            yield Part(f"{name} {drafts}", count, step, size, used)

    def graphs(self, drafts: int) -> tuple[Relay, tuple[BlockStep, VerifyStep, InjectStep]]:
        """What a step replays in turn, not yet recorded, and what they share."""
        bench = self._bench
        bench.kernels.select(COUNTED_BLOCK)
        relay = Relay(2, drafts=drafts, longest=bench.context + ROOM, device=bench.device)
        proposer = DsparkProposer(bench.model, self._draft, self._pool, steps=drafts)
        verify = VerifyStep(
            bench.model, bench.caches, relay, batch=1, rows=drafts + 1, capture=proposer.capture, simulated=self._accept
        )
        verify.slots.fill_(bench.slot)
        return relay, (BlockStep(bench.model, proposer, relay, verify), verify, InjectStep(proposer, verify))

    def begin(self, relay: Relay, graphs: Sequence[Recorded]) -> None:
        """A full context, and a block drafted behind it, for a part that is timed alone."""
        self._bench.reset()
        self._pool.rows.normal_()
        relay.admit(self._bench.slot, self._bench.caches, length=self._bench.context, token=7)
        graphs[0].run()

    def distinct_experts(self, relay: Relay, graphs: Sequence[Recorded], rows: int) -> float:
        """Mean over layers and over whole steps in turn, each verifying the block that it drafted."""
        self._bench.kernels.select(COUNTED_BLOCK)
        self.begin(relay, graphs)
        draft, verify, inject = graphs
        counts = []
        for _ in range(COUNTED_STEPS):
            draft.run()
            counts.append(self._bench.distinct_experts(verify.run, rows))
            inject.run()
        return statistics.fmean(counts)


def captured_of(config: DraftConfig, layers: int) -> DraftConfig:
    """`config` on a target cut down to `layers`: as many captured layers as there can be."""
    if config.target_layer_ids[-1] < layers - 1:
        return config
    return replace(config, target_layer_ids=tuple(range(min(len(config.target_layer_ids), layers - 1))))
