"""Readiness: only the server we started counts, and one that fails says why."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from experiments.clients.generate import GenerateClient, ProtocolError
from experiments.errors import (
    CellError,
    CleanupError,
    Interrupted,
    LaunchError,
    OutOfMemory,
    PhaseTimeout,
    ServerDied,
)
from experiments.ports import HOST, free_port, is_closed
from experiments.server import Server
from tests.experiments.processes import MARK, marked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec

pytestmark = pytest.mark.process

LATE = r"launch did not end within 1 s \(engine.ready_timeout_s\); last: "


def test_ready_means_a_generation_under_our_name(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    with Server(make_cell(), log=tmp_path / "log") as server:
        server.wait_ready(10.0)
        assert server.client.models() == [server.name]
        assert server.client.generate(text="x", max_new_tokens=3).completion_tokens == 3
        port = int(server.url.rpartition(":")[2])
    assert is_closed(port)


def test_two_servers_never_share_a_name_or_a_port(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    with Server(make_cell(), log=tmp_path / "a") as one, Server(make_cell(), log=tmp_path / "b") as two:
        assert (one.name, one.url) != (two.name, two.url)
        assert one.name != two.name


def test_a_late_server_is_waited_for(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    with Server(make_cell("late"), log=tmp_path / "log") as server:
        assert server.wait_ready(10.0) >= 0.5


def test_a_stale_server_on_the_port_is_never_measured_in_place_of_ours(
    make_cell: Callable[..., CellSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves the same model, is ready at once, and holds the port that ours was to have."""
    with Server(make_cell(), log=tmp_path / "stale.log") as stale:
        stale.wait_ready(10.0)
        port = int(stale.url.rpartition(":")[2])
        monkeypatch.setattr("experiments.server.free_port", lambda _: port)
        with Server(make_cell(), log=tmp_path / "log") as server:
            with pytest.raises(LaunchError, match=r"ended with code 1 before|answers as") as caught:
                server.wait_ready(10.0)
            assert server.url == stale.url
            assert stale.name in str(caught.value) or "Address already in use" in caught.value.log_tail


@pytest.mark.parametrize(
    ("fault", "kind", "message", "tail"),
    [
        ("die_at_start", LaunchError, "ended with code 7 before it was ready", "on purpose"),
        ("no_memory_at_start", OutOfMemory, "memory before it was ready .*DefaultCPUAllocator", "can't allocate"),
        ("other_name", LaunchError, "answers as \\['somebody-else'\\], not as tiny-", "fake engine ready"),
        ("errors", PhaseTimeout, f"{LATE}.*HTTP 500.*on purpose", "fake engine ready"),
        ("hang", PhaseTimeout, LATE, "fake engine ready"),
        ("stall", PhaseTimeout, LATE, "fake engine ready"),
        ("wrong_counts", PhaseTimeout, f"{LATE}.*1 output_ids but completion_tokens = 2", "fake engine ready"),
        ("zero_tokens", PhaseTimeout, f"{LATE}asked for one token, got 0", "fake engine ready"),
    ],
)
def test_a_server_that_never_serves_fails_with_its_log_s_end(
    make_cell: Callable[..., CellSpec], tmp_path: Path, fault: str, kind: type[CellError], message: str, tail: str
) -> None:
    with Server(make_cell(fault), log=tmp_path / "log") as server:
        with pytest.raises(kind, match=message) as caught:
            server.wait_ready(1.0)
        assert tail in caught.value.log_tail


def test_a_server_that_died_is_blamed_for_failed_calls(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    with Server(make_cell("die_mid_stream"), log=tmp_path / "log") as server:
        server.wait_ready(10.0)
        for _ in range(2):
            server.client.generate(text="x", max_new_tokens=8, stream=True)
        with pytest.raises(ProtocolError):
            server.client.generate(text="x", max_new_tokens=8, stream=True)
        with pytest.raises(ServerDied, match="code -9 while it was in use") as caught:
            server.blame()
        assert "on purpose" in caught.value.log_tail


@pytest.mark.parametrize("fault", ["grandchild"])
def test_stop_leaves_nothing(
    make_cell: Callable[..., CellSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    mark = str(tmp_path)
    monkeypatch.setenv(MARK, mark)
    with Server(make_cell(fault), log=tmp_path / "log") as server:
        server.wait_ready(10.0)
        assert marked(mark) != []
    assert marked(mark) == []


def test_who_is_told_to_stop_does_not_wait_for_gpu_memory(
    make_cell: Callable[..., CellSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are seconds between a TERM to a job and its KILL, and memory that stays must not hide the signal."""

    def stays(_: object) -> None:
        raise CleanupError("GPU memory did not come back")

    monkeypatch.setattr("experiments.server.wait_for_memory", stays)
    cell = make_cell()
    cell = replace(cell, engine=replace(cell.engine, device="cuda"))
    with pytest.raises(Interrupted), Server(cell, log=tmp_path / "server.log") as server:
        raise Interrupted(signal.SIGTERM)
    assert not server.process.alive()
    with pytest.raises(CleanupError), Server(cell, log=tmp_path / "server.log"):
        pass


def test_a_port_that_was_given_out_is_closed() -> None:
    assert is_closed(free_port())


def test_nobody_there_is_a_protocol_error() -> None:
    with GenerateClient(f"http://{HOST}:{free_port()}") as client, pytest.raises(ProtocolError, match="GET /v1/models"):
        client.models()
