"""Readiness: only the server we started counts, and one that fails says why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from processes import MARK, marked

from experiments.clients.generate import GenerateClient, ProtocolError
from experiments.errors import LaunchError
from experiments.ports import HOST, free_port, is_closed
from experiments.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec

pytestmark = pytest.mark.process


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


@pytest.mark.parametrize(
    ("fault", "message", "tail"),
    [
        ("die_at_start", "ended with code 7 before it was ready", "out of memory"),
        ("other_name", "answers as \\['somebody-else'\\], not as tiny-", "fake engine ready"),
        ("errors", "not ready after 1 s; last: .*HTTP 500.*on purpose", "fake engine ready"),
        ("hang", "not ready after 1 s; last: .*Timeout", "fake engine ready"),
        ("wrong_counts", "not ready after 1 s; last: .*1 output_ids but completion_tokens = 2", "fake engine ready"),
        ("zero_tokens", "not ready after 1 s; last: asked for one token, got 0", "fake engine ready"),
    ],
)
def test_a_server_that_never_serves_fails_with_its_log_s_end(
    make_cell: Callable[..., CellSpec], tmp_path: Path, fault: str, message: str, tail: str
) -> None:
    with Server(make_cell(fault), log=tmp_path / "log") as server:
        with pytest.raises(LaunchError, match=message) as caught:
            server.wait_ready(1.0)
        assert tail in caught.value.log_tail


def test_a_server_that_died_is_blamed_for_failed_calls(make_cell: Callable[..., CellSpec], tmp_path: Path) -> None:
    with Server(make_cell("die_mid_stream"), log=tmp_path / "log") as server:
        server.wait_ready(10.0)
        for _ in range(2):
            server.client.generate(text="x", max_new_tokens=8, stream=True)
        with pytest.raises(ProtocolError):
            server.client.generate(text="x", max_new_tokens=8, stream=True)
        with pytest.raises(LaunchError, match="code -9 while it was in use") as caught:
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


def test_a_port_that_was_given_out_is_closed() -> None:
    assert is_closed(free_port())


def test_nobody_there_is_a_protocol_error() -> None:
    with GenerateClient(f"http://{HOST}:{free_port()}") as client, pytest.raises(ProtocolError, match="GET /v1/models"):
        client.models()
