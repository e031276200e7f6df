"""Peak with its phase band, and drift inside a run."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.drift import drift, remark
from analysis.peak import Stream, first_tokens_later, phase_band, streams, token_times

REAL = [json.loads(line) for line in (Path(__file__).parent / "data/requests.jsonl").read_text().splitlines()]
"""A run of the miniature on two cores, NEXTN 3/4, sixteen requests one after the other."""
PRINTED = 215
"""The peak that SGLang's client printed for it."""


def rows(requests: int = 12, *, ttft_s: float = 0.16, step_s: float = 0.0096, steps: int = 17) -> list[dict]:
    """Answers one after the other: four tokens a step, as a miniature that speculates gives them."""
    stamps = [[ttft_s + step_s * i, 1 + 4 * i] for i in range(steps + 1)]
    return [{"stamps": stamps, "latency_s": stamps[-1][0]} for _ in range(requests)]


def busiest_second(times: np.ndarray, phase: float) -> int:
    """As the client counts, word by word: the fullest bucket of one second from `phase` on."""
    seconds = np.floor(times - phase).astype(int)
    return int(np.bincount(seconds - seconds.min()).max())


def test_tokens_of_a_chunk_are_spread_over_the_gap_before_it() -> None:
    answer = Stream(start_s=5.0, stamps=((0.5, 1), (0.7, 3), (0.7, 3), (0.8, 4)))
    later = Stream(start_s=6.0, stamps=((0.5, 2),))
    assert token_times([later, answer]) == pytest.approx([0.5, 0.6, 0.7, 0.8, 1.5])


def test_the_band_is_that_of_every_cut() -> None:
    times = token_times(streams(rows()))
    band = phase_band(times, phases=50)
    by_hand = [busiest_second(times, phase) for phase in np.arange(50) / 50 + 1e-12]
    assert (band.low, band.high) == (min(by_hand), max(by_hand))
    assert band.printed == by_hand[0]
    assert band.low < band.high


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0, 5), min_size=1, max_size=60))
def test_the_printed_peak_is_inside_its_band(raw: list[float]) -> None:
    times = np.sort(np.array(raw))
    band = phase_band(times, phases=20)
    assert 1 <= band.low <= band.printed <= band.high <= len(raw)


def test_a_later_first_token_alone_moves_the_peak() -> None:
    """Of a real run: not one step became slower, and the printed peak goes up and down by more than ten percent."""
    answers = streams(REAL)
    delays = [0.002 * i for i in range(20)]
    peaks = [phase_band(token_times(first_tokens_later(answers, delay))).printed for delay in delays]
    assert max(peaks) / min(peaks) > 1.1
    assert not all(before >= after for before, after in pairwise(peaks))
    for answer, moved in zip(answers, first_tokens_later(answers, 0.01), strict=True):
        assert np.diff([at for at, _ in moved.stamps]) == pytest.approx(np.diff([at for at, _ in answer.stamps]))


def test_it_prints_what_the_client_printed_and_how_little_that_means() -> None:
    band = phase_band(token_times(streams(REAL)))
    assert band.printed == PRINTED
    assert band.high / band.low > 1.2


def test_the_real_run_was_still_warming_up() -> None:
    ratio = drift([row["latency_s"] - row["ttft_s"] for row in REAL], [row["spec_verify_ct"] for row in REAL])
    assert ratio.estimate == pytest.approx(-0.078, abs=0.005)
    assert "warming up" in (remark(ratio) or "")


def test_recorded_starts_are_used_where_there_are_any() -> None:
    first, second = rows(2)
    assert streams([first, second])[1].start_s == pytest.approx(first["latency_s"])
    assert streams([first, {**second, "start_s": 9.0}])[1].start_s == 9.0


def test_drift_by_hand() -> None:
    steady = drift([0.1] * 9, [10] * 9)
    assert (steady.estimate, steady.low, steady.high) == (0.0, 0.0, 0.0)
    slower = drift([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.11, 0.11, 0.11], [10] * 9)
    assert slower.estimate == pytest.approx(math.log(1.1))
    assert slower.above
    assert "slowed down" in (remark(slower) or "")
    assert "warming up" in (remark(-slower) or "")


def test_five_requests_show_no_drift() -> None:
    few = drift([0.1] * 5, [10] * 5)
    assert not few.decided
    assert remark(few) is None


def test_a_steady_machine_is_seldom_called_drifting() -> None:
    generator = np.random.default_rng(6)
    runs = [drift(0.1 * np.exp(generator.normal(0, 0.03, 48)), np.full(48, 10.0)) for _ in range(400)]
    assert np.mean([run.decided for run in runs]) < 0.08


def test_a_drift_of_five_percent_is_seen_in_noise() -> None:
    generator = np.random.default_rng(7)
    ramp = np.linspace(0, 0.075, 48)
    runs = [drift(0.1 * np.exp(ramp + generator.normal(0, 0.02, 48)), np.full(48, 10.0)) for _ in range(50)]
    assert np.mean([run.above for run in runs]) > 0.9
    assert np.mean([run.estimate for run in runs]) == pytest.approx(0.05, abs=0.005)
