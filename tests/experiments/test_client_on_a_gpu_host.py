"""SGLang's load client on a host with a GPU: it sees none, and brings no operator that torchvision has already."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from experiments.clients import recorded_serving
from experiments.clients.bench_serving import command
from experiments.findings import slack

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.spec import CellSpec


def test_the_client_sees_no_gpu(make_cell: Callable[..., CellSpec]) -> None:
    line = command(make_cell(), url="http://127.0.0.1:1", dataset=Path("d.json"), served_name="x")
    assert line.env["CUDA_VISIBLE_DEVICES"] == ""


@pytest.fixture
def defined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Operators that were defined; torchvision is a directory with a library in it."""
    (tmp_path / "_C.so").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: spec)
    found: list[str] = []

    class Library:
        def __init__(self, *_names: str) -> None: ...

        def define(self, schema: str) -> None:
            found.append(schema.partition("(")[0])

    monkeypatch.setattr(torch.library, "Library", Library)
    return found


def test_torchvision_s_own_operators_are_not_defined_twice(
    defined: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(torch.ops, "load_library", loaded.append)
    assert recorded_serving.define_torchvision_schemas() is None
    assert (loaded, defined) == ([str(tmp_path / "_C.so")], [])


def test_a_library_that_wants_cuda_is_stood_in_for(defined: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_file: str) -> None:
        raise OSError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(torch.ops, "load_library", load)
    assert recorded_serving.define_torchvision_schemas() is not None
    assert defined == ["nms", "qnms"]


@pytest.mark.parametrize(
    ("report", "figures"),
    [
        ({"slack": {"count": 4, "total_s": 0.01, "dry": 1}}, {"slack_ms": 2.5, "dry_share": 0.25}),
        ({"slack": {"count": 0, "total_s": 0.0, "dry": 0}}, {}),
        ({"path": "eager"}, {}),
    ],
)
def test_slack_is_a_mean_over_steps(report: dict[str, Any], figures: dict[str, float]) -> None:
    assert slack(report) == pytest.approx(figures)
