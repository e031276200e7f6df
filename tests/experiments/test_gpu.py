"""nvidia-smi's answers, told by a stand-in on PATH."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from experiments import gpu
from experiments.errors import CleanupError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes nvidia-smi tell these MiB in use, one GPU each; the last call's answer stays."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def tell(*used: int, then: int | None = None) -> None:
        rows = [f"{i}, Some GPU, 999.1, 141312, {mib}, 1980, 3201, 33, 700.00" for i, mib in enumerate(used)]
        (tmp_path / "answer").write_text("\n".join(rows) + "\n")
        later = f"sed -i 's/141312, [0-9]*/141312, {then}/' {tmp_path}/answer" if then is not None else ""
        script = tmp_path / "nvidia-smi"
        script.write_text(f"#!/bin/sh\ncat {tmp_path}/answer\n{later}\n")
        script.chmod(0o755)

    return tell


def test_rows_by_field(report: Callable[..., None]) -> None:
    report(10, 20)
    assert [row["name"] for row in gpu.gpus()] == ["Some GPU", "Some GPU"]
    assert gpu.used_mib() == {"0": 10, "1": 20}


def test_no_gpu_is_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpu.gpus() == []


def test_memory_that_comes_back_is_waited_for(report: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "POLL_S", 0.01)
    report(9000, then=12)
    gpu.wait_for_memory({"0": 10})
    assert gpu.used_mib() == {"0": 12}


def test_memory_that_does_not_is_an_error(report: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "POLL_S", 0.01)
    report(10, 9000)
    with pytest.raises(CleanupError, match=r"did not come back in 0\.1 s: MiB in use \{'1': 9000\}"):
        gpu.wait_for_memory({"0": 10, "1": 10}, timeout_s=0.1)
