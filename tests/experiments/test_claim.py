"""A claim as others see it: from the moment of its lock to the moment of its end."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

from experiments.claim import claimed, running

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_claim_can_be_read_from_its_lock_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, seen = fcntl.flock, []

    def lock_and_look(file: int, how: int) -> None:
        monkeypatch.undo()
        lock(file, how)
        seen.append(running(tmp_path))

    monkeypatch.setattr(fcntl, "flock", lock_and_look)
    with claimed(tmp_path) as own:
        (at_once,) = seen
        assert at_once is not None
        assert at_once["stage"] == "start"
        own.note("bench")
        now = running(tmp_path)
        assert now is not None
        assert now["stage"] == "bench"
    assert running(tmp_path) is None
