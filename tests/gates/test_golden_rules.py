"""What a golden record binds: the cell it speaks of, and, on another processor, near-ties in place of bits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fabricate import NEXTN_3_4, answers
from toy_client import ToyClient
from toy_run import SPEC, TWO

from experiments.spec import ChangeSpec, EngineSpec, TaskSpec
from gates import golden as store
from gates.change import ChangeError
from gates.check import record
from gates.evidence import Missing
from gates.golden import Golden, GoldenError, Reference
from gates.hardware import UNKNOWN, Hardware
from gates.run import apply
from gates.verdict import decide
from tests.fakes.checkpoint import write_checkpoint

HERE = Hardware(name="this machine", fingerprint="1234")
ELSEWHERE = Hardware(name="another machine", fingerprint="5678")


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("golden")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def spec(checkpoint):
    return replace(SPEC, model=replace(SPEC.model, name="tiny", path=str(checkpoint)))


@pytest.fixture(scope="module")
def taken(spec, directory) -> Golden:
    """After a trip through a file."""
    gates, evidence = record(spec, ToyClient())
    assert {gate.name: gate.status for gate in gates}["state_pollution"] == "pass"
    store.write(directory / "tiny.json", store.taken(spec, HERE, evidence))
    return store.read(directory / "tiny.json")


@pytest.fixture
def named(spec, taken, directory):
    """The cell, told where the record is."""
    return replace(spec, gate=replace(spec.gate, golden=str(directory / "tiny.json")))


@pytest.fixture
def against(monkeypatch):
    """A single cell's gates by name and its verdict, on a machine of our choice."""

    def against(spec, client, hardware=HERE, **given):
        monkeypatch.setattr("gates.attached.launched_on", lambda _: hardware)
        found = store.reference(spec)
        inputs = {"accept": TWO, "task": None} | given
        gates, evidence = apply(spec, None, client, baseline=None, golden=found, **inputs)
        name = found.golden.model if isinstance(found, Reference) else None
        return {gate.name: gate for gate in gates}, decide(None, gates, golden=name), evidence

    return against


def must_not_ask(_):
    raise AssertionError("the hardware is asked about although nothing differs")


def test_a_single_cell_that_equals_its_record_is_a_baseline(against, named, monkeypatch):
    monkeypatch.setattr("gates.attached.launched_on", must_not_ask)
    gates, evidence = apply(
        named, None, ToyClient(), baseline=None, golden=store.reference(named), accept=TWO, task=None
    )
    statuses = {gate.name: (gate.status, gate.required) for gate in gates}
    assert statuses["byte_parity"] == statuses["logit_digest"] == statuses["accept_drift"] == ("pass", True)
    assert evidence.accept == TWO
    verdict = decide(None, gates, golden="tiny")
    assert (verdict.verdict, verdict.rule) == ("baseline", "golden")
    assert "tiny" in verdict.reason


@pytest.mark.parametrize(
    ("fault", "amount", "gate"),
    [("rotate_after", 20, "byte_parity"), ("noise", 3e-5, "logit_digest"), ("pollute", 0, "state_pollution")],
)
def test_on_the_record_s_hardware_every_bit_binds(against, named, fault, amount, gate):
    _, verdict, _ = against(named, ToyClient(fault=fault, amount=amount))
    assert (verdict.verdict, verdict.rule) == ("reject", f"gate:{gate}")
    assert verdict.reason.endswith("(against the golden record of tiny)")


@pytest.mark.parametrize("hardware", [ELSEWHERE, UNKNOWN])
def test_other_bits_elsewhere_are_reported_and_no_alarm(against, named, hardware):
    gates, verdict, _ = against(named, ToyClient(fault="noise", amount=3e-5), hardware)
    assert (gates["logit_digest"].status, gates["logit_digest"].required) == ("fail", False)
    assert "this machine (1234)" in gates["logit_digest"].reason
    assert str(hardware) in gates["logit_digest"].reason
    assert (gates["lossless"].status, gates["lossless"].required) == ("pass", True)
    assert verdict.verdict == "baseline"


