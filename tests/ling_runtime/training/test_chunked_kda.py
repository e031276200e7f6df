"""The chunk form against the recurrence written out, in float64, over the whole range of the gate."""

from __future__ import annotations

import pytest
import torch

from ling_runtime.training.kda import KdaInputs, chunked, l2_normalise, recurrent_step, scan

FLOOR = -5.0


def random_inputs(length: int, decay: float, dtype: torch.dtype = torch.float64) -> KdaInputs:
    """`decay` in (0, 1): 0 keeps everything, 1 forgets at the lower bound; repeated keys are the hard case."""
    draw = torch.Generator().manual_seed(length)
    q, k, v, noise = torch.randn(4, 2, length, 3, 8, generator=draw, dtype=dtype)
    k[:, ::2] = k[:, :1].clone()
    log_decay = FLOOR * (decay + 0.01 * torch.sigmoid(noise)).clamp(max=1.0)
    return KdaInputs(q, l2_normalise(k), v, log_decay, torch.sigmoid(noise[..., 0] + 2))


def stepwise(inputs: KdaInputs) -> torch.Tensor:
    batch, length, heads, width = inputs.q.shape
    state, rows = inputs.q.new_zeros(batch, heads, width, width), []
    for t in range(length):
        state, out = recurrent_step(state, KdaInputs(*(value[:, t] for value in inputs)))
        rows.append(out)
    return torch.stack(rows, 1)


@pytest.mark.parametrize("length", [1, 16, 53, 160])
@pytest.mark.parametrize("decay", [0.0, 0.2, 0.99])
def test_chunks_equal_steps(length: int, decay: float) -> None:
    inputs = random_inputs(length, decay)
    want = stepwise(inputs)
    assert (chunked(inputs, FLOOR) - want).norm() <= 1e-10 * want.norm()


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.99])
def test_chunks_stay_accurate_in_fp32(decay: float) -> None:
    inputs = random_inputs(160, decay)
    got = chunked(KdaInputs(*(value.float() for value in inputs)), FLOOR)
    want = stepwise(inputs)
    assert (got - want).norm() <= 2e-5 * want.norm()


def test_gradient_of_chunks_equals_that_of_steps() -> None:
    inputs = random_inputs(37, 0.1)
    grads = []
    for form in (lambda leaves: chunked(leaves, FLOOR), stepwise):
        leaves = KdaInputs(*(value.clone().requires_grad_() for value in inputs))
        grads.append(torch.autograd.grad(form(leaves).sin().sum(), leaves))
    for got, want in zip(*grads, strict=True):
        assert (got - want).norm() <= 1e-10 * want.norm()


def test_scan_has_its_own_gradient() -> None:
    carry, added = torch.randn(2, 5, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(scan, (carry.requires_grad_(), added.requires_grad_()))
