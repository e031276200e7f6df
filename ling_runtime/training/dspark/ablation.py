"""Many short trainings side by side on one GPU: what each choice in a draft is worth, and the drafts that are shipped.

`python -m ling_runtime.training.dspark.ablation --help`. A run of a miniature is bound by launches, so several
processes share the device; each holds the same trajectories with their states. A result is written when its run ends,
so that what a deadline cuts off is only what had not finished.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import multiprocessing

from ling_runtime.config import ModelConfig
from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.draft_weights import save_draft
from ling_runtime.speculation.dspark.identity import checkpoint
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.training.dspark.corpus import Corpus, parts, with_states
from ling_runtime.training.dspark.evaluate import evaluate
from ling_runtime.training.dspark.generate import write_rows
from ling_runtime.training.dspark.prompts import Prompts
from ling_runtime.training.dspark.recipe import PRESETS, plain_draft, recipe
from ling_runtime.training.dspark.trainer import Trainer
from ling_runtime.training.dspark.trajectories import MANIFEST, SETTINGS, Rows, Trajectories
from ling_runtime.training.problems.generate import generate
from ling_runtime.training.schedule import Schedule
from ling_runtime.training.score import generate_answers
from ling_runtime.weights import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_runtime.training.dspark.batch import Batch
    from ling_runtime.training.dspark.evaluate import Score
    from ling_runtime.training.layers import Params

LENGTH, LONG = 1024, 8192
BLOCK_ROWS = 512
"""Draft rows of a sequence at each step: 64 blocks of 8, or 32 of 16."""
HELDOUT_TOKENS = 256
"""Scored after each held-out prompt, going on after the answer as load clients do."""


@dataclass(frozen=True, kw_only=True)
class Job:
    preset: str
    block_size: int
    seed: int
    steps: int
    lr: float
    rows: int
    ship: bool = False
    """Keep the weights."""

    @property
    def name(self) -> str:
        return (
            f"dspark-{self.block_size}-{self.preset}" if self.ship else f"{self.preset}-{self.block_size}-{self.seed}"
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which runs there are: those to ship first, at blocks of 16 and 8, then every preset seed by seed."""

    steps: int
    ship_steps: int
    ship_presets: tuple[str, ...]
    presets: tuple[str, ...]
    seeds: tuple[int, ...]
    block_size: int
    lr: float
    rows: int

    def jobs(self) -> Iterator[Job]:
        common: dict[str, Any] = {"lr": self.lr, "rows": self.rows}
        if self.ship_steps:
            for preset, block in product(self.ship_presets, (16, 8)):
                yield Job(preset=preset, block_size=block, seed=0, steps=self.ship_steps, ship=True, **common)
        for seed, preset in product(self.seeds, self.presets):
            yield Job(preset=preset, block_size=self.block_size, seed=seed, steps=self.steps, **common)


# ---------------------------------------------------------------------------------------------------------------------
# Texts


@dataclass(frozen=True)
class Texts:
    """What all runs share: the target, what it wrote for training, and what it wrote greedily for the score."""

    params: Params
    config: ModelConfig
    corpus: Corpus
    heldout: Batch

    @classmethod
    def read(cls, model: Path, texts: Path, device: str) -> Texts:
        config, params = read_target(model, device)
        layers = plain_draft(config, 8).target_layer_ids
        train = Trajectories.open(texts / "train", target=checkpoint(model)).rows
        heldout = Trajectories.open(texts / "heldout", target=checkpoint(model)).rows
        states = {length: with_states(params, config, rows, layers) for length, rows in train.items()}
        scored = [with_states(params, config, rows, layers) for rows in heldout.values()]
        return cls(params, config, Corpus(states[LENGTH], states.get(LONG)), scored[0])


def read_target(model: Path, device: str) -> tuple[ModelConfig, Params]:
    config = ModelConfig.from_pretrained(model)
    return config, {name: value.float().to(device) for name, value in load(model, tensor_specs(config)).items()}


def write_texts(args: argparse.Namespace) -> None:
    """Training rows of both lengths and greedy continuations of fresh held-out five-shot prompts."""
    config, params = read_target(args.model, args.device)
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    made = {}
    for length, count, batch in ((LENGTH, args.texts_rows, 2048), (LONG, args.long_rows, 64)):
        prompts = Prompts(tokenizer=tokenizer, seed=args.seed, length=length)
        if count:
            made[length] = write_rows(params, config, prompts, SETTINGS, rows=count, batch=batch)
    if LONG in made:
        made[LONG] = Rows.join([made[LONG], tiled(prompts, args.long_rows, args.long_rows)])
    target = checkpoint(args.model)
    Trajectories(target=target, seed=args.seed, split="train", settings=SETTINGS, rows=made).save(args.texts / "train")
    problems = list(generate(args.heldout_seed, args.heldout, "heldout"))
    taken = generate_answers(params, config, tokenizer, problems, HELDOUT_TOKENS + 16)
    first = np.array(taken.prompts, np.int32)
    rows = Rows(taken.ids.cpu().numpy().astype(np.uint16), first, np.zeros(len(first), np.uint8))
    greedy = SETTINGS[:1]
    Trajectories(
        target=target, seed=args.heldout_seed, split="heldout", settings=greedy, rows={rows.length: rows}
    ).save(args.texts / "heldout")


