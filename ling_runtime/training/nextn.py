"""Trains the NEXTN layer alone on the frozen target, unrolled as it will be used.

Five chained drafts are fed as in serving, deeper ones with the layer's own hidden states, and every depth is scored
against what the target itself would say next. A depth counts only where the text so far is the target's own choice,
since greedy verification never reaches any other. Half of the rows are generated problems, half are texts that the
target continued by itself.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from ling_runtime.config import ModelConfig
from ling_runtime.training import dense, draft
from ling_runtime.training.decode import generate_greedily
from ling_runtime.training.documents import plain, question
from ling_runtime.training.optimizer import optimizers
from ling_runtime.training.packing import Packing, stream
from ling_runtime.training.pretrain import balance
from ling_runtime.training.problems.generate import problem
from ling_runtime.training.problems.templates import SEEN
from ling_runtime.training.schedule import Schedule
from ling_runtime.weights import load, save, tensor_specs

if TYPE_CHECKING:
    from ling_runtime.training.dense import Kernels, Params


@dataclass(frozen=True)
class Objective:
    """Mean loss per depth and the share of drafts that agree with the target, both [depth]."""

    loss: Tensor
    agreement: Tensor
    load: Tensor


def objective(
    params: Params, config: ModelConfig, ids: Tensor, depth: int, kernels: Kernels = dense.PLAIN
) -> Objective:
    with torch.no_grad():
        hidden = dense.forward(params, config, ids, kernels).hidden
        choice = dense.logits(params, hidden).argmax(-1)  # choice[t] is the target's token t + 1
    followed = F.pad(ids[:, 1:] == choice[:, :-1], (1, 0), value=True)
    drafts = draft.chain(params, config, hidden, ids, depth, kernels)
    bases = ids.shape[1] - depth
    reached = torch.ones_like(ids[:, :bases], dtype=torch.bool)
    losses, agreements = [], []
    for d, guess in enumerate(drafts, 1):
        if d > 1:
            reached = reached & followed[:, d : d + bases]
        label = choice[:, d : d + bases][reached]
        scores = dense.logits(params, guess.hidden[reached])
        losses.append(F.cross_entropy(scores, label))
        agreements.append((scores.argmax(-1) == label).float().mean())
    load = torch.stack([guess.load for guess in drafts]).mean(0)
    return Objective(torch.stack(losses), torch.stack(agreements), load)


def own_texts(params: Params, config: ModelConfig, tokenizer: Tokenizer, rows: int, length: int, seed: int) -> Tensor:
    """Texts the target wrote greedily after zero to five worked problems and a question, [rows, length] on its device."""
    rng = random.Random(f"own texts {seed}")

    def draw_prompt() -> list[int]:
        drawn = [problem(rng, rng.choice(SEEN)) for _ in range(rng.randint(1, 6))]
        text = "".join(map(plain, drawn[1:])) + question(drawn[0])
        return list(tokenizer.encode(text).ids)[: length // 2 * 2]

    return generate_greedily(params, config, [draw_prompt() for _ in range(rows)], length)


def train(args: argparse.Namespace, params: Params, config: ModelConfig, tokenizer: Tokenizer) -> None:
    layer = config.num_hidden_layers
    prefix = f"model.layers.{layer}."
    own = own_texts(params, config, tokenizer, args.own_rows, args.length, args.seed)
    weights = {n: p.requires_grad_() for n, p in params.items() if n.startswith(prefix) and "expert_bias" not in n}
    schedule = Schedule(args.lr, args.steps, rise=50, fall=0.7)
    movers = optimizers(weights, args.lr)
    kernels = dense.Kernels.compiled() if args.compile else dense.PLAIN
    packing = Packing(
        tokenizer_file=args.model / "tokenizer.json", seed=args.seed + 1, rows=args.rows // 2, length=args.length
    )
    started, deadline = time.monotonic(), time.monotonic() + args.seconds
    with stream(packing, 0, args.workers) as batches:
        for step in range(args.steps):
            given = torch.from_numpy(next(batches)).to(own.device).long()
            picked = own[torch.randint(len(own), (args.rows // 2,), device=own.device)]
            ids = torch.cat([given, picked])
            with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
                result = objective(params, config, ids, args.depth, kernels)
            result.loss.mean().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            for mover in movers:
                for group in mover.param_groups:
                    group["lr"] = schedule.at(step)
                mover.step()
                mover.zero_grad()
            balance(params, {layer: result.load}, 1e-3)
            if step % 50 == 0:
                agreement = " ".join(f"{share:.3f}" for share in result.agreement.tolist())
                print(f"nextn {step} agreement {agreement} {time.monotonic() - started:.0f} s", flush=True)
            if time.monotonic() > deadline:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="directory with config.json and tokenizer.json")
    parser.add_argument("--weights", type=Path, required=True, help="directory of the target's model.safetensors")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--own-rows", type=int, default=4096)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    config = ModelConfig.from_pretrained(args.model)
    stored = load(args.weights, tensor_specs(config))
    params = {name: value.float().to(args.device) for name, value in stored.items()}
    train(args, params, config, Tokenizer.from_file(str(args.model / "tokenizer.json")))
    args.out.mkdir(parents=True, exist_ok=True)
    save(args.out, {n: p.detach().cpu() for n, p in params.items()}, config)


if __name__ == "__main__":
    main()
