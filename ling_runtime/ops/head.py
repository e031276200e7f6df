"""The vocabulary projection. Logits come back in fp32 whatever multiplied them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.ops.linear import linear, pad_rows
from ling_runtime.ops.norm import widen
from ling_runtime.ops.registry import variant

if TYPE_CHECKING:
    from torch import Tensor


@variant("lm_head")
def project(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, D] -> logits [R, V] in the row's precision, then wide."""
    return widen(linear(x, weight))


@variant("greedy_head")
def greedy(x: Tensor, weight: Tensor) -> Tensor:
    """x [n, D] -> the best token of each row [n]; ties go to the lowest id."""
    return project(pad_rows(x), weight)[: x.shape[0]].argmax(dim=-1)


@variant("shard_head")
def greedy_of_shard(x: Tensor, weight: Tensor, first: int) -> Tensor:
    """x [n, D] and rows of the vocabulary from `first` on -> [n, 2]: the best logit and its token, fp64.

    Ties go to the lowest id. Both fit fp64 exactly, so ranks exchange one tensor.
    """
    logits = project(pad_rows(x), weight)[: x.shape[0]]
    token = logits.argmax(dim=-1, keepdim=True)
    return torch.cat([logits.gather(1, token).double(), (token + first).double()], dim=1)


@variant("lm_head", "bf16", "rounding", "rows and weights in bf16: logits round to 8 bits of mantissa")
def project_bf16(x: Tensor, weight: Tensor) -> Tensor:
    return linear(x.bfloat16(), weight.bfloat16()).float()
