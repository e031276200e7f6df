"""The vocabulary projection. Logits come back in fp32 whatever multiplied them."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


@variant("lm_head", "bf16", "rounding", "rows and weights in bf16: logits round to 8 bits of mantissa")
def project_bf16(x: Tensor, weight: Tensor) -> Tensor:
    return linear(x.bfloat16(), weight.bfloat16()).float()
