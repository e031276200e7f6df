"""One schema for all algorithms: what each takes, what is completed, what a draft must be before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.checks import checked
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError
from experiments.spec import CalibrationSpec, CellSpec, ModelSpec, SpeculationSpec
from ling_runtime.speculation.dspark.artifact import write as write_artifact
from ling_runtime.speculation.dspark.identity import identity_of
from tests.fakes.checkpoint import write_draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def make(make_cell: Callable[..., CellSpec], checkpoint: Path, draft: Path) -> Callable[..., CellSpec]:
    """A cell of these keys on a model that ships one draft, of block 8."""

    def cell(algorithm: str = "dspark", **keys: Any) -> CellSpec:
        if algorithm == "dspark":
            keys = {"block_size": 8} | keys
        model = ModelSpec(name="tiny", path=str(checkpoint), drafts={"8": str(draft)})
        speculation: Any = {"algorithm": algorithm} | keys
        return make_cell(model=model, speculation=SpeculationSpec(**speculation))

    return cell


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"algorithm": "none", "num_steps": 3}, r"speculation\.num_steps: speculation=none has no key at all"),
        (
            {"algorithm": "nextn", "num_steps": 3, "block_size": 8},
            r"speculation\.block_size: speculation=nextn has num_steps, num_draft_tokens; a chain's depth is num_steps",
        ),
        (
            {"algorithm": "nextn", "num_steps": 3, "verify_mode": "compact"},
            r"speculation\.verify_mode: .* verify_mode belongs to speculation=dspark",
        ),
        ({"algorithm": "nextn"}, r"speculation\.num_steps: None .* 1, 2"),
        ({"algorithm": "nextn", "num_steps": 0}, r"speculation\.num_steps: 0 .* 1, 2"),
        (
            {"algorithm": "nextn", "num_steps": 3, "num_draft_tokens": 6},
            r"speculation\.num_draft_tokens: .* verifies 4; or null",
        ),
        ({"num_steps": 3}, r"speculation\.num_steps: .*drafted in one pass, without steps; its depth is block_size"),
        ({"num_draft_tokens": 9}, r"speculation\.num_draft_tokens: .*verified in block_size \+ 1 rows"),
        ({"block_size": None}, r"speculation\.block_size: None .* 1, 2"),
        ({"block_size": 16}, r"speculation\.draft_path: model tiny names no draft .* of 16 \(model\.drafts: 8\)"),
        ({"scheduler": "causal"}, r"speculation\.scheduler: verify_mode=static .* cap-accept and compact"),
        ({"sts_path": "sts.json"}, r"speculation\.sts_path: verify_mode=static verifies every row"),
        ({"verify_mode": "static", "allow_fallback": True}, r"speculation\.allow_fallback: verify_mode=static"),
        ({"draft_path": "/no/such"}, r"speculation\.draft_path: /no/such: .*no config\.json"),
    ],
)
def test_what_an_algorithm_does_not_take_is_refused(
    make: Callable[..., CellSpec], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(make(**keys))


def test_defaults_are_written_out_so_that_leaving_a_key_and_naming_its_default_are_one_cell(
    make: Callable[..., CellSpec], draft: Path
) -> None:
    done = checked(make())
    named = checked(make(draft_path=str(draft), verify_mode="static", acceptance="classic", greedy_draft=False))
    assert done == named
    assert done.speculation.window == 9
    assert done.model.drafts == {}, "what was resolved, and only that, is the cell's"
    scheduled = checked(make(verify_mode="compact")).speculation
    assert (scheduled.scheduler, scheduled.allow_fallback) == ("causal", False)


def test_drafts_are_known_by_block_size(make: Callable[..., CellSpec]) -> None:
    cell = make()
    with pytest.raises(ConfigError, match=r"model\.drafts\.eight: keys are block sizes"):
        checked(replace(cell, model=replace(cell.model, drafts={"eight": "d"})))
    with pytest.raises(ConfigError, match=r"model tiny names no draft of a block of 8 \(model\.drafts: none\)"):
        checked(replace(cell, model=replace(cell.model, drafts={})))


def test_a_smaller_block_than_trained_takes_the_next_larger_draft(make: Callable[..., CellSpec], draft: Path) -> None:
    assert checked(make(block_size=5)).speculation.draft_path == str(draft)


@pytest.mark.parametrize(
    ("config", "keys", "message"),
    [
        ({"hidden_size": 32}, {}, r"speculation\.draft_path: .*hidden_size=32: .* which has 64"),
        ({"vocab_size": 99}, {}, r"speculation\.draft_path: .*vocab_size=99"),
        ({"target_layer_ids": [1, 5]}, {}, r"target_layer_ids=\[1, 5\]: allowed for this target: 0\.\.4"),
        ({"mask_token_id": 256}, {}, r"mask_token_id=256: allowed: 0\.\.255"),
        ({"markov_rank": None}, {}, r"lacks markov_rank"),
        ({"block_size": 4}, {}, r"speculation\.block_size: 8 is too large: .* for blocks of 4; allowed: 1 to 4"),
        (
            {"enable_confidence_head": False},
            {"verify_mode": "compact"},
            r"speculation\.verify_mode: .* no confidence head; allowed: speculation\.verify_mode=static alone",
        ),
    ],
)
def test_a_draft_that_does_not_fit_is_found_before_anything_starts(
    make: Callable[..., CellSpec], tmp_path: Path, config: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    path = write_draft(tmp_path / "draft", **config)
    with pytest.raises(ConfigError, match=message):
        checked(make(draft_path=str(path), **keys))


def test_without_its_confidence_head_a_draft_is_good_for_static(make: Callable[..., CellSpec], tmp_path: Path) -> None:
    path = write_draft(tmp_path / "draft", enable_confidence_head=False)
    assert checked(make(draft_path=str(path))).speculation.verify_mode == "static"


def test_an_environment_name_that_the_flag_overrules_is_refused(make: Callable[..., CellSpec]) -> None:
    cell = replace(make(), env={"SGLANG_RAGGED_VERIFY_MODE": "compact"})
    with pytest.raises(ConfigError, match=r"env\.SGLANG_RAGGED_VERIFY_MODE: overruled by .* speculation\.verify_mode"):
        checked(cell)


def test_a_draft_without_weights_is_half_a_draft(make: Callable[..., CellSpec], tmp_path: Path) -> None:
    path = write_draft(tmp_path / "draft")
    (path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"speculation\.draft_path: .* holds no \*\.safetensors"):
        checked(make(draft_path=str(path)))


def test_a_drawn_model_draws_its_draft_from_the_shapes_alone(
    make: Callable[..., CellSpec], checkpoint: Path, tmp_path: Path
) -> None:
    path = write_draft(tmp_path / "draft")
    (path / "model.safetensors").unlink()
    cell = make(draft_path=str(path))
    drawn = replace(cell, model=replace(cell.model, weights="drawn"))
    line = " ".join(engine_of(drawn).command(checked(drawn), port=1, served_name="x").argv)
    assert "--load-format dummy" in line
    assert f"--speculative-draft-model-path {path}" in line
    (path / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"speculation\.draft_path: .*no config\.json"):
        checked(drawn)


def test_confidences_of_a_drawn_draft_plan_nothing(make: Callable[..., CellSpec]) -> None:
    cell = make(verify_mode="compact")
    with pytest.raises(ConfigError, match=r"speculation\.verify_mode: .* plan nothing; allowed: static"):
        checked(replace(cell, model=replace(cell.model, weights="drawn")))
    calibrating = replace(make(), calibration=CalibrationSpec(name="dspark"))
    with pytest.raises(ConfigError, match=r"calibration: .* plan nothing; allowed: none"):
        checked(replace(calibrating, model=replace(calibrating.model, weights="drawn")))


def artifact(directory: Path, cell: CellSpec, content: dict[str, Any], **made_with: Any) -> str:
    """A file made with what `cell` runs, but for `made_with`."""
    assert cell.speculation.draft_path is not None
    own = identity_of(
        cell.model.path, cell.speculation.draft_path, 8, device="cpu", dtype="float32", kernels={}, threads=1
    )
    path = directory / "artifact.json"
    write_artifact(path, replace(own, **made_with), content)
    return str(path)


TEMPERATURES = {"temperatures": [1.0] * 8}
COSTS = {"sample_batch_tokens": [1, 9], "sample_steps_per_sec": [9.0, 5.0]}


@pytest.mark.parametrize(
    ("key", "content", "made_with", "message"),
    [
        ("sts_path", TEMPERATURES, {"draft": "other"}, "made with draft 'other', but here it is "),
        ("sts_path", TEMPERATURES, {"gamma": 7}, "made with gamma 7, but here it is 8"),
        ("sts_path", {"temperatures": [1.0] * 7}, {}, "must be a list of 8 numbers"),
        ("sts_path", COSTS, {}, "temperatures=None"),
        ("cost_table_path", COSTS, {"hardware": "another"}, "made with hardware 'another'"),
        ("cost_table_path", COSTS, {"target": "other"}, "made with target 'other'"),
        ("cost_table_path", COSTS, {"kernels": {"moe": "x"}}, "made with kernels moe=x, but here it is moe=reference"),
    ],
)
def test_an_artifact_of_something_else_is_refused_unless_that_is_allowed(
    make: Callable[..., CellSpec], tmp_path: Path, key: str, content: Any, made_with: dict[str, Any], message: str
) -> None:
    scheduled = checked(make(verify_mode="compact"))
    keys: dict[str, Any] = {"verify_mode": "compact", key: artifact(tmp_path, scheduled, content, **made_with)}
    with pytest.raises(ConfigError, match=rf"speculation\.{key}: .*{message}.* or speculation\.allow_fallback=true"):
        checked(make(**keys))
    assert getattr(checked(make(**keys, allow_fallback=True)).speculation, key) == keys[key]


def test_artifacts_of_this_very_cell_are_taken(make: Callable[..., CellSpec], tmp_path: Path) -> None:
    path = artifact(tmp_path, checked(make()), TEMPERATURES | COSTS)
    checked(make(verify_mode="cap-accept", sts_path=path, cost_table_path=path))
    compact = make(verify_mode="compact", sts_path=path, cost_table_path=path)
    checked(compact)
    with pytest.raises(ConfigError, match=r"speculation\.cost_table_path: .* but here it is moe_align=pair_axis"):
        checked(replace(compact, kernels={"moe_align": "pair_axis"}))


def test_an_artifact_that_is_not_there_is_refused(make: Callable[..., CellSpec]) -> None:
    with pytest.raises(ConfigError, match=r"speculation\.sts_path: .*/no/such: cannot be read"):
        checked(make(verify_mode="compact", sts_path="/no/such"))


def flags(cell: CellSpec) -> str:
    argv = engine_of(checked(cell)).command(checked(cell), port=1, served_name="n").argv
    return " ".join(argv[argv.index("--speculative-algorithm") :])


def test_flags_of_a_static_block(make: Callable[..., CellSpec], draft: Path) -> None:
    assert flags(make()) == (
        f"--speculative-algorithm DSPARK --speculative-draft-model-path {draft} --speculative-dspark-block-size 8 "
        "--speculative-dspark-verify-mode static"
    )


def test_flags_of_a_scheduled_block_whose_artifacts_may_be_missing(make: Callable[..., CellSpec], draft: Path) -> None:
    cell = make(
        verify_mode="compact",
        scheduler="global",
        acceptance="block",
        greedy_draft=True,
        allow_fallback=True,
        sts_path="/a/sts.json",
        cost_table_path="/a/cost.json",
    )
    assert flags(replace(cell, kernels={})) == (
        f"--speculative-algorithm DSPARK --speculative-draft-model-path {draft} --speculative-dspark-block-size 8 "
        "--speculative-dspark-verify-mode compact --speculative-dspark-scheduler global "
        "--speculative-dspark-confidence-sts-path /a/sts.json --speculative-dspark-sps-table-path /a/cost.json "
        "--speculative-use-block-verification --speculative-dspark-greedy-draft --speculative-dspark-allow-fallback"
    )


def test_a_seed_of_zero_is_a_value(make: Callable[..., CellSpec]) -> None:
    argv = engine_of(checked(make())).command(checked(make()), port=1, served_name="n").argv
    assert argv[argv.index("--random-seed") + 1] == "0"
