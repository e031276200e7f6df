"""Records in, tables out: which attempt counts, where ratios stand, and the same bytes every time."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from analysis.__main__ import main
from analysis.compare import compare
from analysis.records import RecordError, load, natural

GOLDEN = Path(__file__).parent / "golden"


def record(name: str, tpot: float, **changes) -> dict:
    """A valid candidate of `none`, of 2.9 tokens a step unless told otherwise; of `rows` only our server tells."""
    accept, rows = changes.pop("accept_length", 2.9), changes.pop("rows", None)
    metrics = {
        "accept_length": accept,
        "accept_source": "measured",
        "accept_length_request_mean": accept + 0.01,
        "verified_rows_per_step": rows,
        "mean_tpot_ms": tpot,
        "median_tpot_ms": tpot - 0.125,
        "step_ms": tpot * accept,
        "server_step_ms": tpot * accept,
        "mean_ttft_ms": 80.5,
        "median_ttft_ms": 79.0,
        "output_tok_s": 1000 / tpot,
        "peak_tok_s": 1100 / tpot,
        "requests": 16,
        "output_tokens": 1024,
        "wall_s": 4.0,
    }
    gate = {"required": True, "reason": "because", "evidence": {}}
    base = {
        "schema": 1,
        "name": name,
        "study": "depth",
        "attempt": 1,
        "identity": "abc",
        "status": "valid",
        "failure": None,
        "role": "candidate",
        "baseline": "none",
        "verdict": "inconclusive",
        "rule": "no_ab",
        "reason": "gates passed, no A/B",
        "metrics": metrics,
        "task": {"name": "gsm8k", "accuracy": 0.94, "questions": 50},
        "gates": {"byte_parity": gate | {"status": "pass"}, "accept_drift": gate | {"status": "not_applicable"}},
    }
    return base | changes


NONE = record(
    "none", 6.5, role="baseline", baseline=None, verdict="baseline", reason="nothing to compare with", accept_length=1.0
)
DEAD = record(
    "nextn-10-11",
    1.0,
    status="invalid",
    verdict=None,
    metrics=None,
    task=None,
    gates={},
    reason=None,
    failure={"class": "infrastructure", "phase": "launch", "message": "exit code 7", "log_tail": "..."},
)
PARITY = record(
    "nextn-5-6",
    2.1,
    verdict="reject",
    reason="byte_parity: 1 of 4 prompts differ",
    gates={"byte_parity": {"status": "fail", "required": True, "reason": "r", "evidence": {}}},
)


@pytest.fixture
def write(tmp_path):
    def write(*records: dict) -> Path:
        for entry in records:
            folder = tmp_path / entry["study"] / entry["name"] / f"attempt-{entry['attempt']}"
            folder.mkdir(parents=True)
            (folder / "record.json").write_text(json.dumps(entry))
        return tmp_path

    return write


@pytest.fixture
def sweep(write) -> Path:
    return write(DEAD, PARITY, NONE, record("nextn-3-4", 2.6, accept_length=3.05, rows=4.0))


def by_name(directory: Path, **options):
    return compare(load(directory, **options)).set_index("name")


def test_ratios_are_to_the_baseline(sweep):
    cells = by_name(sweep)
    assert cells.loc["nextn-3-4", "tpot_ratio"] == pytest.approx(2.6 / 6.5)
    assert cells.loc["nextn-3-4", "step_ratio"] == pytest.approx(2.6 * 3.05 / 6.5)
    assert cells.loc["nextn-3-4", "throughput_ratio"] == pytest.approx(6.5 / 2.6)
    assert cells["tpot_ratio"].isna().to_dict()["none"]


def test_baseline_first_then_numbers_as_numbers(sweep):
    assert list(compare(load(sweep))["name"]) == ["none", "nextn-3-4", "nextn-5-6", "nextn-10-11"]
    assert sorted(["b-16", "b-8", "a", "b-8-compact"], key=natural) == ["a", "b-8", "b-8-compact", "b-16"]


def test_an_invalid_cell_has_a_reason_and_no_ratio(sweep):
    dead = by_name(sweep).loc["nextn-10-11"]
    assert dead["reason"] == "infrastructure (launch): exit code 7"
    assert dead[["tpot_ratio", "step_ratio", "throughput_ratio"]].isna().all()


def test_numbers_of_an_invalid_cell_are_not_compared(write):
    cells = by_name(write(NONE, record("nextn-3-4", 0.1, status="invalid", verdict=None, reason="above W = 4")))
    shown = cells.loc["nextn-3-4", ["mean_tpot_ms", "accept_length", "accuracy", "tpot_ratio", "throughput_ratio"]]
    assert shown.isna().all()
    assert cells.loc["nextn-3-4", "reason"] == "above W = 4"


def test_a_sweep_of_nothing_but_failures_is_still_a_table(write, capsys):
    directory = write(DEAD)
    assert main(["compare", str(directory), "--width", "170"]) == 0
    assert "exit code 7" in capsys.readouterr().out


def test_an_invalid_baseline_gives_no_ratio(write):
    directory = write(NONE | {"status": "invalid", "verdict": None}, record("nextn-3-4", 2.6))
    assert by_name(directory)["tpot_ratio"].isna().all()


def test_the_last_attempt_counts_even_if_it_is_invalid(write):
    attempts = [record("nextn-3-4", 2.6), DEAD | {"name": "nextn-3-4", "attempt": 10}, record("nextn-3-4", 2.0)]
    attempts[2]["attempt"] = 9
    cells = by_name(write(NONE, *attempts))
    assert cells.loc["nextn-3-4", ["attempt", "status"]].tolist() == [10, "invalid"]


def test_copies_in_a_tracking_store_are_not_read(write):
    directory = write(NONE)
    copy = directory / "artifacts" / "run"
    copy.mkdir(parents=True)
    (copy / "record.json").write_text(json.dumps(NONE | {"study": "copy"}))
    assert list(load(directory)["study"]) == ["depth"]


def test_studies_are_kept_apart(write):
    other = record("nextn-3-4", 3.0, study="other")
    directory = write(NONE, record("nextn-3-4", 2.6), other)
    cells = compare(load(directory))
    assert cells.loc[cells["study"] == "other", "tpot_ratio"].isna().all()
    assert set(by_name(directory, study="depth").index) == {"none", "nextn-3-4"}
    assert set(by_name(directory / "other").index) == {"nextn-3-4"}


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), ('{"schema": 2}', "schema 2"), ('{"schema": 1}', "no key")]
)
def test_a_broken_record_is_an_error_that_names_the_file(tmp_path, text, message):
    (tmp_path / "attempt-1").mkdir()
    (tmp_path / "attempt-1" / "record.json").write_text(text)
    with pytest.raises(RecordError, match=f"record.json.*{message}"):
        load(tmp_path)


def test_no_records_is_exit_code_2(tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 2
    assert "no record.json" in capsys.readouterr().err


@pytest.mark.parametrize("format_", ["table", "csv", "json"])
def test_output_is_the_golden_file(sweep, capsys, format_):
    assert main(["compare", str(sweep), "--format", format_, "--width", "170"]) == 0
    assert capsys.readouterr().out == (GOLDEN / f"compare.{format_}").read_text()


def test_csv_and_json_hold_the_same_figures(sweep, capsys):
    main(["compare", str(sweep), "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    main(["compare", str(sweep), "--format", "json"])
    cells = json.loads(capsys.readouterr().out)["cells"]
    assert [float(row["step_ms"] or "nan") for row in rows][:3] == [cell["step_ms"] for cell in cells][:3]
    assert cells[3]["step_ms"] is None
    assert rows[1]["gates"] == "byte_parity=pass;accept_drift=not_applicable"
    assert cells[1]["gates"] == {"byte_parity": "pass", "accept_drift": "not_applicable"}


def test_simulated_accept_lengths_say_so(write, capsys):
    simulated = record("nextn-3-4", 2.6)
    simulated["metrics"]["accept_source"] = "simulated"
    main(["compare", str(write(NONE, simulated)), "--width", "170"])
    assert "2.90 simulated" in capsys.readouterr().out


def test_what_lies_outside_the_step_is_told_where_a_host_runs_ahead(write, capsys):
    ahead = record("nextn-3-4", 1.1, accept_length=3.0)
    ahead["metrics"] |= {"server_step_ms": 3.0, "slack_ms": 2.25, "dry_share": 0.0125}
    directory = write(NONE, ahead)
    assert by_name(directory).loc["nextn-3-4", "tpot_of_step"] == pytest.approx(1.1)
    main(["compare", str(directory), "--width", "170"])
    said = capsys.readouterr().out
    assert (
        "nextn-3-4: mean TPOT 1.100 ms = 1.100 x the server's step of 3.000 ms / accept length 3.00; "
        "host's slack 2.250 ms a step, device dry in 1.2% of steps" in " ".join(said.split())
    )
    assert "none: mean TPOT" not in said, "nothing runs ahead there"


def test_a_simulated_step_is_accounted_for_and_says_so(write, capsys):
    simulated = record("nextn-3-4", 2.6)
    simulated["metrics"]["accept_source"] = "simulated"
    main(["compare", str(write(NONE, simulated)), "--width", "170"])
    assert "= 1.000 x the server's step of 7.540 ms / accept length 2.90 (simulated)" in capsys.readouterr().out
