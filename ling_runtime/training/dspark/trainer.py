"""One update of a draft from one batch, and the weights and optimizers that it moves.

Weights are kept in fp32; on a GPU the network computes in bf16 and a step of a shape seen before is replayed as one
graph. A step depends on the recipe, the batch and the step number alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ling_runtime.draft_table import draft_tensor_specs
from ling_runtime.training.dspark.batch import Batch
from ling_runtime.training.dspark.blocks import Blocks, sample_blocks, step_noise, target_rows
from ling_runtime.training.dspark.forward import forward
from ling_runtime.training.dspark.heads import confidence, markov_bias
from ling_runtime.training.dspark.losses import Losses, Scores, losses, rows_of
from ling_runtime.training.dspark.metrics import Metrics, measure
from ling_runtime.training.dspark.parallel import Ranks
from ling_runtime.training.layers import wide
from ling_runtime.training.optimizer import optimizers
from ling_runtime.training.replay import Replay

if TYPE_CHECKING:
    from ling_runtime.draft_config import DraftConfig
    from ling_runtime.training.dspark.recipe import Recipe
    from ling_runtime.training.layers import Params


class Shared(NamedTuple):
    """What a draft uses of its target and never moves, [V, D] each."""

    embedding: Tensor
    lm_head: Tensor

    @classmethod
    def of(cls, target: Params) -> Shared:
        return cls(target["model.word_embeddings.weight"], target["lm_head.weight"])


class Progress(NamedTuple):
    losses: Losses
    metrics: Metrics


def initialise(config: DraftConfig, seed: int) -> Params:
    """First weights: unit norms, zero biases, matrices by fan-in; what adds to rows or logits starts at zero."""
    generator = torch.Generator().manual_seed(seed)
    added = ("o_proj.weight", "dense.weight", "down_proj.weight", "markov_w2.weight", "confidence_head.proj.weight")
    params = {}
    for name, spec in draft_tensor_specs(config).items():
        noise = torch.randn(spec.shape, generator=generator)
        if "norm" in name:
            params[name] = torch.ones(spec.shape)
        elif name.endswith((*added, "bias")):
            params[name] = torch.zeros(spec.shape)
        else:
            params[name] = noise * spec.shape[-1] ** -0.5
    return params


def scores(params: Params, config: DraftConfig, shared: Shared, batch: Batch, blocks: Blocks) -> Scores:
    """The draft beside the target on `blocks`; logits in fp32, whatever the network computes in."""
    rows = forward(params, config, shared.embedding, batch.hidden, batch.ids, blocks.anchors)
    final = wide(target_rows(batch.final, blocks))
    with torch.autocast(rows.device.type, enabled=False):
        return Scores(
            draft=F.linear(rows, shared.lm_head) + markov_bias(params, config, rows, blocks.previous),
            target=F.linear(final, shared.lm_head),
            labels=blocks.labels,
            valid=blocks.valid,
            confidence=confidence(params, config, rows, blocks.previous),
        )


@dataclass
class Trainer:
    """A draft in motion; `params` and `shared` are fp32 and on the device of the batches to come."""

    recipe: Recipe
    shared: Shared
    params: Params
    ranks: Ranks = field(default_factory=Ranks)
    step: int = 0
    replays: dict[torch.Size, Replay[Progress]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for p in self.params.values():
            p.requires_grad_()
        device = self.shared.lm_head.device
        self.lr = torch.zeros((), device=device)
        self.length_weight = torch.zeros((), device=device)
        self.optimizers = optimizers({f"draft.{name}": p for name, p in self.params.items()}, self.lr)

    @classmethod
    def start(cls, recipe: Recipe, target: Params, ranks: Ranks | None = None) -> Trainer:
        """A new draft for the target with parameters `target`."""
        shared = Shared.of(target)
        params = {n: p.to(shared.lm_head.device) for n, p in initialise(recipe.draft, recipe.seed).items()}
        return cls(recipe, shared, params, ranks or Ranks())

    def train_step(self, batch: Batch) -> Progress:
        """Move the weights once; what it returns is overwritten by the next step."""
        schedule = self.recipe.schedule
        self.lr.fill_(schedule.at(self.step))
        self.length_weight.fill_(self.recipe.losses.length_at(self.step / schedule.steps))
        noise = self._noise(batch.ids)
        self.step += 1
        if self.ranks.size > 1:
            return self._update(*batch, noise)
        return self.replays.setdefault(batch.ids.shape, Replay(self._update))(*batch, noise)

    def _noise(self, ids: Tensor) -> Tensor:
        """This rank's part of the numbers that one rank alone would draw for all sequences."""
        rows, length = ids.shape
        everyone = step_noise(self.recipe.seed, self.step, (rows * self.ranks.size, length), ids.device)
        return everyone[rows * self.ranks.rank :][:rows]

    def _update(self, ids: Tensor, loss_mask: Tensor, hidden: Tensor, final: Tensor, noise: Tensor) -> Progress:
        recipe = self.recipe
        blocks = sample_blocks(ids, loss_mask, noise, recipe.anchors, recipe.draft.block_size)
        with torch.autocast(ids.device.type, torch.bfloat16, enabled=ids.is_cuda):
            seen = scores(self.params, recipe.draft, self.shared, Batch(ids, loss_mask, hidden, final), blocks)
        rows = rows_of(seen)
        result = losses(seen, rows, recipe.losses, self.length_weight, self.ranks.summed)
        torch.autograd.backward(result.total)
        self.ranks.add_gradients(self.params.values())
        torch.nn.utils.clip_grad_norm_(self.params.values(), recipe.clip)
        for mover in self.optimizers:
            mover.step()
            mover.zero_grad()
        return Progress(result._replace(total=result.total.detach()), measure(seen, rows))
