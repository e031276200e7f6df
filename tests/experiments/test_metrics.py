"""Every figure against values worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.errors import MeasurementError
from experiments.metrics import Metrics, Sample, measure, step_flag

# Two requests under W = 4. First: 10 tokens, 3 steps, 0.1 s to the first token, 0.27 s of decoding. Second: 9 tokens,
# 4 steps, 0.2 s, 0.16 s. Accept = (9 + 8) / (3 + 4) = 17 / 7; per request 3 and 2, mean 2.5. TPOT = 30 and 20 ms.
# Step = 0.43 s / 7.
TWO = (
    Sample(tokens=10, steps=3, ttft_s=0.1, latency_s=0.37),
    Sample(tokens=9, steps=4, ttft_s=0.2, latency_s=0.36),
)


def measured(samples: tuple[Sample, ...] = TWO, **changes: Any) -> Metrics:
    given: dict[str, Any] = {
        "window": 4,
        "source": "measured",
        "wall_s": 0.95,
        "peak_tok_s": 19.0,
        "server_step_ms": None,
    }
    return measure(samples, **(given | changes))


def test_figures_by_hand() -> None:
    metrics = measured()
    assert metrics.accept_length == pytest.approx(17 / 7)
    assert metrics.accept_length_request_mean == pytest.approx(2.5)
    assert (metrics.mean_tpot_ms, metrics.median_tpot_ms) == (pytest.approx(25.0), pytest.approx(25.0))
    assert metrics.step_ms == pytest.approx(430 / 7)
    assert (metrics.mean_ttft_ms, metrics.median_ttft_ms) == (pytest.approx(150.0), pytest.approx(150.0))
    assert metrics.output_tok_s == pytest.approx(20.0)
    assert (metrics.requests, metrics.output_tokens, metrics.peak_tok_s, metrics.wall_s) == (2, 19, 19.0, 0.95)


def test_equal_lengths_make_the_step_the_product_of_tpot_and_accept_length() -> None:
    samples = tuple(Sample(tokens=13, steps=v, ttft_s=0.5, latency_s=0.5 + 0.06 * v) for v in (4, 6))
    metrics = measured(samples)
    assert metrics.step_ms == pytest.approx(metrics.mean_tpot_ms * metrics.accept_length)


def test_plain_decoding_has_accept_length_one_by_definition_and_a_step_per_token() -> None:
    metrics = measured((Sample(tokens=11, steps=None, ttft_s=0.1, latency_s=0.2),), window=1, source="definition")
    assert (metrics.accept_length, metrics.accept_source) == (1.0, "definition")
    assert metrics.step_ms == pytest.approx(10.0)


@pytest.mark.parametrize("steps", [None, 0])
def test_a_speculative_run_without_counts_is_an_error_and_not_one(steps: int | None) -> None:
    with pytest.raises(MeasurementError, match="no verify count"):
        measured((Sample(tokens=10, steps=steps, ttft_s=0.1, latency_s=0.3),))


def test_a_request_of_one_token_has_a_ttft_and_nothing_else() -> None:
    metrics = measured((*TWO, Sample(tokens=1, steps=None, ttft_s=0.3, latency_s=0.3)))
    assert metrics.accept_length == pytest.approx(17 / 7)
    assert metrics.mean_ttft_ms == pytest.approx(200.0)
    assert metrics.output_tokens == 20


def test_only_single_tokens_cannot_be_timed() -> None:
    with pytest.raises(MeasurementError, match="second token"):
        measured((Sample(tokens=1, steps=None, ttft_s=0.3, latency_s=0.3),))


@pytest.mark.parametrize(
    ("server_ms", "flagged"), [(None, False), (61.0, False), (59.7, False), (59.0, True), (64.0, True)]
)
def test_step_times_more_than_three_percent_apart_are_flagged(server_ms: float | None, *, flagged: bool) -> None:
    assert (step_flag(measured(server_step_ms=server_ms)) is not None) == flagged
