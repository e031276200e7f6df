"""Recordings are counted and bounded: past the bound steps run launch by launch, give the same tokens, and say so."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.arguments import parse
from ling_runtime.config import ConfigError
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.graph_memory import MIB, GraphMemory
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graph_step import GraphExecutor
from ling_runtime.executor.graphs import DEVICE_VARIANTS, Recorded, Replays
from ling_runtime.executor.interface import Admission
from ling_runtime.ops.registry import Kernels
from ling_runtime.weights import initialise
from tests.ling_runtime.executor.driving import prompt_of
from tests.ling_runtime.executor.test_graph_step import smaller

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_runtime.config import ModelConfig

ON_A_CARD = DEVICE.type == "cuda"


@dataclass
class Ledger:
    """A device whose recordings take what is listed, in turn, and give it back when dropped, but for `kept`.

    `still`: work is not called to record it, since without a card calling it does it.
    """

    sizes: list[int]
    kept: int = 0
    still: bool = False
    taken: int = 1000
    dropped: list[int] = field(default_factory=list)

    def used(self) -> int:
        return self.taken

    def record(self, work: Callable[[], None]) -> Drawn:
        if not self.still:
            work()
        size = self.sizes.pop(0)
        self.taken += size
        return Drawn(self, work, size)


@dataclass
class Drawn:
    ledger: Ledger
    work: Callable[[], None]
    size: int

    def replay(self) -> None:
        self.work()

    def reset(self) -> None:
        self.ledger.taken -= self.size - self.ledger.kept
        self.ledger.dropped.append(self.size)


class Counted(Recorded):
    """Calls an operator once a run."""

    def __init__(self, kernels: Kernels, label: str) -> None:
        self._kernels, self._label, self.runs = kernels, label, 0

    @property
    def name(self) -> str:
        return self._label

    def run(self) -> None:
        self.runs += 1
        self._kernels.calls["moe"] = self._kernels.calls.get("moe", 0) + 1


def test_what_was_recorded_stays_and_the_rest_runs_launch_by_launch(caplog: pytest.LogCaptureFixture) -> None:
    kernels, ledger = Kernels(), Ledger([40, 30, 50], kept=5)
    memory = GraphMemory(100, ledger)
    replays, parts = Replays(kernels, memory), [Counted(kernels, f"window {rows}") for rows in (9, 5, 3, 1)]
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            for part in parts:
                replays.step(part)
    assert memory.report() == {"graphs": 2, "bytes": 75, "bound": 100, "refused": ["window 3", "window 1"]}
    assert ledger.dropped == [50]
    assert ledger.sizes == [], "the fourth was never tried"
    assert kernels.calls["moe"] == 12, "a step counts once, however it ran"
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert ["window 3 runs launch by launch" in text for text in said] == [False, True, False], "once for each"
    assert "window 1 runs launch by launch" in said[2]
    assert "recorded window 5" in caplog.text


def test_without_a_bound_everything_is_recorded_and_without_a_device_nothing() -> None:
    kernels, memory = Kernels(), GraphMemory(None, Ledger([MIB] * 3))
    replays, parts = Replays(kernels, memory), [Counted(kernels, str(i)) for i in range(3)]
    for part in parts * 2:
        replays.step(part)
    assert memory.report() == {"graphs": 3, "bytes": 3 * MIB, "bound": None, "refused": []}
    if not ON_A_CARD:
        nowhere = GraphMemory(1)
        part = Counted(kernels, "one")
        assert [part.step(nowhere) for _ in range(2)] == [1, 1]
        assert nowhere.report() == {"graphs": 0, "bytes": 0, "bound": 1, "refused": []}


def executor_of(config: ModelConfig, steps: int = 0, **graphs: Any) -> GraphExecutor:
    two = smaller(config)
    settings = ExecutorSettings(
        num_steps=steps, max_requests=3, context_length=96, device=str(DEVICE), kernels=DEVICE_VARIANTS,
        graphs=GraphSettings(**graphs),
    )  # fmt: skip
    executor = build_executor(two, initialise(two, seed=3), settings)
    assert isinstance(executor, GraphExecutor)
    return executor


def tokens(executor: GraphExecutor, counts: tuple[int, ...]) -> list[list[int]]:
    """Of steps of so many of two requests."""
    slots = []
    for seed in (1, 2):
        slots.append(executor.admit(Admission(prompt_of(seed, 5), 24)))
        executor.prefill(slots[-1])
    found: list[list[int]] = [[], []]
    for count in counts:
        for slot, out in executor.decode(slots[:count]).items():
            found[slots.index(slot)] += out.tokens
    return found


@pytest.mark.whole
@pytest.mark.usefixtures("interpreter")
@pytest.mark.skipif(ON_A_CARD, reason="the ledger stands for a card")
def test_an_executor_over_its_bound_gives_the_same_tokens_and_reports_it(small_config: ModelConfig) -> None:
    counts, found, over = (1, 1, 2), [], Ledger([60, 70], still=True)
    for memory in (GraphMemory(), GraphMemory(100, over)):
        executor = executor_of(small_config)
        executor._memory = memory
        found.append(tokens(executor, counts))
    assert found[0] == found[1]
    assert over.dropped == [70]
    seen = executor.executor_report()["graph_memory"]
    assert seen == {"graphs": 1, "bytes": 60, "bound": 100, "refused": ["VerifyStep of 2 x 1"]}


def test_the_bound_is_a_flag_of_replayed_steps() -> None:
    def said(text: str) -> int | None:
        return parse(["--model-path", "somewhere", *text.split()], {}).graph_memory_mib

    assert said("--device cuda") is None
    assert said("--device cuda --graph-memory-mib 512") == 512
    for nonsense in ("0", "-3"):
        with pytest.raises(ConfigError, match=f"--graph-memory-mib {nonsense}: must be at least 1"):
            said(f"--device cuda --graph-memory-mib {nonsense}")
    for eager in ("", "--device cuda --disable-cuda-graph"):
        with pytest.raises(ConfigError, match="--graph-memory-mib 512: only where steps are CUDA graphs"):
            said(f"--graph-memory-mib 512 {eager}")


@pytest.mark.gpu
@pytest.mark.skipif(not ON_A_CARD, reason="needs a CUDA device")
def test_real_recordings_take_memory_and_stop_at_a_bound(small_config: ModelConfig) -> None:
    counts = (1, 1, 1, 2, 2, 2)
    free = executor_of(small_config, 3)
    bounded = executor_of(small_config, 3, memory_mib=1)
    assert tokens(free, counts) == tokens(bounded, counts)
    seen, held = free.executor_report()["graph_memory"], bounded.executor_report()["graph_memory"]
    assert seen["graphs"] == 6, "draft, verify and extend, of one request and of two"
    assert seen["bytes"] > MIB
    assert seen["refused"] == []
    assert held["graphs"] < 6
    assert held["bound"] == MIB
    assert held["refused"]
    torch.cuda.synchronize()
