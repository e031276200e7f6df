"""A thousand cells: composed, prepared, listed and compared in seconds, because what they share is done once."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException, HydraException
from omegaconf import OmegaConf

from analysis.__main__ import main as analysis
from experiments import environment, preview, ruler, schema, templates, workloads
from experiments.files import once
from experiments.preparation import prepare
from experiments.sweep import SweepSpec, axes, combinations
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.experiments.driver import Run

CELLS = 1000
DEPTHS = 20
BOUND_S = 60.0
"""Of CPU; measured: 5."""


@pytest.fixture(scope="module")
def hydra() -> Iterator[None]:
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], []),
        (["study=s", "+env.A=1"], ["speculation.num_steps=2", "+env.B='x,y'"]),
        (["speculation=none"], ["speculation=nextn", "speculation.num_steps=5"]),
        (["experiment=depth_sweep"], ["workload=post", "workload.seed=9", "++env.C=null"]),
        (["+env.A=1"], ["~env.A", "task={name:gsm8k}", "engine.command=[a,b]"]),
        ([], ["+experiment=quickstart", "study=t"]),
        (["model.path=/a"], ["hydra.job.name=x", "model.drafts.8=/d"]),
    ],
)
@pytest.mark.usefixtures("hydra")
def test_a_copy_with_values_put_on_is_what_hydra_composes(before: list[str], after: list[str]) -> None:
    def whole(make: Callable[[], Any]) -> Any:
        try:
            return OmegaConf.to_container(make())
        except HydraException as error:
            return type(error), str(error)

    ours = whole(lambda: templates.composed("config", before, after))
    assert ours == whole(lambda: compose("config", [*before, *after]))
    template = templates.template("config", tuple(before))
    assert OmegaConf.to_container(template) == OmegaConf.to_container(compose("config", before)), "nobody's copy"


@pytest.mark.parametrize("wrong", ["speculation.num_stepz=1", "+study=s", "speculation=nope", "~env.Z", "study=a,b"])
@pytest.mark.usefixtures("hydra")
def test_what_hydra_refuses_is_refused_in_its_words(wrong: str) -> None:
    with pytest.raises(ConfigCompositionException) as theirs:
        compose("config", [wrong])
    with pytest.raises(ConfigCompositionException) as ours:
        templates.composed("config", [], [wrong])
    assert str(ours.value) == str(theirs.value)


def test_a_file_is_asked_again_when_it_has_changed(tmp_path: Path) -> None:
    asked = []

    @once
    def length(path: Path, add: int) -> int:
        asked.append(path)
        return len(path.read_text()) + add

    file = tmp_path / "weights"
    file.write_text("abc")
    assert [length(file, 0), length(file, 0), length(file, 1)] == [3, 3, 4]
    file.write_text("abcd")
    assert (length(file, 0), len(asked)) == (4, 3)
    before = ruler.digest([file])
    file.write_text("dcba")
    assert ruler.digest([file]) != before, "of the same length too"


@pytest.mark.whole
@pytest.mark.usefixtures("hydra")
def test_a_thousand_cells_are_prepared_and_listed_once_per_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: Counter[str] = Counter()
    open_, generate, drawn = Path.open, workloads.generate, []

    def counted(self: Path, *args: Any, **options: Any) -> Any:
        opened[self.name] += 1
        return open_(self, *args, **options)

    def noted(*args: Any) -> Any:
        drawn.append(args)
        return generate(*args)

    monkeypatch.setattr(Path, "open", counted)
    monkeypatch.setattr(workloads, "generate", noted)
    workloads.problems.cache_clear()
    grid = {"speculation.num_steps": [*range(1, DEPTHS + 1)], "+env.A": [*range(CELLS // DEPTHS)]}
    given = [f"output_dir={tmp_path}", "study=s", "dry_run=true"]
    composed, captured, begun = templates.template.cache_info(), environment.capture.cache_info(), time.process_time()
    lists = combinations(axes([], SweepSpec(grid=grid)))
    (plan,) = prepare([templates.composed("config", given, cell) for cell in lists])
    assert preview.dry_run([plan]) == 0
    spent = time.process_time() - begun
    assert len({item.identity for item in plan.cells}) == len({item.cell.name for item in plan.cells}) == CELLS
    assert capsys.readouterr().out.count("\nenv ") == 2 * CELLS
    assert templates.template.cache_info().misses - composed.misses == 1, "compositions by Hydra"
    assert environment.capture.cache_info().misses - captured.misses <= 1, "git, packages, GPUs"
    assert opened["model.safetensors"] <= 1, "hashed"
    assert opened[plan.cells[0].data.dataset.name] <= 4, "hashed, counted, asked for prompts"
    assert len(drawn) <= 1, "problems are drawn"
    assert spent < BOUND_S


@pytest.mark.whole
@pytest.mark.process
def test_a_thousand_records_are_compared_in_seconds(quickstart: Run, tmp_path: Path) -> None:
    record = quickstart.record(1)
    for index in range(CELLS):
        directory = tmp_path / f"many/s/nextn-{index}/attempt-1"
        directory.mkdir(parents=True)
        role = {"role": "candidate", "baseline": "nextn-0"} if index else {"role": "baseline", "baseline": None}
        (directory / "record.json").write_text(json.dumps(record | {"study": "s", "name": f"nextn-{index}"} | role))
    begun = time.process_time()
    assert analysis(["compare", str(tmp_path / "many"), "--format", "csv"]) == 0
    assert analysis(["report", str(tmp_path / "many")]) == 0
    assert time.process_time() - begun < BOUND_S
    page = (tmp_path / "many/report.html").read_text()
    assert all(f"nextn-{index}" in page for index in range(CELLS))


@pytest.mark.whole
@pytest.mark.process
@pytest.mark.parametrize("sweeper", ["cells", pytest.param("basic", marks=pytest.mark.slow)])
def test_jobs_are_listed_as_by_hydra_s_own_sweeper(run_py: Callable[..., Run], sweeper: str) -> None:
    """With groups, a fixed key between the axes, and a preset that makes cells of its own in each job."""
    axes = ("speculation=none,nextn", "study=s", "sweep.grid={+env.A:[1,2]}", "workload.seed=range(1,3)")
    shown = run_py("dry_run=true", *axes, f"hydra/sweeper={sweeper}", "-m")
    assert shown.code == 0, shown.err
    names = ["none", "nextn-3-4"]
    assert shown.line["dry_run"] == [f"{name}_seed={k}_A={v}" for name in names for k in (1, 2) for v in (1, 2)]
    (sweep,) = (shown.directory / "out/s/hydra").iterdir()
    jobs = ["0", "1", "2", "3"] if sweeper == "basic" else []
    assert sorted(path.name for path in sweep.iterdir()) == [*jobs, "multirun.yaml"]
