"""Trains the miniature from nothing on generated problems: `python -m ling_runtime.training.pretrain --help`.

The NEXTN layer learns along, one token further ahead, with a small weight: that leaves the target's hidden states
knowing more about the token after next, which the draft layer lives on later. The expert bias is not trained by
gradient; each step nudges it against the measured load, so that no expert starves. A run can stop on a clock and be
resumed from its checkpoint; its data and schedule depend on the step number alone.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.config import ModelConfig
from ling_runtime.training import dense, draft
from ling_runtime.training.checkpoint import restore, store
from ling_runtime.training.initialise import initialise
from ling_runtime.training.optimizer import optimizers
from ling_runtime.training.packing import Packing, stream
from ling_runtime.training.replay import Replay
from ling_runtime.training.schedule import Schedule
from ling_runtime.weights import save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ling_runtime.training.dense import Blocks
    from ling_runtime.training.layers import Params
    from ling_runtime.training.packing import Shard


@dataclass(frozen=True, kw_only=True)
class Recipe:
    schedule: Schedule
    nextn_weight: float = 0.2
    bias_rate: float = 1e-3
    """Step of the expert bias against a load above the mean."""
    clip: float = 1.0


def trainable(params: Params) -> Params:
    """The parameters that gradients move: all but the expert bias."""
    return {name: p.requires_grad_() for name, p in params.items() if not name.endswith("expert_bias")}


@dataclass(frozen=True)
class Losses:
    target: Tensor
    nextn: Tensor
    loads: dict[int, Tensor]


def losses(params: Params, config: ModelConfig, ids: Tensor, blocks: Blocks, head: Callable[..., Tensor]) -> Losses:
    trunk = dense.forward(params, config, ids, blocks)
    (guess,) = draft.chain(params, config, trunk.hidden, F.pad(ids, (0, 1)), 1, blocks)
    loads = {**trunk.loads, config.num_hidden_layers: guess.load}
    lm_head = params["lm_head.weight"]
    return Losses(head(trunk.hidden, lm_head, shifted(ids, 1)), head(guess.hidden, lm_head, shifted(ids, 2)), loads)


def shifted(ids: Tensor, by: int) -> Tensor:
    """Labels `by` tokens ahead; positions past the end are ignored by the loss."""
    return F.pad(ids[:, by:], (0, by), value=-100)


def head_loss(hidden: Tensor, lm_head: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, lm_head).float().flatten(0, 1), labels.flatten())


@torch.no_grad()
def balance(params: Params, loads: dict[int, Tensor], rate: float) -> None:
    """Lower the selection bias of experts with more than their share and raise the others'."""
    for layer, load in loads.items():
        params[f"model.layers.{layer}.mlp.gate.expert_bias"].add_(rate * torch.sign(load.mean() - load))


@dataclass
class Trainer:
    """Parameters, optimizers and the step counter of one run."""

    params: Params
    config: ModelConfig
    recipe: Recipe
    blocks: Blocks
    head: Callable[..., Tensor]
    step: int = 0

    def __post_init__(self) -> None:
        self.weights = trainable(self.params)
        self.lr = torch.zeros((), device=self.params["lm_head.weight"].device)
        self.optimizers = optimizers(self.weights, self.lr)
        self.update = Replay(self._update)

    def train_step(self, ids: Tensor) -> Losses:
        self.lr.fill_(self.recipe.schedule.at(self.step))
        self.step += 1
        return self.update(ids)

    def _update(self, ids: Tensor) -> Losses:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            result = losses(self.params, self.config, ids, self.blocks, self.head)
        torch.autograd.backward(result.target + self.recipe.nextn_weight * result.nextn)
        descend(self.weights, self.optimizers, self.recipe.clip)
        balance(self.params, result.loads, self.recipe.bias_rate)
        return Losses(result.target.detach(), result.nextn.detach(), result.loads)


def descend(weights: Params, movers: list[torch.optim.Optimizer], clip: float) -> None:
    torch.nn.utils.clip_grad_norm_(weights.values(), clip)
    for mover in movers:
        mover.step()
        mover.zero_grad()


def run(trainer: Trainer, batches: Iterator[Shard], deadline: float) -> None:
    """Train until the schedule's last step or the clock reads `deadline`, with a progress line now and then."""
    started, tokens, first = time.monotonic(), 0, trainer.step
    while trainer.step < trainer.recipe.schedule.steps and time.monotonic() < deadline:
        ids = torch.from_numpy(next(batches)).to(trainer.lr.device).long()
        result = trainer.train_step(ids)
        tokens += ids.numel()
        if trainer.step % 100 == 0 or trainer.step == first + 1:
            line = f"step {trainer.step} loss {result.target.item():.4f} nextn {result.nextn.item():.4f}"
            spent = time.monotonic() - started
            print(f"{line} {tokens / spent / 1e3:.0f}k tok/s {spent:.0f} s", flush=True)


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    config = ModelConfig.from_pretrained(args.model)
    params = {n: p.to(args.device) for n, p in initialise(config, args.seed).items()}
    blocks = dense.Blocks.compiled() if args.compile else dense.PLAIN
    head = torch.compile(head_loss, dynamic=False) if args.compile else head_loss
    schedule = Schedule(args.lr, args.steps, rise=args.rise, fall=args.fall)
    trainer = Trainer(params, config, Recipe(schedule=schedule), blocks, head)
    if args.resume:
        restore(trainer, args.resume)
    packing = Packing(tokenizer_file=args.model / "tokenizer.json", seed=args.seed, rows=args.rows, length=args.length)
    deadline = time.monotonic() + args.seconds
    with stream(packing, trainer.step, args.workers) as batches:
        run(trainer, batches, deadline)
    args.out.mkdir(parents=True, exist_ok=True)
    store(trainer, args.out / "checkpoint.pt")
    save(args.out, {n: p.detach().cpu() for n, p in params.items()}, config)


def parser_of(about: str | None, *, steps: int, rows: int) -> argparse.ArgumentParser:
    """What every training of the miniature is told, with the defaults of this one."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory with config.json and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="directory for what was trained")
    parser.add_argument("--steps", type=int, default=steps, help="length of the whole schedule")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop on the clock before that")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--rows", type=int, default=rows)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    return parser


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, steps=8000, rows=128)
    parser.add_argument("--resume", type=Path, help="checkpoint.pt of an earlier run")
    parser.add_argument("--rise", type=int, default=200)
    parser.add_argument("--fall", type=float, default=0.4)
    return parser.parse_args()


if __name__ == "__main__":
    main()
