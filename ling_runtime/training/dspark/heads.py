"""The two small heads on the draft's rows: the Markov bias that ties a draft to the one before, and the confidence.

Teacher-forced: the token before each draft is given, so all rows of a block are computed at once; only the rnn head,
whose state runs along the block, takes them in turn. Everything here is in fp32 or the caller's wider type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from ling_runtime.draft_config import DraftConfig
    from ling_runtime.training.layers import Params


def markov_bias(params: Params, config: DraftConfig, rows: Tensor, previous: Tensor) -> Tensor:
    """What is added to the base logits of rows [..., g, D] after the tokens previous [..., g]; [..., g, V]."""
    token = F.embedding(previous, params["markov_head.markov_w1.weight"])
    factor = {"vanilla": _vanilla, "gated": _gated, "rnn": _rnn}[config.markov_head_type](params, rows, token)
    return F.linear(factor, params["markov_head.markov_w2.weight"])


def _vanilla(params: Params, rows: Tensor, token: Tensor) -> Tensor:  # noqa: ARG001 - one signature for all three
    return token


def _gated(params: Params, rows: Tensor, token: Tensor) -> Tensor:
    weight, bias = params["markov_head.gate_proj.weight"], params["markov_head.gate_proj.bias"]
    return torch.sigmoid(F.linear(torch.cat([rows, token], -1), weight, bias)) * token


def _rnn(params: Params, rows: Tensor, token: Tensor) -> Tensor:
    """The output gate of a row is read from the state before its update."""
    weight, bias = params["markov_head.joint_proj.weight"], params["markov_head.joint_proj.bias"]
    state, outputs = torch.zeros_like(token[..., 0, :]), []
    for k in range(rows.shape[-2]):
        joint = F.linear(torch.cat([state, token[..., k, :], rows[..., k, :]], -1), weight, bias)
        gate, candidate, output = joint.chunk(3, -1)
        keep = torch.sigmoid(gate)
        state = keep * state + (1 - keep) * torch.tanh(candidate)
        outputs.append(torch.tanh(output))
    return torch.stack(outputs, -2)


def confidence(params: Params, config: DraftConfig, rows: Tensor, previous: Tensor) -> Tensor:
    """Logit of the chance that each draft is accepted once those before it were, [..., g]."""
    features = rows
    if config.confidence_head_with_markov:
        features = torch.cat([rows, F.embedding(previous, params["markov_head.markov_w1.weight"])], -1)
    return F.linear(features, params["confidence_head.proj.weight"], params["confidence_head.proj.bias"])[..., 0]
