"""Sequential temperature scaling: it finds planted temperatures, and its figures are what they claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ling_runtime.speculation.dspark.calibration import (
    GRID,
    conditional_errors_of,
    confidences,
    errors_of,
    expected_error,
    fit,
    reliability,
)

STEPS, DRAFTS = 20000, 4
PLANTED = (0.5, 1.0, 2.5, 4.0)


def planted(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw confidences whose true temperatures are PLANTED, and drafts accepted accordingly."""
    noise = torch.Generator().manual_seed(seed)
    raw = 2.0 + 2.0 * torch.randn(STEPS, DRAFTS, generator=noise)
    truth = torch.sigmoid(raw / torch.tensor(PLANTED))
    accepted = torch.rand(STEPS, DRAFTS, generator=noise) < truth
    return raw, accepted.long().cumprod(dim=1)


def test_planted_temperatures_are_found() -> None:
    found = fit(*planted())
    assert np.abs(np.log10(np.array(found.temperatures) / PLANTED)).max() < 0.11, "within two steps of the grid"
    assert all(error < 0.02 for error in found.ece_after)
    assert found.ece_before[0] > 0.05
    raw, correct = planted(1)
    assert max(errors_of(raw, correct, found.temperatures)) < 0.5 * max(errors_of(raw, correct, [1.0] * DRAFTS))
    assert max(conditional_errors_of(raw, correct, found.temperatures)) < 0.03


def test_a_position_is_fitted_with_those_before_it_frozen() -> None:
    """The last temperature minimises the error of the whole product over the grid; equals go to the lowest."""
    raw, correct = planted(2)
    found = fit(raw, correct)
    errors = [errors_of(raw, correct, [*found.temperatures[:-1], float(t)])[-1] for t in GRID]
    assert found.temperatures[-1] == float(GRID[int(np.argmin(errors))])
    assert found.ece_after[-1] == pytest.approx(min(errors), abs=1e-12)
    assert found.ece_before == errors_of(raw, correct, [1.0] * DRAFTS)
    tied = fit(torch.zeros(10, 1), torch.ones(10, 1))
    assert tied.temperatures == (pytest.approx(0.1),)


def test_the_error_is_the_published_formula() -> None:
    rng = np.random.default_rng(3)
    p, y = rng.random(500), rng.integers(0, 2, 500)
    p[:3] = 0.0, 1.0, 1 / 3
    total = 0.0
    clipped = np.clip(p, 1e-8, 1 - 1e-8)
    place = np.minimum((clipped * 15).astype(int), 14)
    for b in range(15):
        if (inside := place == b).any():
            total += inside.mean() * abs(clipped[inside].mean() - y[inside].mean())
    assert expected_error(torch.tensor(p), torch.tensor(y)) == pytest.approx(total, abs=1e-12)


def test_a_reliability_table_accounts_for_every_step() -> None:
    raw, correct = planted(4)
    product = confidences(raw, PLANTED).prod(dim=1)
    table = reliability(product, correct[:, -1])
    assert sum(row.count for row in table) == STEPS
    assert sum(row.count * row.observed for row in table) == pytest.approx(float(correct[:, -1].sum()))
    assert all(row.low <= row.predicted < row.high for row in table)
