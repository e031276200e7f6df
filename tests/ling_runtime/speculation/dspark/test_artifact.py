"""Artifacts: both cost formats, what does not fit is named, and falling back is loud."""

from __future__ import annotations

import dataclasses
import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ling_runtime.config import ConfigError
from ling_runtime.speculation.dspark.artifact import load_cost, load_temperatures, write
from ling_runtime.speculation.dspark.cost import FLAT, from_json
from ling_runtime.speculation.dspark.identity import Identity, checkpoint, identity_of

if TYPE_CHECKING:
    from pathlib import Path

OURS = Identity(target="t", draft="d", gamma=3, hardware="this machine", kernels={"linear": "triton"})
STEPS = {"sample_batch_tokens": [1, 4, 16], "sample_steps_per_sec": [100.0, 80.0, 40.0], "max_batch_tokens": 16}
ADDITIVE = {
    "bias_seconds": 0.01,
    "bs_probes": [1, 5],
    "alpha_seconds": [0.0, 0.004],
    "m_probes": [1, 11, 21],
    "theta_seconds": [0.0, 0.001, 0.003],
}
TEMPERATURES = {"temperatures": [1.0, 1.5, 2.0], "dataset": "held out", "num_samples": 7, "reliability_after": [[]]}


@pytest.mark.parametrize(("rows", "speed"), [(1, 100.0), (3, 100.0), (4, 80.0), (15, 80.0), (16, 40.0), (99, 40.0)])
def test_a_step_table_is_looked_up_at_the_probe_below(rows: int, speed: float) -> None:
    assert from_json(STEPS).step_time(1, rows) == pytest.approx(1 / speed)


@pytest.mark.parametrize(
    ("requests", "rows", "seconds"),
    [(1, 1, 0.010), (3, 6, 0.0125), (5, 16, 0.016), (9, 99, 0.017), (2, 11, 0.012)],
)
def test_an_additive_table_is_interpolated_and_ends_flat(requests: int, rows: int, seconds: float) -> None:
    assert from_json(ADDITIVE).step_time(requests, rows) == pytest.approx(seconds)


@pytest.mark.parametrize("raw", [STEPS, ADDITIVE], ids=["steps", "additive"])
def test_tables_are_written_as_they_are_read(raw: dict[str, Any]) -> None:
    assert from_json(raw).to_json() == raw


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({}, "sample_batch_tokens"),
        (STEPS | {"sample_batch_tokens": [1, 4, 4]}, "sample_batch_tokens"),
        (STEPS | {"sample_batch_tokens": [0, 4, 5]}, "sample_batch_tokens"),
        (STEPS | {"sample_steps_per_sec": [1.0, 2.0]}, "sample_steps_per_sec"),
        (STEPS | {"sample_steps_per_sec": [1.0, 2.0, 0.0]}, "sample_steps_per_sec"),
        (STEPS | {"sample_steps_per_sec": [1.0, 2.0, float("nan")]}, "sample_steps_per_sec"),
        (STEPS | {"sample_steps_per_sec": [1.0, 2.0, 10**400]}, "sample_steps_per_sec"),
        (STEPS | {"max_batch_tokens": 8}, "max_batch_tokens"),
        (ADDITIVE | {"bias_seconds": 0.0}, "bias_seconds"),
        (ADDITIVE | {"bs_probes": [5, 1]}, "bs_probes"),
        (ADDITIVE | {"alpha_seconds": [0.1]}, "alpha_seconds"),
        (ADDITIVE | {"m_probes": []}, "m_probes"),
        (ADDITIVE | {"theta_seconds": [0.0, "x", 0.0]}, "theta_seconds"),
        (ADDITIVE | {"theta_seconds": [-0.02, 0.0, 0.0]}, "theta_seconds"),
    ],
)
def test_a_wrong_table_is_refused_by_key(raw: dict[str, Any], key: str, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=rf"--speculative-dspark-sps-table-path .*cost.json: .*{key}"):
        load_cost(str(path), OURS, allow_fallback=False)


def test_what_was_written_here_is_used_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path / "new" / "cost.json", OURS, ADDITIVE)
    write(tmp_path / "sts.json", OURS, TEMPERATURES)
    cost = load_cost(str(tmp_path / "new" / "cost.json"), OURS, allow_fallback=False)
    sts = load_temperatures(str(tmp_path / "sts.json"), OURS, allow_fallback=False)
    assert cost.value == from_json(ADDITIVE)
    assert sts.value == (1.0, 1.5, 2.0)
    assert sts.about is not None
    assert sts.about["num_samples"] == 7
    assert "reliability_after" not in sts.about
    assert not caplog.records


