"""What the statistics promise, kept on simulated servers whose true effect is known. The long versions are `slow`."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from machines import MINIATURE, ONE_GPU, TWO_CORES
from rehearse import CPU, CROWD, GPU, RENEWED, Machine, rehearse

from analysis.ab import detectable
from analysis.bootstrap import bootstrap
from analysis.noise import Noise, Run, fit
from analysis.pairs import contrasts
from analysis.sequence import always_valid, log_capital
from analysis.simulation import Effect, simulate, wander

pytestmark = pytest.mark.whole

MACHINES = pytest.mark.parametrize("machine", [CPU, GPU], ids=["two cores", "one GPU"])
PLANTED = pytest.mark.parametrize(("machine", "step"), [(CPU, 0.03), (GPU, 0.01)], ids=["two cores", "one GPU"])


def aa_decided(machine: Machine, trials: int, seed: int) -> float:
    """Share of A/A runs that came out as something else than inconclusive; nobody told them that they were A/A."""
    runs = rehearse(machine, Effect(), trials=trials, seed=seed)
    return sum(run.outcome.verdict != "inconclusive" for run in runs) / trials


@MACHINES
def test_aa_is_inconclusive(machine: Machine) -> None:
    assert aa_decided(machine, trials=40, seed=11) <= 0.1


@pytest.mark.slow
@MACHINES
def test_aa_over_a_thousand_seeds_is_decided_in_six_of_a_hundred_at_most(machine: Machine) -> None:
    assert aa_decided(machine, trials=1000, seed=12) <= 0.06


@PLANTED
@pytest.mark.parametrize(("sign", "verdict"), [(-1, "keep"), (1, "reject")])
def test_a_planted_change_is_found_in_ten_minutes(machine: Machine, step: float, sign: int, verdict: str) -> None:
    runs = rehearse(machine, Effect(step=sign * step), trials=20, seed=13)
    assert Counter(run.outcome.verdict for run in runs)[verdict] >= 18
    assert max(run.spent_s for run in runs) <= 600


@pytest.mark.slow
@PLANTED
def test_a_planted_change_is_found_in_nine_of_ten(machine: Machine, step: float) -> None:
    runs = rehearse(machine, Effect(step=-step), trials=400, seed=14)
    assert Counter(run.outcome.verdict for run in runs)["keep"] >= 360


def test_where_launches_differ_five_per_cent_is_found_by_launching_again() -> None:
    found = Counter(run.outcome.verdict for run in rehearse(RENEWED, Effect(step=0.05), trials=20, seed=26))
    once = replace(RENEWED, launch_blocks=0)
    missed = Counter(run.outcome.verdict for run in rehearse(once, Effect(step=0.05), trials=20, seed=26))
    assert found["reject"] >= 18
    assert missed["reject"] < found["reject"]
    assert aa_decided(RENEWED, trials=40, seed=27) <= 0.1


@pytest.mark.slow
def test_where_launches_differ_a_thousand_aa_runs_are_inconclusive_as_elsewhere() -> None:
    assert aa_decided(RENEWED, trials=1000, seed=28) <= 0.06


@pytest.mark.slow
def test_beside_eight_busy_processes_ten_percent_is_found_and_nothing_is_made_up() -> None:
    """Three percent is found there in one of four only, and the verdict does not guess."""
    found = Counter(run.outcome.verdict for run in rehearse(CROWD, Effect(step=-0.1), trials=40, seed=24))
    assert found["keep"] >= 36
    assert aa_decided(CROWD, trials=100, seed=25) <= 0.06


@MACHINES
def test_an_accept_shift_at_equal_tokens_per_second_is_no_faster_step(machine: Machine) -> None:
    """Both fell by 4 %: step time alone would be called a success."""
    runs = rehearse(machine, Effect(step=-0.04, accept=-0.04), trials=10, seed=15)
    assert {run.outcome.verdict for run in runs} == {"inconclusive"}
    assert sum(run.outcome.rule == "trade" for run in runs) >= 8


def without_launches(machine: Machine) -> Machine:
    """What a launch draws is the floor's matter and no interval's."""
    return replace(machine, noise=replace(machine.noise, launch=0.0))


def coverage(machine: Machine, blocks: int, trials: int, seed: int) -> float:
    """Of the bootstrap after a fixed number of blocks."""
    simulated = without_launches(machine).simulate(Effect(step=0.02), trials=trials, seed=seed, blocks=blocks)
    found = [
        bootstrap(simulated.pairs(trial, blocks), "step_time", seed=trial, resamples=499) for trial in range(trials)
    ]
    return sum(interval.low <= 0.02 <= interval.high for interval in found) / trials


@MACHINES
def test_the_bootstrap_covers(machine: Machine) -> None:
    assert coverage(machine, blocks=20, trials=300, seed=16) == pytest.approx(0.95, abs=0.045)


@pytest.mark.slow
@MACHINES
@pytest.mark.parametrize("blocks", [10, 20, 40])
def test_the_bootstrap_covers_within_two_points(machine: Machine, blocks: int) -> None:
    assert coverage(machine, blocks, trials=3000, seed=17) == pytest.approx(0.95, abs=0.02)


@MACHINES
def test_the_always_valid_interval_covers_at_all_blocks_at_once(machine: Machine) -> None:
    trials = without_launches(machine).simulate(Effect(step=0.02), trials=1000, seed=18)
    ever = (log_capital(trials.contrasts("step_time") - 0.02) >= math.log(20)).any(axis=1)
    assert ever.mean() <= 0.05 + 0.02


def test_pairs_of_a_trial_are_its_contrasts() -> None:
    trials = CPU.simulate(Effect(step=-0.03, accept=0.05), trials=2, seed=19, blocks=9)
    for figure in ("step_time", "tpot", "accept"):
        assert contrasts(trials.pairs(1, 9), figure) == pytest.approx(trials.contrasts(figure)[1])


def test_equal_arms_accept_exactly_alike_and_a_shift_shows() -> None:
    assert not CPU.simulate(Effect(), trials=3, seed=20, blocks=9).contrasts("accept").any()
    shifted = CPU.simulate(Effect(accept=0.05), trials=50, seed=20, blocks=40).contrasts("accept")
    assert shifted.mean() == pytest.approx(0.05, abs=0.003)


def test_blocks_cancel_what_drifts() -> None:
    """Ten percent a minute of drift leave the contrasts where they were."""
    drifting = replace(ONE_GPU, drift_per_min=0.1, launch=0.0)
    trials = simulate(drifting, MINIATURE, Effect(step=0.01), trials=200, blocks=20, prompts=2, seed=21)
    assert trials.contrasts("step_time").mean() == pytest.approx(0.01, abs=5e-4)


@pytest.mark.parametrize("noise", [TWO_CORES, ONE_GPU], ids=["two cores", "one GPU"])
def test_fit_reads_back_what_was_simulated(noise: Noise) -> None:
    pace, launches, requests = 0.33, 40, 400
    generator = np.random.default_rng(22)
    logs = wander(noise, generator, launches, requests, pace) + noise.launch * generator.normal(size=(launches, 1))
    found = fit([Run(pace * np.arange(1, requests + 1), 0.01 * np.exp(run)) for run in logs])
    assert found.white == pytest.approx(noise.white, rel=0.25)
    assert found.slow == pytest.approx(noise.slow, rel=0.4)
    assert 0.3 < found.slow_s / noise.slow_s < 3


def test_fit_wants_two_launches() -> None:
    with pytest.raises(ValueError, match="2 launches"):
        fit([Run(np.arange(50.0), np.ones(50))])


def test_an_effect_of_the_detectable_size_is_mostly_found() -> None:
    trials = without_launches(GPU).simulate(Effect(), trials=100, seed=23, blocks=30).contrasts("step_time")
    size = math.log1p(float(np.median([detectable(run) for run in trials])))
    found = [always_valid(run + size).above for run in trials]
    assert 0.65 <= np.mean(found) <= 0.98