def test_a_near_tie_that_flips_elsewhere_is_counted_and_no_alarm(against, named):
    wide = replace(named, gate=replace(named.gate, near_tie=0.25))
    gates, verdict, _ = against(wide, ToyClient(fault="noise", amount=0.02), ELSEWHERE)
    assert (gates["byte_parity"].status, gates["byte_parity"].required) == ("fail", False)
    assert gates["lossless"].evidence["near_ties"]
    assert verdict.verdict == "baseline"


def test_a_decoder_that_strays_from_its_own_model_is_caught_elsewhere_too(against, named):
    """Scoring the record's tokens shows nothing wrong here; forcing the server's own tokens does."""
    gates, verdict, _ = against(named, ToyClient(fault="rotate_after", amount=20), ELSEWHERE)
    assert verdict.rule == "gate:lossless"
    assert {position for _, position, _ in gates["lossless"].evidence["beyond"]} == {20, 21, 22, 23}


def test_another_model_is_caught_elsewhere_too(against, named):
    _, verdict, _ = against(named, ToyClient(fault="noise", amount=3.0), ELSEWHERE)
    assert verdict.rule == "gate:lossless"


def test_answers_all_different_leave_no_drift_to_measure(against, named):
    gates, verdict, _ = against(named, ToyClient(fault="rotate_after", amount=0))
    assert (gates["accept_drift"].status, gates["accept_drift"].reason) == (
        "not_applicable",
        "no answer is the record's",
    )
    assert verdict.rule == "gate:byte_parity"


def test_a_dead_server_is_invalid(against, named):
    assert against(named, ToyClient(fault="dead"))[1].status == "invalid"


def test_the_class_of_the_difference_decides_what_binds(named, taken):
    reference = store.reference(replace(named, engine=EngineSpec(dtype="bfloat16"), env={"A": "1"}))
    assert reference.change.class_ == "rounding"
    assert reference.change.parts == ("engine.dtype: float32 -> bfloat16", "env.A: None -> 1")
    assert store.reference(replace(named, speculation=NEXTN_3_4)).change.class_ == "speculation"
    assert store.reference(named).change.parts == ()


def test_a_declaration_that_contradicts_the_difference_is_refused(named):
    preserved = replace(named, engine=EngineSpec(dtype="bfloat16"), change=ChangeSpec(rounding="preserved"))
    with pytest.raises(ChangeError, match="preserved"):
        store.reference(preserved)


def test_drawn_weights_have_no_record_though_it_lies_beside_them(spec, named, taken, against, directory, monkeypatch):
    monkeypatch.setattr(store, "DIRECTORY", directory)
    assert isinstance(store.reference(spec), Reference), "it is the record that ships for the model of this name"
    drawn = replace(spec, model=replace(spec.model, weights="drawn"))
    gates, verdict, _ = against(drawn, ToyClient(fault="rotate_after", amount=20))
    assert {name for name, gate in gates.items() if gate.status != "not_applicable"} == {"state_pollution"}
    assert "this model's are drawn (model.weights)" in gates["byte_parity"].reason
    assert (verdict.verdict, verdict.rule) == ("baseline", "no_baseline")
    with pytest.raises(GoldenError, match="are drawn"):
        store.reference(replace(named, model=drawn.model))


def test_a_task_is_not_compared_but_its_floor_binds(against, named):
    task = replace(named, task=TaskSpec(name="gsm8k"))
    gates, verdict, _ = against(task, ToyClient(), task=answers(400, 500))
    assert (gates["task_score"].reason, verdict.verdict) == ("the golden record has no task answers", "baseline")
    floored = replace(task, task=replace(task.task, floor=0.9))
    assert against(floored, ToyClient(), task=answers(400, 500))[1].rule == "gate:task_score"
    assert against(floored, ToyClient(), task=answers(460, 500))[1].verdict == "baseline"


TASK = TaskSpec(name="gsm8k", num_questions=500, parallel=8, data_path="of this machine.jsonl")
DECLARED = ChangeSpec(rounding="declared", reason="rounds elsewhere")