@pytest.mark.parametrize(
    ("part", "other"),
    [("target", "s"), ("draft", "e"), ("gamma", 4), ("hardware", "another"), ("kernels", {"linear": "cuda"})],
)
def test_what_was_made_with_something_else_is_refused_by_name(part: str, other: Any, tmp_path: Path) -> None:
    write(tmp_path / "cost.json", OURS, ADDITIVE)
    write(tmp_path / "sts.json", OURS, TEMPERATURES)
    here = dataclasses.replace(OURS, **{part: other})
    with pytest.raises(ConfigError, match=f"made with {part}"):
        load_cost(str(tmp_path / "cost.json"), here, allow_fallback=False)
    if part in ("hardware", "kernels"):
        assert load_temperatures(str(tmp_path / "sts.json"), here, allow_fallback=False).value == (1.0, 1.5, 2.0)
    else:
        with pytest.raises(ConfigError, match=f"made with {part}" if part != "gamma" else "list of 4"):
            load_temperatures(str(tmp_path / "sts.json"), here, allow_fallback=False)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ({"linear": "cuda", "moe": "triton"}, "made with kernels linear=cuda, but here it is linear=triton$"),
        ({"moe": "triton"}, "made with kernels linear=reference, but here it is linear=triton$"),
        ({"linear": "triton"}, "made with kernels moe=reference, but here it is moe=triton$"),
        (None, "does not name the kernels that it was made with, and here it is linear=triton, moe=triton$"),
    ],
    ids=["another", "missing", "more here", "an older file"],
)
def test_a_cost_table_of_other_kernels_is_refused_and_says_which(
    theirs: dict[str, str] | None, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cost.json"
    write(path, dataclasses.replace(OURS, kernels=theirs), ADDITIVE)
    here = dataclasses.replace(OURS, kernels={"linear": "triton", "moe": "triton"})
    with pytest.raises(ConfigError, match=said):
        load_cost(str(path), here, allow_fallback=False)
    assert load_cost(str(path), here, allow_fallback=True).value is FLAT
    assert "kernels" in caplog.text
    assert load_cost(str(path), dataclasses.replace(here, kernels=None), allow_fallback=False).about is not None


def test_a_file_from_before_kernels_were_named_is_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    write(path, OURS, ADDITIVE)
    raw = json.loads(path.read_text())
    del raw["identity"]["kernels"]
    path.write_text(json.dumps(raw))
    for kernels, here in (({"linear": "triton"}, "linear=triton"), ({}, "reference throughout")):
        with pytest.raises(
            ConfigError, match=f"does not name the kernels that it was made with, and here it is {here}"
        ):
            load_cost(str(path), dataclasses.replace(OURS, kernels=kernels), allow_fallback=False)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"temperatures": [1, 2]}', '{"temperatures": [1, 2, 0]}'])
def test_falling_back_is_allowed_by_flag_only_and_loud(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "sts.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"--speculative-dspark-confidence-sts-path .*sts\.json"):
        load_temperatures(str(path), OURS, allow_fallback=False)
    fallen = load_temperatures(str(path), OURS, allow_fallback=True)
    assert (fallen.value, fallen.about) == ((1.0, 1.0, 1.0), None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "IS NOT USED" in caplog.text


def test_without_files_the_defaults_are_harmless_and_said(caplog: pytest.LogCaptureFixture) -> None:
    assert load_cost(None, OURS, allow_fallback=False).value is FLAT
    assert load_temperatures(None, OURS, allow_fallback=False).value == (1.0, 1.0, 1.0)
    assert "every row is verified" in caplog.text
    assert "not calibrated" in caplog.text


def test_files_without_identity_are_taken_on_trust(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(STEPS))
    assert load_cost(str(path), OURS, allow_fallback=False).value == from_json(STEPS)
    assert "taken on trust" in caplog.text


def test_a_checkpoint_is_known_by_its_content(tmp_path: Path) -> None:
    for name, content in (("a", bytes(300_000)), ("copy", bytes(300_000)), ("b", bytes(299_999) + b"x")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(content)
    assert checkpoint(tmp_path / "a") == checkpoint(tmp_path / "copy") != checkpoint(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"no .*safetensors there"):
        checkpoint(tmp_path)
    identity = partial(identity_of, tmp_path / "a", tmp_path / "b", 3, device="cpu")
    one = identity(dtype="float32", kernels={})
    assert one != identity(dtype="bfloat16", kernels={})
    assert one != identity(dtype="float32", kernels={"moe_align": "pair_axis"})
    assert one == identity(dtype="float32", kernels={"linear": "reference", "prompt_mla": "triton"}), "no step's time"
