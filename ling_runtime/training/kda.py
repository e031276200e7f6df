"""Kimi delta attention for training: the chunk form, made of a few large batched products.

The recurrence is the sheet's: gate law, eps inside the root of the L2 norm, decayed read, updated read. The surprise
is the constant in the exponents: inside a chunk of 16 rows the cumulative log decay stays above 16 times the lower
bound (-80), so splitting exp(G_i - G_j) around the middle of that range gives two factors that both fit fp32, and the
terms inside a chunk become plain matrix products. Chunks are then chained by one small product each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 16
L2_EPS = 1e-6


class KdaInputs(NamedTuple):
    """Operands of the recurrence, [B, T, H, d] each; beta is [B, T, H]."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor


def short_conv(z: Tensor, weight: Tensor, past: Tensor) -> Tensor:
    """Causal depthwise convolution, then SiLU; z [B, T, C], weight [C, 1, K], past [B, K-1, C] the rows before z."""
    rows = z.shape[1]
    padded = torch.cat([past, z], 1)
    taps = weight[:, 0]
    mixed = sum(padded[:, j : j + rows] * taps[:, j] for j in range(taps.shape[1]))
    assert isinstance(mixed, Tensor)
    return F.silu(mixed)


def log_decay(f: Tensor, dt_bias: Tensor, A_log: Tensor, floor: float) -> Tensor:
    """The safe gate, f and dt_bias [..., H, d], A_log [H]: floor * sigmoid(exp(A_log) * (f + dt_bias))."""
    return floor * torch.sigmoid(A_log.exp()[:, None] * (f + dt_bias))


def l2_normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def recurrent_step(state: Tensor, step: KdaInputs) -> tuple[Tensor, Tensor]:
    """One token for every head: state [B, H, dk, dv], inputs without the T axis; gives (new state, output)."""
    decayed = step.log_decay.exp()[..., None] * state
    read = torch.einsum("bhkv,bhk->bhv", decayed, step.k)
    update = step.beta[..., None] * (step.v - read)
    state = decayed + step.k[..., None] * update[..., None, :]
    return state, torch.einsum("bhkv,bhk->bhv", state, step.q)


def chunked(inputs: KdaInputs, floor: float) -> Tensor:
    """Outputs [B, T, H, dv] of the whole sequence from a zero state; `floor` is the lower bound of the log decay."""
    batch, length, heads, _ = inputs.q.shape
    rows = _Rows.split(inputs)
    total = rows.log_decay.cumsum(-2)
    middle = -floor * CHUNK / 2
    rise, fall = (total + middle).exp(), (-total - middle).exp()
    k_rise = rows.k * rise
    k_fall = rows.k * fall
    mixing = (k_rise @ k_fall.mT).tril(-1) * rows.beta
    solve = _unit_lower_inverse(mixing)
    decay = total.exp()
    fresh = solve @ (rows.beta * rows.v)
    from_state = solve @ (rows.beta * decay * rows.k)
    k_end = (total[..., -1:, :] - total).exp() * rows.k
    carry = torch.diag_embed(decay[..., -1, :]) - k_end.mT @ from_state
    states = scan(carry, k_end.mT @ fresh)
    update = fresh - from_state @ states
    scores = ((rows.q * rise) @ k_fall.mT).tril()
    out = (rows.q * decay) @ states + scores @ update
    return _Rows.join(out, batch, heads, length)


class _Rows(NamedTuple):
    """Inputs cut into chunks: [N, B*H, 16, d], chunk-major so that the scan reads contiguous slices."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    beta: Tensor

    @classmethod
    def split(cls, inputs: KdaInputs) -> _Rows:
        q, k, v, decay, beta = (_to_chunks(x) for x in inputs._replace(beta=inputs.beta[..., None]))
        return cls(q, k, v, decay, beta)

    @staticmethod
    def join(out: Tensor, batch: int, heads: int, length: int) -> Tensor:
        chunks, _, rows, width = out.shape
        out = out.view(chunks, batch, heads, rows, width).permute(1, 0, 3, 2, 4)
        return out.reshape(batch, chunks * rows, heads, width)[:, :length]


def _to_chunks(x: Tensor) -> Tensor:
    batch, length, heads, width = x.shape
    padding = -length % CHUNK
    x = F.pad(x, (0, 0, 0, 0, 0, padding))  # zero key and zero beta: padded rows leave the state alone
    x = x.view(batch, -1, CHUNK, heads, width).permute(1, 0, 3, 2, 4)
    return x.reshape(x.shape[0], batch * heads, CHUNK, width)


def _unit_lower_inverse(strict: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower A of 16 rows: A^16 is zero, so four factors of the series suffice."""
    eye = torch.eye(CHUNK, dtype=strict.dtype, device=strict.device)
    inverse, power = eye - strict, strict
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    return inverse


@torch.library.custom_op("ling_training::scan", mutates_args=())
def scan(carry: Tensor, added: Tensor) -> Tensor:
    """State at the start of every chunk: states[c + 1] = carry[c] @ states[c] + added[c], from zero.

    carry [N, BH, dk, dk], added [N, BH, dk, dv]. An operator of its own, so that a compiler does not unroll the loop.
    """
    states = torch.zeros_like(added)
    for c in range(len(added) - 1):
        torch.baddbmm(added[c], carry[c], states[c], out=states[c + 1])
    return states


@scan.register_fake
def _(carry: Tensor, added: Tensor) -> Tensor:  # noqa: ARG001 - shapes follow the second operand
    return torch.empty_like(added)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of `added` is the same scan run from the other end."""
    carry, states = ctx.saved_tensors
    added = scan(carry.mT.flip(0).contiguous(), grad.flip(0).contiguous()).flip(0)
    return added @ states.mT, added


scan.register_autograd(_backward, setup_context=_keep)
