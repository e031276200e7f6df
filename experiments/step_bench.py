"""`python -m experiments.step_bench`: what one decode step costs on one card, against the bytes it has to read.

One process, torch and Triton only. Weights are drawn on the device and are cold by construction: a step reads more of
them than any cache holds. The surprise is the unit: a step's floor depends on how many different experts its rows
choose, so distinct experts are counted in the run and not assumed. Table last, JSON beside it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from experiments.step_floor import copy_bandwidth, step_bytes
from ling_runtime.config import ModelConfig
from ling_runtime.dummy import DummyTensors
from ling_runtime.executor.ahead import Ahead
from ling_runtime.executor.graphs import DEVICE_VARIANTS, VerifyStep
from ling_runtime.executor.relay import Relay
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.latent import pages_for
from ling_runtime.memory.window import Window
from ling_runtime.model.ling import Ling
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.triton_launch import Pdl, pdl

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

SHARD = Path(__file__).parent.parent / "ling_runtime/checkpoints/ling_3_flash_rank_shard"
LIMITS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
STACKS: dict[str, tuple[Pdl, bool]] = {
    "triton": ("off", False),
    "ahead": ("off", True),
    "pdl-late": ("late", False),
    "pdl-early": ("early", False),
    "pdl-warm": ("warm", False),
    "pdl-ahead": ("early", True),
}
"""Captured steps: how kernels are launched, and whether steady weights are fetched ahead."""
WIDTHS = (5, 10, 8, 10, 9, 8, 10, 7)
ROOM = 1024
"""Positions past the context that steps may fill."""


class SwitchedKernels(Kernels):
    """Kernels whose selection can change under a loaded model, and that count the experts a step chooses."""

    def __init__(self) -> None:
        super().__init__()
        self._active = Kernels()
        self.chosen: list[Tensor] | None = None

    def select(self, selection: dict[str, str]) -> None:
        self._active = Kernels(selection)

    def __getitem__(self, operator: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = self._active[operator](*args, **kwargs)
            if operator == "router" and self.chosen is not None:
                self.chosen.append(result[0])
            return result

        return call


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table; times are medians over steps."""

    stack: str
    rows: int
    step_ms: float
    spread_ms: float
    launches: int
    distinct_experts: float
    gigabytes: float
    floor_ms: float
    ratio: float
    families: dict[str, float]


class Bench:
    """A loaded model with one request of `context` positions, and its step run by either path."""

    def __init__(self, config: ModelConfig, *, context: int, seed: int, most_rows: int) -> None:
        self.config, self.context, self.device = config, context, torch.device("cuda")
        self.kernels = SwitchedKernels()
        longest = context + ROOM
        self.model = Ling(
            config,
            DummyTensors(config, seed=seed, device=self.device),
            self.kernels,
            positions=longest,
            dtype=torch.bfloat16,
            device=self.device,
        )
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


def measure(step: Callable[[], None], steps: int) -> list[float]:
    """Milliseconds of each of `steps` runs, queued ahead of the device, between events."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    marks[0].record()
    for mark in marks[1:]:
        step()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def census(step: Callable[[], None]) -> tuple[int, dict[str, float]]:
    """(launches, microseconds by kernel name) of one step under the profiler."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    spent: dict[str, float] = defaultdict(float)
    events = [e for e in profile.events() if e.device_type.name == "CUDA"]
    for event in events:
        spent[event.name.split("(")[0][:60]] += event.device_time
    return len(events), dict(sorted(spent.items(), key=lambda item: -item[1]))


def captured(bench: Bench, rows: int, mode: Pdl, *, ahead: bool) -> tuple[Callable[[], None], float]:
    """(replay of the verify step, distinct experts of its eager run) with the device operators."""
    bench.kernels.select(DEVICE_VARIANTS)
    branch = Ahead() if ahead else None
    verify = VerifyStep(bench.model, bench.caches, bench.relay, batch=1, rows=rows, ahead=branch)
    verify.slots.fill_(bench.slot)
    with pdl(mode):
        distinct = bench.distinct_experts(verify.run, rows)
        verify.capture()
    return verify.replay, distinct


def referred(bench: Bench, rows: int) -> tuple[Callable[[], None], float]:
    bench.kernels.select({})
    step = partial(bench.eager_reference, rows)
    return step, bench.distinct_experts(step, rows)


def one_line(bench: Bench, stack: str, rows: int, steps: int, bandwidth: float) -> Line:
    bench.reset()
    if stack == "reference":
        step, distinct = referred(bench, rows)
    else:
        mode, ahead = STACKS[stack]
        step, distinct = captured(bench, rows, mode, ahead=ahead)
    times = measure(step, steps)
    launches, families = census(step)
    size = step_bytes(bench.config, rows=rows, context=bench.context, distinct=distinct)
    median, floor = statistics.median(times), size / bandwidth * 1e3
    quartiles = statistics.quantiles(times, n=4)
    return Line(
        stack=stack,
        rows=rows,
        step_ms=round(median, 4),
        spread_ms=round(quartiles[2] - quartiles[0], 4),
        launches=launches,
        distinct_experts=round(distinct, 1),
        gigabytes=round(size / 1e9, 3),
        floor_ms=round(floor, 4),
        ratio=round(median / floor, 2),
        families={name: round(us, 1) for name, us in families.items()},
    )


def table(lines: Sequence[Line]) -> str:
    names = ("rows", "step ms", "iqr", "launches", "experts", "GB", "floor ms", "ratio")
    head = f"{'stack':<12}" + "".join(f"{name:>{width}}" for name, width in zip(names, WIDTHS, strict=True))
    body = [
        f"{x.stack:<12}{x.rows:>5}{x.step_ms:>10.3f}{x.spread_ms:>8.3f}{x.launches:>10}{x.distinct_experts:>9.1f}"
        f"{x.gigabytes:>8.2f}{x.floor_ms:>10.3f}{x.ratio:>7.2f}"
        for x in lines
    ]
    return "\n".join([head, *body])


def shortened(config: ModelConfig, layers: int | None) -> ModelConfig:
    """The first `layers` layers of `config`, all of them by default."""
    count = layers or config.num_hidden_layers
    limits = {name: getattr(config, name)[:count] for name in LIMITS}
    return replace(config, num_hidden_layers=count, **limits)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Decode step times on one card.")
    parser.add_argument(
        "--model-path", type=Path, default=SHARD, help="directory with a config.json; weights are drawn"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 6, 9, 17])
    parser.add_argument("--stack", nargs="+", default=["reference", "triton"], choices=["reference", *STACKS])
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--layers", type=int, help="keep only the first N layers: a quick look, or to fill a cache")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--reference-steps", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("step_bench.json"))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    bandwidth = copy_bandwidth()
    config = shortened(ModelConfig.from_pretrained(options.model_path), options.layers)
    bench = Bench(config, context=options.context, seed=options.seed, most_rows=max(options.rows))
    lines = []
    for stack in options.stack:
        steps = options.reference_steps if stack == "reference" else options.steps
        for rows in options.rows:
            lines.append(one_line(bench, stack, rows, steps, bandwidth))
            print(table(lines[-1:]), flush=True)
    card = torch.cuda.get_device_name()
    record = {
        "card": card,
        "copy_bytes_per_s": bandwidth,
        "context": options.context,
        "lines": [asdict(x) for x in lines],
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{card}, copy {bandwidth / 1e12:.2f} TB/s, torch {torch.__version__}, context {options.context}")
    print(table(lines))


if __name__ == "__main__":
    main()
