"""`python -m experiments.loop_bench`: what the host costs a step on one card: in turn, pinned to lengths, or ahead.

The executor of the server on weights drawn on the device, one request, driven as the engine drives it, with busy host
work of a given length between two steps. A loop that waits for the device adds its own time to every step; one that
runs ahead costs nothing until it is slower than the device, and where that happens is the slack. Acceptance is
simulated, since nobody trained the weights: tokens mean nothing, times do.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments import allowed, card
from experiments.step_block import SHARD as DRAFT_SHARD
from ling_runtime.config import WINDOW_ROWS, ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.dspark_graphs import BLOCK_VARIANTS
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graph_step import GraphExecutor
from ling_runtime.executor.interface import Admission
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.draft import DraftPool
from ling_runtime.memory.latent import pages_for
from ling_runtime.model.dspark import Dspark
from ling_runtime.model.ling import Ling
from ling_runtime.model.nextn import Nextn
from ling_runtime.ops.prompt import PROMPT_VARIANTS
from ling_runtime.ops.registry import Kernels
from ling_runtime.speculation.dspark.proposer import DsparkProposer
from ling_runtime.speculation.nextn import NextnProposer

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARD = Path(__file__).parent.parent / "ling_runtime/checkpoints/ling_3_flash_rank_shard"
LOOPS = {
    "synchronous": GraphSettings(),
    "lengths pinned": GraphSettings(overlap=True, seq_lens_pin=True),
    "run ahead": GraphSettings(overlap=True),
}
WARM = 20


@dataclass(frozen=True, kw_only=True)
class Line:
    loop: str
    drafts: int
    host_us: float
    step_ms: float
    spread_ms: float
    tokens_per_step: float
    ttft_ms: float


class Subject:
    """A loaded model with its NEXTN layer, or a `draft` for blocks; every loop gets an executor of its own."""

    def __init__(
        self, config: ModelConfig, draft: DraftConfig | None, *, context: int, most_drafts: int, seed: int
    ) -> None:
        device, self.context = torch.device("cuda"), context
        self.longest = context + 2048
        self.config, weights = config, DummyTensors(config, seed=seed, device=device)
        kernels = Kernels(BLOCK_VARIANTS | PROMPT_VARIANTS)
        positions = self.longest + 2 * (most_drafts + 1)
        self._model = Ling(config, weights, kernels, positions=positions, dtype=torch.bfloat16, device=device)
        self._layer = Nextn(self._model, weights, index=len(config.layers(mla=True)))
        self._draft = None
        if draft is not None:
            tensors = DummyTensors(draft, seed=seed, device=device)
            self._draft = Dspark(self._model, tensors, draft, positions=positions)

    def executor(self, drafts: int, loop: str, accept: float, chunk: int) -> GraphExecutor:
        device = self._model.device
        pages = pages_for(self.longest + 2 * (drafts + 1))
        caches = Caches(self.config, max_requests=1, pages=pages, dtype=torch.bfloat16, device=device)
        proposer: NextnProposer | DsparkProposer | None = None
        if self._draft is not None:
            pool = DraftPool(caches.latent, self._draft.config.num_hidden_layers, self._draft.width)
            proposer = DsparkProposer(self._model, self._draft, pool, steps=drafts)
        elif drafts:
            proposer = NextnProposer(self._model, self._layer, caches, steps=drafts, slots=2)
        return GraphExecutor(
            self._model, caches, proposer, max_context=self.longest, chunk=chunk,
            settings=replace(LOOPS[loop], simulated_accept_length=accept if drafts else None),
        )  # fmt: skip


def busy(microseconds: float) -> None:
    end = time.perf_counter() + microseconds * 1e-6
    while time.perf_counter() < end:
        pass


def measure(subject: Subject, drafts: int, loop: str, options: argparse.Namespace) -> list[Line]:
    executor = subject.executor(drafts, loop, options.accept, options.chunk)
    noise = torch.Generator().manual_seed(options.seed)
    prompt = torch.randint(subject.config.vocab_size - 4, (subject.context,), generator=noise).tolist()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    slot = executor.admit(Admission(prompt, 2000))
    while not executor.prefill(slot).done:
        pass
    ttft = (time.perf_counter() - begun) * 1e3
    for _ in range(WARM):
        executor.decode([slot])
    lines = []
    for host in options.host_us:
        times, tokens = [], 0
        torch.cuda.synchronize()
        for _ in range(options.steps):
            begun = time.perf_counter()
            tokens += sum(len(out.tokens) for out in executor.decode([slot]).values())
            busy(host)
            times.append((time.perf_counter() - begun) * 1e3)
        torch.cuda.synchronize()
        quartiles = statistics.quantiles(times, n=4)
        lines.append(
            Line(
                loop=loop, drafts=drafts, host_us=host, step_ms=round(statistics.fmean(times), 4),
                spread_ms=round(quartiles[2] - quartiles[0], 4), tokens_per_step=round(tokens / options.steps, 3),
                ttft_ms=round(ttft, 1),
            )
        )  # fmt: skip
    return lines


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Host loop against device step on one card.")
    add, whole = parser.add_argument, allowed.whole
    read_model, read_draft = (allowed.checkpoint(kind.from_pretrained) for kind in (ModelConfig, DraftConfig))
    add("--model-path", dest="model", type=read_model, default=str(SHARD), metavar="FOLDER")
    add("--context", type=whole(1), default=8192)
    add("--chunk", type=whole(1), default=8192, help="prompt tokens computed at a time")
    add("--drafts", type=whole(0, WINDOW_ROWS - 1), nargs="+", default=[3], help="0: no speculation")
    add("--dspark", action="store_true", help="drafts are blocks of DSPARK, of so many")
    add("--draft-path", dest="draft", type=read_draft, default=str(DRAFT_SHARD), metavar="FOLDER")
    add("--accept", type=allowed.number(1), default=3.25, help="simulated accept length, the bonus counted")
    add("--host-us", type=allowed.number(0), nargs="+", default=[0, 500, 1000, 2000, 4000, 6000])
    add("--steps", type=whole(2), default=60)
    add("--seed", type=int, default=0)
    add("--out", type=allowed.file, default="loop_bench.json")
    options = parser.parse_args(argv)
    if options.dspark:
        if 0 in options.drafts:
            parser.error(f"argument --drafts: 0: allowed under --dspark: 1 to {WINDOW_ROWS - 1}")
        with allowed.naming(parser, "--draft-path", "; allowed: a draft of this model"):
            options.draft.check_target(options.model)
    most = min((drafts + 1 for drafts in options.drafts if drafts), default=WINDOW_ROWS)
    if options.accept > most:
        parser.error(f"argument --accept: {options.accept}: allowed with these --drafts: 1 to {most}")
    return options


def main() -> None:
    options = arguments()
    card.required()
    config, draft = options.model, options.draft if options.dspark else None
    subject = Subject(config, draft, context=options.context, most_drafts=max(options.drafts), seed=options.seed)
    lines = [line for drafts in options.drafts for loop in LOOPS for line in measure(subject, drafts, loop, options)]
    options.out.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    print(f"{'loop':<16}{'drafts':>7}{'host us':>9}{'step ms':>9}{'iqr':>8}{'tokens':>8}{'ttft ms':>9}")
    for x in lines:
        print(
            f"{x.loop:<16}{x.drafts:>7}{x.host_us:>9.0f}{x.step_ms:>9.3f}{x.spread_ms:>8.3f}{x.tokens_per_step:>8.2f}"
            f"{x.ttft_ms:>9.1f}"
        )


if __name__ == "__main__":
    main()
