"""A search measures what Optuna proposes, within its budget, and finds what is cheapest among what passes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from analysis.__main__ import main as analysis
from analysis.pairs import Answer, pair
from experiments.comparison.figures import by_arm, log_ratio
from experiments.errors import ConfigError
from experiments.search import Search, ordered
from experiments.sweep import Axis, SearchSpec, SweepSpec, axes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from analysis.pairs import Arm
    from tests.experiments.driver import Run

pytest.importorskip("optuna")
DEPTHS = {"depth": list(range(1, 13)), "kernel": ["a", "b", "c"]}
GRID = axes([], SweepSpec(grid=DEPTHS))


def cost(depth: int, kernel: int) -> float:
    """Least, 1, at depth 8 with the second kernel."""
    return 1 + 0.1 * (depth - 7) ** 2 + (kernel != 1)


def searched(spec: SearchSpec, *, rejected: Callable[[str], bool] = lambda _: False) -> tuple[Search, list[str]]:
    names = [f"{depth}{kernel}" for depth in DEPTHS["depth"] for kernel in DEPTHS["kernel"]]
    cells: Any = [SimpleNamespace(cell=SimpleNamespace(name=name)) for name in names]
    search, visited = Search(replace(spec, metric="mean_tpot_ms"), GRID, cells), []
    for item in search:
        name = item.cell.name
        visited.append(name)
        value = cost(int(name[:-1]) - 1, "abc".index(name[-1]))
        verdict = "reject" if rejected(name) else "inconclusive"
        search.tell({"status": "valid", "verdict": verdict, "metrics": {"mean_tpot_ms": value}})
    return search, visited


def told(spec: SearchSpec, *records: dict[str, Any]) -> list[float | None]:
    """What a search makes of these, one after the other."""
    cells: Any = [SimpleNamespace(cell=SimpleNamespace(name=name)) for name in "abcdef"]
    search = Search(spec, [Axis("a", (("a=1",),) * len(cells), ordered=True)], cells)
    for _, record in zip(search, records, strict=False):
        search.tell(record)
    return [*search.known.values()]


def record(step_ms: float, tpot_ms: float, class_: str | None = None, **more: Any) -> dict[str, Any]:
    figures = {"step_ms": step_ms, "mean_tpot_ms": tpot_ms, "median_tpot_ms": 7.0}
    change = class_ and {"class": class_}
    return {"status": "valid", "verdict": "inconclusive", "change": change, "metrics": figures} | more


def test_the_criterion_is_an_ab_s_by_the_class_of_each_cell_s_change() -> None:
    cells = [
        record(9.0, 9.0, None, status="invalid", verdict=None, metrics=None),
        record(8.0, 4.0, None, verdict="baseline"),
        record(4.0, 8.0, "bitwise"),
        record(4.0, 8.0, "speculation"),
        record(16.0, 2.0, "rounding"),
        record(16.0, 2.0, "model"),
    ]
    half, double = math.log(0.5), math.log(2.0)
    assert told(SearchSpec(cells=6), *cells) == [None, 0.0, half, double, double, half]
    assert told(SearchSpec(cells=6, metric="median_tpot_ms"), *cells)[1:] == [7.0] * 5


def test_what_an_ab_measures_and_what_a_search_goes_by_is_one_figure() -> None:
    """On the same answers: the search's ratio of two figures is the point that an A/B's interval is about."""
    slots: list[tuple[Arm, str, int, float]] = [
        ("baseline", "p", 10, 1.0),
        ("baseline", "q", 12, 1.1),
        ("candidate", "p", 8, 0.7),
        ("candidate", "q", 9, 1.3),
    ]
    answers = [
        Answer(arm=arm, block=0, prompt=prompt, tokens=33, steps=steps, decode_s=seconds)
        for arm, prompt, steps, seconds in slots
    ]
    pairs = pair(answers)
    shown = by_arm(pairs)
    for figure in ("step_time", "tpot"):
        above, below = (part.sum(axis=1) for part in pairs.ratio(figure))  # type: ignore[arg-type]
        wanted = math.log(above[1] / below[1]) - math.log(above[0] / below[0])
        assert log_ratio(figure, shown["candidate"], shown["baseline"]) == pytest.approx(wanted)  # type: ignore[arg-type]


def test_it_begins_at_the_first_values_and_measures_no_cell_twice() -> None:
    search, visited = searched(SearchSpec(cells=15))
    assert visited[0] == "1a"
    assert len(visited) == len({*visited}) == 15
    assert search.result()["stopped"] == "budget of 15 cells"


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_better_cells_than_chance_would(seed: int) -> None:
    search, _ = searched(SearchSpec(cells=15, seed=seed))
    assert search.result()["value"] <= 1.5  # 7 of 36 cells are as good


def test_a_rejected_cell_is_never_the_best() -> None:
    search, visited = searched(SearchSpec(cells=30), rejected=lambda name: name.endswith("b"))
    assert any(name.endswith("b") for name in visited)
    assert not search.result()["best"].endswith("b")
    assert search.result()["value"] >= 2


def test_where_nothing_passes_there_is_no_best() -> None:
    search, _ = searched(SearchSpec(cells=4), rejected=lambda _: True)
    assert (search.result()["best"], search.result()["measured"]) == (None, 4)


def test_a_budget_beyond_all_cells_measures_all_once() -> None:
    search, visited = searched(SearchSpec(cells=1000))
    assert len(visited) == len({*visited}) == 36
    assert search.result()["stopped"] == "every cell measured"
    assert search.result()["best"] == "8b"


def test_a_budget_of_time_ends_after_the_cell_that_passed_it() -> None:
    search, visited = searched(SearchSpec(cells=30, seconds=1e-9))
    assert len(visited) == 1
    assert "1e-09 s" in search.result()["stopped"]


def configs(search: Mapping[str, Any], grid: Mapping[str, Any]) -> Any:
    from omegaconf import OmegaConf  # noqa: PLC0415

    usual = {"cells": 0, "seconds": None, "metric": "mean_tpot_ms", "seed": 1}
    return [OmegaConf.create({"cells": [], "sweep": {"grid": grid, "zip": {}}, "search": usual | dict(search)})]


@dataclass
class Planned:
    cells: tuple[int, ...]


@pytest.mark.parametrize(
    ("search", "grid", "cells", "words"),
    [
        ({"cells": -1}, {"a": [1, 2]}, 2, "search.cells: -1 is too small"),
        ({"seconds": float("nan")}, {"a": [1, 2]}, 2, "search.seconds: nan is no quantity"),
        ({"cells": 2, "seconds": 0}, {"a": [1, 2]}, 2, "no budget"),
        ({"cells": 2}, {}, 1, "nothing to choose from"),
        ({"cells": 2}, {"a": [1, 2]}, 4, "multiplied by -m"),
        ({"cells": 2, "metric": "speed"}, {"a": [1, 2]}, 2, "search.metric: 'speed' is not one of"),
    ],
)
def test_what_is_no_search_is_refused(search: Any, grid: Any, cells: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ordered(configs(search, grid), [Planned(tuple(range(cells)))])  # type: ignore[list-item]


def test_without_a_budget_there_is_no_search_and_without_optuna_it_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: Any = [Planned((1, 2))]
    assert ordered(configs({}, {"a": [1, 2]}), plans) is None
    assert isinstance(ordered(configs({"cells": 1}, {"a": [1, 2]}), plans), Search)
    monkeypatch.setattr("experiments.search.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install 'ling-bench\[search\]'"):
        ordered(configs({"cells": 1}, {"a": [1, 2]}), plans)


def test_a_point_finds_its_cell() -> None:
    search = Search(SearchSpec(cells=1), [Axis("a", (("a=1",),) * 3, True), Axis("b", (("b=1",),) * 4, True)], [])
    assert [search.index((a, b)) for a in range(3) for b in range(4)] == [*range(12)]


@pytest.mark.process
def test_run_py_searches_and_says_what_it_found(run_py: Callable[..., Run]) -> None:
    run = run_py("experiment=search", "search.cells=3")
    assert run.code == 0, run.err
    found, cells = run.line["search"], run.line["cells"]
    assert (found["measured"], found["of"], found["stopped"]) == (3, 14, "budget of 3 cells")
    assert len(cells) == 3
    assert cells[0]["name"] == "nextn-1-2_moe_align=reference"
    assert cells[0]["verdict"] == "baseline"
    records = [json.loads(Path(cell["record"]).read_text()) for cell in cells]
    values = {one["name"]: ratio(one, records[0]) for one in records}
    best = min(values, key=values.__getitem__)
    assert (found["metric"], found["best"], found["value"]) == ("criterion", best, values[best])


def ratio(record: dict[str, Any], baseline: dict[str, Any]) -> float:
    """Written out: speculation goes by mean TPOT, a kernel variant by step time."""
    key = "mean_tpot_ms" if (record["change"] or {}).get("class") == "speculation" else "step_ms"
    return math.log(record["metrics"][key] / baseline["metrics"][key])


@pytest.mark.process
def test_a_search_that_its_seconds_ended_is_finished_also_where_it_is_filed_later(
    run_py: Callable[..., Run], tmp_path: Path, blank_store: Callable[[Path], Path]
) -> None:
    """It was to measure six cells when it began, and its records say so."""
    from mlflow.tracking import MlflowClient  # noqa: PLC0415 - seconds of imports

    (tmp_path / "out").mkdir()
    databases = blank_store(tmp_path / "out/mlflow.db"), blank_store(tmp_path / "later.db")
    run = run_py("experiment=search", "search.seconds=0.1", "gate=off", "tracking=mlflow")
    assert (run.code, run.line["search"]["measured"]) == (0, 1), run.err
    assert run.record()["invocation"]["cells"] == 6
    assert analysis(["sync", str(tmp_path / "out"), "--uri", f"sqlite:///{databases[1]}"]) == 0
    for database in databases:
        client = MlflowClient(f"sqlite:///{database}")
        runs = client.search_runs([client.get_experiment_by_name("search").experiment_id])
        assert [one.info.status for one in runs] == ["FINISHED"] * 2
    (kept,) = (tmp_path / "out/search").glob("search-*.json")
    content = json.loads(kept.read_text())
    assert content["invocation"]["cells"] == 1
    assert {key: content[key] for key in run.line["search"]} == run.line["search"]