def tiled(prompts: Prompts, first: int, count: int) -> Rows:
    """Prompts `first` and on, each repeated to the row's end: what load clients send as long prompts."""
    given = [np.array(prompts.prompt(first + index), np.uint16) for index in range(count)]
    ids = np.stack([np.resize(prompt, prompts.length) for prompt in given])
    starts = np.array([len(prompt) for prompt in given], np.int32)
    return Rows(ids, starts, np.full(count, len(SETTINGS) - 1, np.uint8))


# ---------------------------------------------------------------------------------------------------------------------
# One run


def run(job: Job, texts: Texts, out: Path) -> dict[str, Any]:
    """Train as the job says and score the weights as a checkpoint would hold them."""
    started = time.monotonic()
    schedule = Schedule(job.lr, job.steps, rise=100, fall=0.6)
    described = recipe(job.preset, texts.config, job.block_size, schedule, job.seed, BLOCK_ROWS // job.block_size)
    trainer = Trainer.start(described, texts.params)
    curve = []
    while trainer.step < job.steps:
        progress = trainer.train_step(texts.corpus.batch(trainer.step, rows=job.rows, seed=job.seed))
        if trainer.step % max(job.steps // 20, 1) == 0:
            m = progress.metrics
            curve.append([trainer.step, *(round(float(x), 4) for x in (progress.losses.total, m.tau, m.greedy_tau))])
            print(job.name, *curve[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    trained = time.monotonic() - started
    score = score_of(trainer, texts)
    if job.ship:
        save_draft(out / job.name, {n: p.detach().cpu() for n, p in trainer.params.items()}, described.draft)
    count = sum(p.numel() for p in trainer.params.values())
    return {"name": job.name, **asdict(job), "seconds": trained, "parameters": count, **asdict(score), "curve": curve}


def score_of(trainer: Trainer, texts: Texts) -> Score:
    draft = trainer.recipe.draft
    specs = draft_tensor_specs(draft)
    stored = {name: p.detach().to(specs[name].dtype).float() for name, p in trainer.params.items()}
    return evaluate(stored, draft, trainer.shared, parts(texts.heldout, 32), HELDOUT_TOKENS)


# ---------------------------------------------------------------------------------------------------------------------
# All runs

_texts: Texts
_out: Path


def _start(model: Path, texts: Path, out: Path, device: str) -> None:
    global _texts, _out
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    _texts, _out = Texts.read(model, texts, device), out


def _run(job: Job) -> dict[str, Any]:
    gc.collect()  # a trainer and its graphs refer to each other
    torch.cuda.empty_cache()
    return run(job, _texts, _out)


def main() -> None:
    args = _arguments()
    if not (args.texts / "heldout" / MANIFEST).is_file():
        write_texts(args)
    plan = Plan(
        steps=args.steps,
        ship_steps=args.ship_steps,
        ship_presets=tuple(args.ship_presets),
        presets=tuple(args.presets),
        seeds=tuple(args.seeds),
        block_size=args.block_size,
        lr=args.lr,
        rows=args.rows,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    given = (args.model, args.texts, args.out, args.device)
    with multiprocessing.get_context("spawn").Pool(args.workers, _start, given) as pool:
        for result in pool.imap_unordered(_run, plan.jobs()):
            with (args.out / "results.jsonl").open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{result['name']}: accept length {result['accept_length']:.3f}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory of the target")
    parser.add_argument(
        "--texts", type=Path, required=True, help="directory of trajectories; made where there are none"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts-rows", type=int, default=4608, help=f"training rows of {LENGTH} tokens")
    parser.add_argument(
        "--long-rows", type=int, default=48, help=f"training rows of {LONG} tokens; as many again are tiled prompts"
    )
    parser.add_argument("--heldout", type=int, default=256, help="held-out prompts")
    parser.add_argument("--heldout-seed", type=int, default=20264)
    parser.add_argument("--seed", type=int, default=0, help="of the training texts")
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--ship-steps", type=int, default=0, help="of the runs whose weights are kept; 0: none")
    parser.add_argument(
        "--ship-presets", nargs="+", choices=sorted(PRESETS), default=["plain"], help="each at 16 and 8"
    )
    parser.add_argument("--presets", nargs="*", choices=sorted(PRESETS), default=list(PRESETS), help="to compare")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="of the presets to compare")
    parser.add_argument("--block-size", type=int, default=16, help="of all runs but those to ship")
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


if __name__ == "__main__":
    main()
