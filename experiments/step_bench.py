"""`python -m experiments.step_bench`: what one decode step costs on one card, against the bytes it has to read.

One process, torch and Triton only. Weights are drawn on the device and are cold by construction: a step reads more of
them than any cache holds. The surprise is the unit: a step's floor depends on how many different experts its rows
choose, so distinct experts are counted in the run and not assumed. Table last, JSON beside it. Under torchrun each
process is one rank of the model, on a card of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from experiments import allowed, card
from experiments.ablation import ablate, measure
from experiments.ablation_table import SWITCHES
from experiments.step_block import SHARD as DRAFT_SHARD
from experiments.step_block import Drafted, captured_of
from experiments.step_floor import copy_bandwidth, nextn_bytes, step_bytes
from experiments.step_subject import STACKS, Bench, captured, nextn, referred
from ling_runtime.config import WINDOW_ROWS, ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.parallel.meeting import launched

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SHARD = Path(__file__).parent.parent / "ling_runtime/checkpoints/ling_3_flash_rank_shard"
LIMITS = ("expert_swiglu_limit_list", "share_expert_swiglu_limit_list")
COLLECTIVE = "nccl"
WIDTHS = (5, 10, 8, 10, 9, 8, 10, 7)


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

    @property
    def collective_us(self) -> float:
        """In the library's kernels between ranks, the wait for the slower one included."""
        return sum(us for name, us in self.families.items() if name.startswith(COLLECTIVE))


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


def one_line(bench: Bench, stack: str, rows: int, steps: int, bandwidth: float) -> Line:
    """A verify step of `rows` rows on its own."""
    bench.reset()
    if stack == "reference":
        step, distinct = referred(bench, rows)
    else:
        step, distinct = captured(bench, rows, STACKS[stack])
    size = step_bytes(bench.share, rows=rows, context=bench.context, distinct=distinct)
    return timed(step, stack, rows, steps, distinct, size, bandwidth)


def nextn_line(bench: Bench, stack: str, drafts: int, steps: int, bandwidth: float) -> Line:
    """A whole step that drafts `drafts` tokens."""
    bench.reset()
    step, distinct = nextn(bench, drafts, STACKS[stack])
    size = nextn_bytes(bench.share, steps=drafts, context=bench.context, distinct=distinct)
    return timed(step, f"{stack} {drafts}/{drafts + 1}", drafts + 1, steps, distinct, size, bandwidth)


def block_lines(drafted: Drafted, stack: str, drafts: int, steps: int, bandwidth: float) -> Iterator[Line]:
    """The parts of a DSPARK step with a block of `drafts`, and the whole step."""
    for part in drafted.parts(drafts, STACKS[stack]):
        yield timed(part.step, f"{stack} {part.name}", part.rows, steps, part.distinct, part.size, bandwidth)


def timed(
    step: Callable[[], None], stack: str, rows: int, steps: int, distinct: float, size: float, bandwidth: float
) -> Line:
    times = measure(step, steps)
    launches, families = census(step)
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
    head = f"{'stack':<18}" + "".join(f"{name:>{width}}" for name, width in zip(names, WIDTHS, strict=True))
    body = [
        f"{x.stack:<18}{x.rows:>5}{x.step_ms:>10.3f}{x.spread_ms:>8.3f}{x.launches:>10}{x.distinct_experts:>9.1f}"
        f"{x.gigabytes:>8.2f}{x.floor_ms:>10.3f}{x.ratio:>7.2f}"
        for x in lines
    ]
    if any(x.collective_us for x in lines):
        head += f"{'between ranks us':>18}"
        body = [f"{row}{x.collective_us:>18.1f}" for row, x in zip(body, lines, strict=True)]
    return "\n".join([head, *body])


def shortened(config: ModelConfig, layers: int | None) -> ModelConfig:
    """The first `layers` layers of `config`, all of them by default."""
    count = config.num_hidden_layers if layers is None else layers
    limits = {name: getattr(config, name)[:count] for name in LIMITS}
    return replace(config, num_hidden_layers=count, **limits)


