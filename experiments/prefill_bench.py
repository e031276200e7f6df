"""`python -m experiments.prefill_bench`: time to the first token on one card, and where it goes by operator family.

The executor of the server on weights drawn on the device, one prompt of noise, as the engine computes it: part by part,
the head on the last row, one wait at the end. What follows the token, the draft's own pass over the last part, is timed
too, for it lies before the first step. Families are timed under the profiler in a run of their own, so their sum is a
little more than the device's time. Table last, JSON beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from experiments import allowed, card
from experiments.prefill_floor import KERNELS, REST, work
from experiments.prefill_table import Family, Line, table
from experiments.step_bench import SHARD, cut
from experiments.step_floor import copy_bandwidth
from experiments.step_subject import SwitchedKernels
from ling_runtime.config import ModelConfig
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.graphs import device_selection
from ling_runtime.executor.interface import Admission
from ling_runtime.executor.step import StepExecutor
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.latent import pages_for
from ling_runtime.model.ling import Ling
from ling_runtime.model.nextn import Nextn
from ling_runtime.ops.prompt import PROMPT_VARIANTS
from ling_runtime.speculation.nextn import NextnProposer

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOM = 64
STACKS = {"triton": PROMPT_VARIANTS, "library": PROMPT_VARIANTS | {"prompt_linear": "library"}, "reference": {}}
"""What computes prompts; `library` is `triton` with the vendor's dense products."""


class Subject:
    """A loaded model, its NEXTN layer and a prompt; operators are switched under them."""

    def __init__(self, config: ModelConfig, *, rows: int, seed: int, draft: bool, device: str = "cuda") -> None:
        self.config, self.rows, self.draft, self._device = config, rows, draft, torch.device(device)
        self.kernels, weights = SwitchedKernels(), DummyTensors(config, seed=seed, device=self._device)
        dtype, self._longest = torch.bfloat16, rows + ROOM
        self._model = Ling(
            config, weights, self.kernels, positions=self._longest, dtype=dtype, device=self._device
        )  # fmt: skip
        self._layer = Nextn(self._model, weights, index=len(config.layers(mla=True))) if draft else None
        noise = torch.Generator().manual_seed(seed)
        self.prompt = torch.randint(config.vocab_size - 4, (rows,), generator=noise).tolist()

    def executor(self, stack: str, part: int) -> StepExecutor:
        self.kernels.select(device_selection(STACKS[stack]))
        pages = pages_for(self._longest)
        caches = Caches(self.config, max_requests=1, pages=pages, dtype=torch.bfloat16, device=self._device)
        proposer = NextnProposer(self._model, self._layer, caches, steps=3, slots=2) if self._layer else None
        return StepExecutor(self._model, caches, proposer, max_context=self._longest, chunk=part)

    def run(self, executor: StepExecutor) -> tuple[float, float]:
        """Milliseconds to the token, and until the device is done."""
        torch.cuda.synchronize()
        begun = time.perf_counter()
        slot = executor.admit(Admission(self.prompt, 8))
        while not executor.prefill(slot).done:
            pass
        token = time.perf_counter()
        torch.cuda.synchronize()
        done = time.perf_counter()
        executor.release(slot)
        return (token - begun) * 1e3, (done - begun) * 1e3


def families(subject: Subject, executor: StepExecutor, part: int, bandwidth: float) -> tuple[Family, ...]:
    """One prompt under the profiler, by family; longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        subject.run(executor)
    spent: dict[str, float] = defaultdict(float)
    launches: dict[str, int] = defaultdict(int)
    for event in profile.events():
        if event.device_type.name == "CUDA":
            family = KERNELS.get(event.name.split("(")[0], REST)
            spent[family] += event.device_time
            launches[family] += 1
    needed = work(subject.config, rows=subject.rows, part=part, draft=subject.draft)
    return tuple(
        Family(
            name=name,
            launches=launches[name],
            ms=round(us / 1e3, 3),
            tflop=round(needed[name].flops / 1e12, 3) if name in needed else 0.0,
            gigabytes=round(needed[name].bytes / 1e9, 2) if name in needed else 0.0,
            floor_ms=round(needed[name].floor_ms(bandwidth), 3) if name in needed else 0.0,
        )
        for name, us in sorted(spent.items(), key=lambda item: -item[1])
    )


def measure(subject: Subject, stack: str, part: int, repeats: int, bandwidth: float) -> Line:
    executor = subject.executor(stack, part)
    subject.run(executor)
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    times = [subject.run(executor) for _ in range(repeats)]
    peak = torch.cuda.max_memory_allocated() - held
    tokens = [token for token, _ in times]
    return Line(
        stack=stack,
        part=part,
        ttft_ms=round(statistics.median(tokens), 2),
        spread_ms=round(max(tokens) - min(tokens), 2),
        device_ms=round(statistics.median(done for _, done in times), 2),
        peak_gigabytes=round(peak / 1e9, 2),
        families=families(subject, executor, part, bandwidth),
    )


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time to the first token on one card.")
    add, whole, read_model = parser.add_argument, allowed.whole, allowed.checkpoint(ModelConfig.from_pretrained)
    add("--model-path", dest="model", type=read_model, default=str(SHARD), metavar="FOLDER",
        help="where a config.json is; weights are drawn")  # fmt: skip
    add("--prompt", type=whole(1), default=8192, metavar="ROWS")
    add("--part", type=whole(1), nargs="+", default=[8192], metavar="ROWS", help="computed at a time")
    add("--stack", nargs="+", default=["triton"], choices=STACKS)
    add("--no-draft", action="store_true", help="without the NEXTN layer")
    add("--layers", type=int, help="keep only the first N layers: a quick look, or to fill a cache")
    add("--repeats", type=whole(1), default=5)
    add("--seed", type=int, default=0)
    add("--out", type=allowed.file, default="prefill_bench.json")
    options = parser.parse_args(argv)
    options.config = cut(parser, options)
    return options


def main() -> None:
    options = arguments()
    card.required()
    bandwidth = copy_bandwidth()
    subject = Subject(options.config, rows=options.prompt, seed=options.seed, draft=not options.no_draft)
    lines = []
    for stack in options.stack:
        for part in options.part:
            lines.append(measure(subject, stack, part, options.repeats, bandwidth))
            print(table(lines[-1:]), flush=True)
    record = {"card": torch.cuda.get_device_name(), "copy_bytes_per_s": bandwidth, "prompt": options.prompt}
    options.out.write_text(json.dumps(record | {"lines": [asdict(x) for x in lines]}, indent=1) + "\n")
    print(f"{record['card']}, copy {bandwidth / 1e12:.2f} TB/s, torch {torch.__version__}, {options.prompt} tokens")
    print(table(lines))


if __name__ == "__main__":
    main()
