"""Trains the NEXTN layer alone on the frozen target, unrolled as it will be used.

Five chained drafts are fed as in serving, deeper ones with the layer's own hidden states, and every depth is scored
against what the target itself would say next. A depth counts only where the text so far is the target's own choice,
since greedy verification never reaches any other. Half of the rows are generated problems, half are texts that the
target continued by itself.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from ling_runtime.config import ModelConfig
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.training import dense, draft
from ling_runtime.training.decode import generate_greedily
from ling_runtime.training.documents import plain, question
from ling_runtime.training.optimizer import optimizers
from ling_runtime.training.packing import Packing, stream
from ling_runtime.training.pretrain import balance, descend, parser_of, trainable
from ling_runtime.training.problems.generate import draw_problem
from ling_runtime.training.replay import Replay
from ling_runtime.training.schedule import Schedule
from ling_runtime.weights import load, save

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ling_runtime.training.dense import Blocks
    from ling_runtime.training.layers import Params
    from ling_runtime.training.packing import Shard


class Progress(NamedTuple):
    """Mean loss per depth and the share of drafts that agree with the target, both [depth]; expert load [E]."""

    loss: Tensor
    agreement: Tensor
    load: Tensor


def objective(params: Params, config: ModelConfig, ids: Tensor, depth: int, blocks: Blocks = dense.PLAIN) -> Progress:
    with torch.no_grad():
        hidden = dense.forward(params, config, ids, blocks).hidden
        choice = dense.logits(params, hidden).argmax(-1)  # choice[t] is the target's token t + 1
    followed = F.pad(ids[:, 1:] == choice[:, :-1], (1, depth), value=False)
    labels = F.pad(choice, (0, depth))
    bases = ids.shape[1]
    counted = F.pad(torch.ones_like(ids[:, depth:], dtype=torch.bool), (0, depth))
    losses, agreements = [], []
    drafts = draft.chain(params, config, hidden, F.pad(ids, (0, depth)), depth, blocks)
    for d, guess in enumerate(drafts, 1):
        counted = counted & followed[:, d : d + bases] if d > 1 else counted
        label = torch.where(counted, labels[:, d : d + bases], -100)
        scores = dense.logits(params, guess.hidden)
        count = counted.sum().clamp(min=1)
        losses.append(F.cross_entropy(scores.flatten(0, 1), label.flatten(), reduction="sum") / count)
        agreements.append((scores.argmax(-1) == label).sum() / count)
    load = torch.stack([guess.load for guess in drafts]).mean(0)
    return Progress(torch.stack(losses), torch.stack(agreements), load)


def own_texts(params: Params, config: ModelConfig, tokenizer: Tokenizer, rows: int, length: int, seed: int) -> Tensor:
    """What the target writes greedily after zero to five worked problems and a question, [rows, length]."""
    rng = random.Random(f"own texts {seed}")

    def draw_prompt() -> list[int]:
        drawn = [draw_problem(rng) for _ in range(rng.randint(1, 6))]
        text = "".join(map(plain, drawn[1:])) + question(drawn[0])
        return list(tokenizer.encode(text).ids)[: length // 2 * 2]

    return generate_greedily(params, config, [draw_prompt() for _ in range(rows)], length)


@dataclass
class Trainer:
    """The draft layer's weights in motion; everything else of `params` stands still."""

    params: Params
    config: ModelConfig
    depth: int
    schedule: Schedule
    blocks: Blocks
    step: int = 0

    def __post_init__(self) -> None:
        prefix = f"model.layers.{self.config.num_hidden_layers}."
        self.weights = trainable({n: p for n, p in self.params.items() if n.startswith(prefix)})
        self.lr = torch.zeros((), device=self.params["lm_head.weight"].device)
        self.optimizers = optimizers(self.weights, self.lr)
        self.update = Replay(self._update)

    def train_step(self, ids: Tensor) -> Progress:
        self.lr.fill_(self.schedule.at(self.step))
        self.step += 1
        return self.update(ids)

    def _update(self, ids: Tensor) -> Progress:
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            result = objective(self.params, self.config, ids, self.depth, self.blocks)
        torch.autograd.backward(result.loss.mean())
        descend(self.weights, self.optimizers, clip=1.0)
        balance(self.params, {self.config.num_hidden_layers: result.load}, rate=1e-3)
        return result._replace(loss=result.loss.detach())


def run(trainer: Trainer, given: Iterator[Shard], own: Tensor, deadline: float) -> None:
    """Train on rows of `given` and as many drawn from `own`, until the schedule ends or the clock reads `deadline`."""
    started = time.monotonic()
    while trainer.step < trainer.schedule.steps and time.monotonic() < deadline:
        shard = torch.from_numpy(next(given)).to(own.device).long()
        drawn = own[torch.randint(len(own), (len(shard),), device=own.device)]
        result = trainer.train_step(torch.cat([shard, drawn]))
        if trainer.step % 100 == 0:
            agreement = " ".join(f"{share:.3f}" for share in result.agreement.tolist())
            print(f"nextn step {trainer.step} agreement {agreement} {time.monotonic() - started:.0f} s", flush=True)


def main() -> None:
    args = _arguments()
    torch.manual_seed(args.seed)
    config = ModelConfig.from_pretrained(args.model)
    stored = load(args.weights, tensor_specs(config))
    params = {name: value.float().to(args.device) for name, value in stored.items()}
    tokenizer_file = args.model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    own = own_texts(params, config, tokenizer, args.own_rows, args.length, args.seed)
    blocks = dense.Blocks.compiled() if args.compile else dense.PLAIN
    trainer = Trainer(params, config, args.depth, Schedule(args.lr, args.steps, rise=50, fall=0.7), blocks)
    packing = Packing(tokenizer_file=tokenizer_file, seed=args.seed + 1, rows=args.rows // 2, length=args.length)
    with stream(packing, 0, args.workers) as given:
        run(trainer, given, own.clone(), time.monotonic() + args.seconds)
    args.out.mkdir(parents=True, exist_ok=True)
    save(args.out, {n: p.detach().cpu() for n, p in params.items()}, config)


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, steps=1500, rows=64)
    parser.add_argument("--weights", type=Path, required=True, help="directory of the target's model.safetensors")
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--own-rows", type=int, default=4096)
    return parser.parse_args()


if __name__ == "__main__":
    main()
