from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from simulated import QUIET, Servers

from analysis.floor import Floor
from experiments.comparison import floors
from experiments.comparison.runner import prepared
from experiments.comparison.spec import ABSpec
from experiments.spec import StudySpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from experiments.preparation import Prepared
    from experiments.spec import CellSpec

SETTINGS = ABSpec(prompts=2, floor_runs=3, floor_blocks=8)


class Launches:
    """Opens fresh simulated servers, and remembers how often."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    @contextlib.contextmanager
    def __call__(self, directory: Path) -> Iterator[Any]:
        assert directory.is_dir()
        self.seeds.append(len(self.seeds))
        yield Servers(QUIET, seed=self.seeds[-1])


@pytest.fixture
def item(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Prepared:
    cell = make_cell()
    study = StudySpec(study="s", output_dir=str(tmp_path))
    return prepared("base", cell, study, base=cell, declared=None)


def measured(item: Prepared, output: Path, settings: ABSpec = SETTINGS) -> tuple[float, int, list[str]]:
    launches, said = Launches(), []
    found = floors.floor(output, item, settings, launches, said.append)
    return found.value, len(launches.seeds), said


def test_it_is_measured_once_with_fresh_servers_for_each_run_and_then_read(item: Prepared, tmp_path: Path) -> None:
    value, launches, said = measured(item, tmp_path)
    assert launches == 3
    assert "no A/A floor was measured here" in said[0]
    assert measured(item, tmp_path) == (value, 0, [])
    (file,) = tmp_path.glob("floors/*/floor.json")
    ratios = json.loads(file.read_text())["log_ratios"]
    assert len(set(ratios)) == 3
    assert value > max(abs(math.expm1(ratio)) for ratio in ratios), "a prediction, not an average"
    answers = [*file.parent.glob("answers-*.jsonl")]
    assert len(answers) == 3
    assert len(answers[0].read_text().splitlines()) == 8 * 4 * 2


def test_one_that_is_too_old_is_refused_and_measured_anew(item: Prepared, tmp_path: Path) -> None:
    measured(item, tmp_path)
    (file,) = tmp_path.glob("floors/*/floor.json")
    old = json.loads(file.read_text()) | {"measured_utc": (dt.datetime.now(dt.UTC) - dt.timedelta(days=8)).isoformat()}
    file.write_text(json.dumps(old))
    _, launches, said = measured(item, tmp_path)
    assert launches == 3
    assert "8 days old" in said[0]


def test_one_of_another_machine_under_this_name_is_refused(item: Prepared, tmp_path: Path) -> None:
    measured(item, tmp_path)
    (file,) = tmp_path.glob("floors/*/floor.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"identity": "another"}))
    _, launches, said = measured(item, tmp_path)
    assert launches == 3
    assert "another machine, model, workload or harness" in said[0]


def test_what_it_holds_for_is_machine_model_and_workload_and_no_build(item: Prepared) -> None:
    def identity(cell: CellSpec, settings: ABSpec = SETTINGS) -> str:
        return floors.floor_identity(replace(item, cell=replace(item.cell, spec=cell)), settings)

    cell = item.cell.spec
    known = identity(cell)
    assert known == identity(replace(cell, engine=replace(cell.engine, command=("another", "build"))))
    assert known == identity(cell, replace(SETTINGS, budget_s=1.0, floor_days=1.0))
    assert known != identity(replace(cell, workload=replace(cell.workload, output_len=17)))
    assert known != identity(replace(cell, engine=replace(cell.engine, dtype="bfloat16")))
    assert known != identity(cell, replace(SETTINGS, floor_blocks=9))


def test_one_that_was_measured_in_company_says_so(item: Prepared, tmp_path: Path) -> None:
    measured(item, tmp_path)
    (file,) = tmp_path.glob("floors/*/floor.json")
    known = Floor.from_json(json.loads(file.read_text()))
    assert known.foreign_cores is not None
    assert floors.remark(replace(known, foreign_cores=0.02)) is None
    said = floors.remark(replace(known, foreign_cores=0.8))
    assert said
    assert "0.80 cores" in said
    assert str(file.relative_to(tmp_path)) in said