@pytest.fixture
def with_task(spec, tmp_path):
    """The cell with a task, told of a record that answered it 480 times of 500."""
    _, evidence = record(spec, ToyClient(), answers(480, 500))
    store.write(tmp_path / "task.json", store.taken(replace(spec, task=TASK), HERE, evidence))
    assert TASK.data_path not in (tmp_path / "task.json").read_text()
    return replace(spec, task=TASK, gate=replace(spec.gate, golden=str(tmp_path / "task.json")))


@pytest.mark.parametrize(("correct", "verdict"), [(478, "baseline"), (440, "reject")])
@pytest.mark.parametrize("change", [ChangeSpec(), DECLARED], ids=["same", "declared"])
def test_a_record_with_a_task_binds_it_question_by_question(against, with_task, change, correct, verdict):
    gates, found, _ = against(replace(with_task, change=change), ToyClient(), task=answers(correct, 500))
    assert (gates["task_score"].required, found.verdict) == (True, verdict)
    assert f"{480 - correct} lost, 0 gained of 500" in gates["task_score"].reason


def test_other_questions_are_not_paired_with_the_record_s(against, with_task):
    gates, verdict, _ = against(with_task, ToyClient(), task=answers(100, 500, data_hash="other"))
    assert (gates["task_score"].status, verdict.verdict) == ("not_applicable", "baseline")
    assert "other questions" in gates["task_score"].reason


def test_declared_rounding_without_the_task_is_undecided_and_says_so(against, with_task):
    untold = replace(with_task, task=TaskSpec(), change=DECLARED)
    gates, verdict, _ = against(untold, ToyClient())
    task = gates["task_score"]
    assert (task.status, task.required, task.reason) == ("not_applicable", True, "no task configured")
    assert verdict.verdict != "reject"


def test_a_check_asks_the_record_s_task_where_the_class_is_held_to_one(with_task):
    untold = replace(with_task, task=TaskSpec())
    declared = replace(untold, change=DECLARED)
    assert store.asking(declared, store.reference(declared)).task == replace(TASK, data_path=None)
    assert store.asking(untold, store.reference(untold)).task.name == "none"
    assert store.asking(with_task, store.reference(with_task)).task == TASK


def other_weights(spec, directory: Path):
    other = write_checkpoint(directory)
    (other / "model.safetensors").write_bytes(b"other weights")
    return replace(spec, model=replace(spec.model, path=str(other)))


@pytest.mark.parametrize("difference", ["weights", "engine", "quantisation"])
def test_a_record_of_another_model_is_refused_where_named_and_passed_over_where_found(
    against, named, tmp_path, monkeypatch, directory, difference
):
    spec = {
        "weights": other_weights(named, tmp_path / "other"),
        "engine": replace(named, engine=EngineSpec(name="sglang")),
        "quantisation": replace(named, engine=EngineSpec(extra_args=("--quantization", "fp8"))),
    }[difference]
    with pytest.raises(GoldenError, match=r"of (other weights|another model)"):
        store.reference(spec)
    monkeypatch.setattr(store, "DIRECTORY", directory)
    gates, verdict, _ = against(replace(spec, gate=replace(spec.gate, golden=None)), ToyClient())
    assert gates["byte_parity"].reason.startswith("no baseline; the golden record is of")
    assert (verdict.verdict, verdict.rule) == ("baseline", "no_baseline")


def test_another_tokenizer_is_another_model(named, tmp_path):
    tokenizer = write_checkpoint(tmp_path / "tokenizer")
    with pytest.raises(GoldenError, match="other weights"):
        store.reference(replace(named, model=replace(named.model, tokenizer_path=str(tokenizer))))


def test_without_a_record_or_gates_there_is_no_baseline(spec, named):
    assert store.reference(spec) == Missing("no baseline")
    assert store.reference(replace(named, gate=replace(named.gate, mode="off"))) == Missing("no baseline")


def test_a_record_holds_no_path_of_its_machine_and_survives_its_file(spec, taken, directory):
    text = (directory / "tiny.json").read_text()
    assert str(Path(spec.model.path).parent) not in text
    assert json.loads(text)["hardware"] == {"name": "this machine", "fingerprint": "1234"}
    again = directory / "again.json"
    store.write(again, taken)
    assert store.read(again) == taken
    assert again.read_text() == text