def cut(parser: argparse.ArgumentParser, options: argparse.Namespace) -> ModelConfig:
    """The model as far as --layers keeps it: its experts have to be among what is measured."""
    least, most = options.model.first_k_dense_replace + 1, options.model.num_hidden_layers
    if options.layers is not None and not least <= options.layers <= most:
        parser.error(f"argument --layers: {options.layers}: allowed for this model: {least} to {most}")
    return shortened(options.model, options.layers)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Decode step times on one card.")
    add, whole = parser.add_argument, allowed.whole
    read_model, read_draft = (allowed.checkpoint(kind.from_pretrained) for kind in (ModelConfig, DraftConfig))
    add("--model-path", dest="model", type=read_model, default=str(SHARD), metavar="FOLDER",
        help="with a config.json; weights are drawn")  # fmt: skip
    add("--rows", type=whole(1), nargs="+", default=[1, 4, 6, 9, 17])
    add("--stack", nargs="+", default=["reference", "default", "bf16-gate"], choices=["reference", *STACKS])
    drafts = whole(1, WINDOW_ROWS - 1)
    add("--nextn", type=drafts, nargs="*", default=[], metavar="DRAFTS", help="whole NEXTN steps, too")
    add("--dspark", type=drafts, nargs="*", default=[], metavar="BLOCK", help="steps of a block, by part")
    add("--draft-path", dest="draft", type=read_draft, default=str(DRAFT_SHARD), metavar="FOLDER",
        help="with a draft's config.json; weights are drawn")  # fmt: skip
    add("--accept", type=allowed.number(1), help="of --dspark: a simulated accept length, the bonus counted")
    add("--context", type=whole(1), default=8192)
    add("--layers", type=int, help="keep only the first N layers: a quick look, or to fill a cache")
    add("--steps", type=whole(2), default=50)
    add("--reference-steps", type=whole(2), default=5)
    add("--seed", type=int, default=0)
    add("--out", type=allowed.file, default="step_bench.json")
    add("--ablation", nargs="*", choices=[switch.name for switch in SWITCHES], metavar="SWITCH",
        help="each switch alone, off against on, instead of the table of steps; all of them by default")  # fmt: skip
    options = parser.parse_args(argv)
    options.config = cut(parser, options)
    if max(options.rows) > WINDOW_ROWS and options.stack != ["reference"]:
        parser.error(f"argument --rows: {max(options.rows)}: a captured step has 1 to {WINDOW_ROWS}")
    if options.dspark:
        with allowed.naming(parser, "--draft-path", "; allowed: a draft of this model"):
            captured_of(options.draft, options.config.num_hidden_layers).check_target(options.config)
        if options.accept is not None and options.accept > min(options.dspark) + 1:
            parser.error(f"argument --accept: {options.accept}: allowed with --dspark: 1 to {min(options.dspark) + 1}")
    return options


def main() -> None:
    options = arguments()
    card.required()
    ranks = launched(os.environ, "cuda")
    if ranks.size > 1 and (options.dspark or options.ablation is not None):
        raise SystemExit("error: --dspark and --ablation are measured on one card; allowed under torchrun: neither")
    say = partial(print, flush=True) if ranks.rank == 0 else _nothing
    bandwidth = copy_bandwidth()
    most = max(6, *options.rows)
    bench = Bench(options.config, context=options.context, seed=options.seed, most_rows=most, ranks=ranks)
    say(f"{ranks.size} ranks, {torch.cuda.memory_allocated() / 1e9:.1f} GB on this card")
    if options.ablation is not None:
        ablate(bench, options.ablation, steps=options.steps, out=options.out)
        return
    drafted = None
    if options.dspark:
        drafted = Drafted(bench, options.draft, options.seed, options.accept)
    lines: list[Line] = []
    for stack in options.stack:
        steps = options.reference_steps if stack == "reference" else options.steps
        lines += [one_line(bench, stack, rows, steps, bandwidth) for rows in options.rows]
        if stack != "reference":
            lines += [nextn_line(bench, stack, drafts, steps, bandwidth) for drafts in options.nextn]
            for drafts in options.dspark:
                assert drafted is not None
                lines += block_lines(drafted, stack, drafts, steps, bandwidth)
        say(table(lines))
    name = torch.cuda.get_device_name()
    record = {
        "card": name,
        "copy_bytes_per_s": bandwidth,
        "context": options.context,
        "simulated_accept_length": options.accept,
        "ranks": ranks.size,
        "lines": [asdict(x) for x in lines],
    }
    if ranks.rank == 0:
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    say(f"{name}, copy {bandwidth / 1e12:.2f} TB/s, torch {torch.__version__}, context {options.context}")
    say(table(lines))


def _nothing(*_: object) -> None:
    pass


if __name__ == "__main__":
    main()
