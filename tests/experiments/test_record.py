"""Records are whole or absent, and attempts never overwrite each other."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import record

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def test_attempts_count_up_past_gaps_and_nine(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"attempt-{number}").mkdir()
    assert record.new_attempt(tmp_path).name == "attempt-11"
    assert [record.number(path) for path in record.attempts(tmp_path)] == [1, 2, 10, 11]


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    record.write_json(path, {"old": True})

    def power_cut(_handle: int) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "fsync", power_cut)
    with pytest.raises(OSError, match="power cut"):
        record.write_json(path, {"new": "x" * 10_000})
    assert json.loads(path.read_text()) == {"old": True}


def test_a_reader_never_sees_half_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    record.write_json(path, {"old": True})
    seen = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        seen.append(json.loads(path.read_text()))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    record.write_json(path, {"new": True})
    assert (seen, json.loads(path.read_text())) == ([{"old": True}], {"new": True})


def test_a_record_holds_no_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        record.write_json(tmp_path / "record.json", {"step_ms": float("nan")})
    assert list(tmp_path.iterdir()) == []


@given(value=VALUES)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("records") / "record.json"
    record.write_json(path, {"schema": record.SCHEMA, "value": value})
    assert record.read(path.parent)["value"] == value
