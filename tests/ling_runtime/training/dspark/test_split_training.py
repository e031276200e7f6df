"""The split trainer as users run it: two halves, a bounded queue, stops, resumes, and deaths."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest
import torch

from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import load_draft
from ling_runtime.training.dspark.plan import Plan, TrainOptions, parse_shares
from ling_runtime.training.dspark.run import RunDirectory
from ling_runtime.training.dspark.target import Target
from ling_runtime.training.dspark.train import train
from ling_runtime.training.dspark.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ling_runtime.training.dspark.batch import Batch
    from ling_runtime.training.dspark.trainer import Progress
    from ling_runtime.training.dspark.trajectories import Rows

STEPS = 6
ENDLESS = 100_000


@pytest.fixture
def options(small_target: Path, sequences: Path, tmp_path: Path) -> TrainOptions:
    return TrainOptions(
        model=small_target,
        trajectories=sequences,
        out=tmp_path / "run",
        block_size=4,
        steps=STEPS,
        rise=2,
        rows=2,
        length=64,
        long_every=3,
        long_length=128,
        log_every=1,
        checkpoint_every=100,
        halves="threads",
    )


def curve(directory: Path) -> list[tuple[int, float]]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [(one["step"], one["losses"]["total"]) for one in map(json.loads, lines)]


def weights(directory: Path) -> dict[str, torch.Tensor]:
    draft = directory / "draft"
    return load_draft(draft, DraftConfig.from_pretrained(draft), confidence=True)


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.whole
def test_a_run_stopped_and_crashed_and_resumed_has_the_curve_of_one_that_was_not(
    options: TrainOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(options) == 0
    troubled = replace(options, out=tmp_path / "troubled", checkpoint_every=2)
    assert train(replace(troubled, seconds=1e-6)) == 0
    assert [step for step, _ in curve(troubled.out)] == [1]

    def crash_at_six(trainer: Trainer, batch: Batch) -> Progress:
        if trainer.step == 5:
            raise FloatingPointError("planted")
        return train_step(trainer, batch)

    train_step = Trainer.train_step
    monkeypatch.setattr(Trainer, "train_step", crash_at_six)
    with pytest.raises(FloatingPointError, match="planted"):
        train(replace(troubled, resume=True))
    monkeypatch.undo()
    assert [step for step, _ in curve(troubled.out)] == [1, 2, 3, 4, 5]
    assert RunDirectory(troubled.out).step() == 4
    assert train(replace(troubled, resume=True)) == 0
    assert [step for step, _ in curve(options.out)] == list(range(1, STEPS + 1))
    assert curve(troubled.out) == curve(options.out)
    assert equal(weights(troubled.out), weights(options.out))


def test_a_target_that_fails_ends_the_run_with_its_error(
    options: TrainOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(target: Target, rows: Rows) -> Batch:
        raise MemoryError("planted")

    monkeypatch.setattr(Target, "__call__", fail)
    with pytest.raises(MemoryError, match="planted"):
        train(options)


def test_what_does_not_fit_is_named_before_anything_starts(options: TrainOptions) -> None:
    train(replace(options, steps=1, rise=1))
    for change, said in [
        ({}, "holds a run; give --resume"),
        ({"resume": True, "steps": 1, "rise": 1, "lr": 0.5}, r"lr=0\.5: the run .* has 0\.002"),
        ({"length": 65}, "length=65: allowed: 64, 128"),
        ({"shares": "greedy=1,warm=1"}, "shares: warm: not in these trajectories"),
        ({"shares": "greedy"}, "shares=greedy: expected NAME=SHARE"),
    ]:
        with pytest.raises(ConfigError, match=said):
            train(replace(options, **change))
    with pytest.raises(ConfigError, match=r"preset=fancy: allowed: plain, "):
        replace(options, preset="fancy")
    with pytest.raises(ConfigError, match=r"pairs=2: halves=threads"):
        replace(options, pairs=2)
    assert parse_shares("a=0.25,b=1") == {"a": 0.25, "b": 1.0}


def test_slots_hold_the_largest_batch(options: TrainOptions) -> None:
    plan = Plan(replace(options, rows=3, long_every=2, long_length=128))
    assert plan.stream.tokens == 192
    assert plan.slot_bytes >= 192 * (8 + 1 + 4 * 64 * (len(plan.recipe.draft.target_layer_ids) + 1))


# ---------------------------------------------------------------------------------------------------------------------
# Deaths and signals, in real processes


@pytest.fixture
def running(options: TrainOptions) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts an endless run in processes and waits for its first step."""
    started: list[subprocess.Popen[str]] = []

    def start(*more: str) -> subprocess.Popen[str]:
        flags = ["--model", options.model, "--trajectories", options.trajectories, "--out", options.out]
        flags += f"--steps {ENDLESS} --rows 1 --length 64 --block-size 4 --log-every 1 --halves processes".split()
        command = [sys.executable, "-m", "ling_runtime.training.dspark", "train", *map(str, flags), *more]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(run)
        assert run.stdout is not None
        while not run.stdout.readline().startswith("step 2/"):
            assert run.poll() is None, run.stderr and run.stderr.read()
        return run

    yield start
    for run in started:
        if run.poll() is None:
            run.kill()
        run.communicate()


def halves_of(options: TrainOptions) -> dict[str, psutil.Process]:
    """Processes of a run by name, as their logs give them."""
    said = {log.stem: log.read_text().splitlines()[0] for log in (options.out / "logs").iterdir()}
    return {name: psutil.Process(int(line.rpartition(" ")[2])) for name, line in said.items()}


def gone(half: psutil.Process) -> bool:
    return not half.is_running() or half.status() == psutil.STATUS_ZOMBIE


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not condition():
        time.sleep(0.05)
    return condition()


@pytest.mark.process
@pytest.mark.parametrize("half", ["target-0", "draft-0"])
def test_a_killed_half_stops_the_other_and_is_named(
    running: Callable[..., subprocess.Popen[str]], options: TrainOptions, half: str
) -> None:
    run = running()
    halves = halves_of(options)
    assert set(halves) == {"target-0", "draft-0"}
    halves[half].kill()
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 1
    assert f"error: {half} died (killed by SIGKILL); the other half was stopped" in errors
    assert f"{half}: process {halves[half].pid}" in errors  # its last lines
    assert all(map(gone, halves.values()))


@pytest.mark.process
def test_a_killed_parent_leaves_nothing_behind(
    running: Callable[..., subprocess.Popen[str]], options: TrainOptions
) -> None:
    run = running()
    halves = halves_of(options)
    run.kill()
    assert wait_until(lambda: all(map(gone, halves.values())), 10)


@pytest.mark.slow
@pytest.mark.process
def test_two_pairs_take_the_steps_of_one_with_twice_the_rows_and_stop_together_at_a_signal(
    running: Callable[..., subprocess.Popen[str]], options: TrainOptions
) -> None:
    run = running("--pairs", "2")
    halves = halves_of(options)
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM, said
    assert "go on with --resume" in said
    assert set(halves) == {"target-0", "draft-0", "target-1", "draft-1"}
    assert all(map(gone, halves.values()))
    both = curve(options.out)
    assert both[-1][0] == torch.load(options.out / "checkpoint.pt", weights_only=True)["step"]
    single = replace(options, steps=ENDLESS, rise=100, long_every=0, out=options.out / "single", seconds=1e-6)
    for resumed in (False, True):
        train(replace(single, resume=resumed))
    assert [loss for _, loss in both[:2]] == pytest.approx([loss for _, loss in curve(single.out)], rel=1e-5)
