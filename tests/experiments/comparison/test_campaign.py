"""The chain of a campaign, with decisions made by a table in place of servers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.comparison import campaign, ledger
from experiments.comparison.campaign import Campaign, Step
from experiments.comparison.patch import difference
from experiments.comparison.runner import Measured, prepared
from experiments.comparison.spec import Entry
from experiments.plan import Invocation
from experiments.record import DECISION, FILE, new_attempt, write_json
from experiments.spec import SpeculationSpec, StudySpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.comparison.decision import Question
    from experiments.preparation import Prepared
    from experiments.spec import CellSpec

FLOOR = 0.01


@dataclass
class Table:
    """Stands for the runner: a cell is measured by being asked for, a decision by looking up its effect.

    `effects`: log-ratio of step time by change, or by (change, another that is there).
    """

    directory: Path
    base: Prepared
    effects: dict[Any, float]
    rejected: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    decided: list[Path] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def bench(self) -> Any:
        return type("Bench", (), {"floor_cell": self.base})

    @property
    def course(self) -> Any:
        plan = type("Plan", (), {"directory": self.directory})
        invocation = Invocation(id="one", cells=1, started_utc="2026-01-01T00:00:00+00:00")
        return type("Course", (), {"plan": plan, "invocation": invocation})

    def cell(self, item: Prepared, baseline: Measured | None = None) -> Measured:
        self.cells.append(item.cell.name)
        attempt = new_attempt(self.directory / item.cell.name)
        verdict = None if item.cell.name in self.invalid else "inconclusive" if baseline else "baseline"
        write_json(attempt / FILE, {"schema": 1, "name": item.cell.name, "verdict": verdict})
        return Measured(item, attempt)

    def decision(self, question: Question, baseline: Measured | None, candidate: Measured | None) -> Path:
        self.asked.append((question.name, question.baseline.cell.name, question.candidate.cell.name))
        change = question.name.removeprefix("without-")
        others = question.baseline.cell.spec.env
        effect = sum(self.effects.get((change, name), 0.0) for name in others) + self.effects[change]
        verdict = "reject" if change in self.rejected or effect > 0.02 else "keep" if effect < -0.02 else "inconclusive"
        interval = {"estimate": effect, "low": effect - 0.005, "high": effect + 0.005}
        figures = {
            figure: {"always_valid": interval, "bootstrap": interval, "mde": 0.01}
            for figure in ("step_time", "tpot", "accept")
        }
        attempt = new_attempt(self.directory / "decisions" / question.name)
        record = {
            "schema": 1,
            "kind": question.kind,
            "name": question.name,
            "hypothesis": None,
            "status": "valid",
            "verdict": verdict,
            "rule": "table",
            "reason": "as the table says",
            "criterion": "step_time",
            "arms": {
                "baseline": {"cell": question.baseline.cell.name},
                "candidate": {"cell": question.candidate.cell.name},
            },
            "change": {"parts": [*question.change.parts], "class": question.change.class_},
            "comparison": {"blocks": 9, **figures},
            "floor": {"value": FLOOR},
            "blocks": {"stop": "decided"},
        }
        write_json(attempt / DECISION, record)
        self.decided.append(attempt)
        return attempt


@pytest.fixture
def run(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Callable[..., tuple[Table, dict[str, Any]]]:
    """A campaign of switches, NAME=1 in the environment each, unless a changed cell is given."""
    base = make_cell()
    study = StudySpec(study="c", output_dir=str(tmp_path))

    def go(
        *changes: str | tuple[str, CellSpec], says: dict[str, Any] | None = None, **table: Any
    ) -> tuple[Table, dict[str, Any]]:
        directory = tmp_path / "c"
        directory.mkdir()
        steps = []
        for change in changes:
            name, spec = change if isinstance(change, tuple) else (change, replace(base, env={change: "1"}))
            steps.append(
                Step(
                    Entry(name=name, overrides=(f"+env.{name}=1",), **(says or {}).get(name, {})),
                    difference(base, spec),
                )
            )
        runner = Table(directory, prepared("base", base, study, base=base, declared=None), **table)
        Campaign(
            identity="id",
            base=base,
            steps=tuple(steps),
            study=study,
            leave_one_out=True,
            runner=runner,  # type: ignore[arg-type]
        ).run()
        return runner, json.loads((directory / campaign.FILE).read_text())

    return go


def test_each_change_meets_the_best_so_far_and_what_is_kept_stays(run: Callable[..., Any]) -> None:
    table, file = run("A", "B", "C", "D", effects={"A": -0.1, "B": 0.1, "C": 0.0, "D": -0.2})
    assert table.asked[:4] == [("A", "base", "A"), ("B", "A", "B"), ("C", "A", "C"), ("D", "A", "D")]
    assert file["kept"] == ["A", "D"]
    assert [line["verdict"] for line in file["changes"]] == ["keep", "reject", "inconclusive", "keep"]
    assert file["best"]["cell"] == "D"
    assert table.cells == ["base", "A", "B", "C", "D"], "the baseline of a step is never measured again"


def test_a_change_that_a_gate_rejects_is_not_in_the_next_baseline(run: Callable[..., Any]) -> None:
    table, file = run("A", "B", effects={"A": -0.5, "B": -0.1}, rejected=("A",))
    assert (table.asked[1], file["kept"]) == (("B", "base", "B"), ["B"])


def test_leaving_each_out_names_what_depends_on_the_others(run: Callable[..., Any]) -> None:
    """A was worth 10 % when it came in and 1 % beside C."""
    effects = {"A": -0.1, "B": -0.05, "C": -0.2, ("A", "C"): 0.09}
    table, file = run("A", "B", "C", effects=effects)
    assert [name for name, *_ in table.asked] == ["A", "B", "C", "without-A", "without-B"]
    first, second, last = file["leave_one_out"]
    assert (first["then"]["estimate"], round(first["now"]["estimate"], 6)) == (-0.1, -0.01)
    assert first["interaction"] == pytest.approx(0.09)
    assert first["named"] == f"gains {math.expm1(0.09):.1%} less among the others than when it came in"
    assert (second["interaction"], second["named"]) == (0, None)
    assert ledger.told(first).startswith("A is worth step_time -1.0% [-1.5%, -0.5%] in the final stack, -9.5%")
    assert ledger.told(first).endswith(first["named"])
    assert (last["now"], last["interaction"]) == (last["then"], 0), "the last one came into this very stack"


def test_each_is_left_out_under_its_own_declaration(
    run: Callable[..., Any], make_cell: Callable[..., CellSpec]
) -> None:
    """The last one preserves rounding; the first one does not, and never said so of itself."""
    rounds = replace(make_cell(), kernels={"router": "bf16"})
    says = {"rounds": {"rounding": "declared", "reason": "bf16"}, "B": {"rounding": "preserved"}}
    _, file = run(("rounds", rounds), "B", effects={"rounds": -0.1, "B": -0.1}, says=says)
    assert file["kept"] == ["rounds", "B"]
    assert [line["status"] for line in file["leave_one_out"]] == ["valid", "valid"]


def test_a_change_that_does_not_go_with_what_is_kept_is_no_end(
    run: Callable[..., Any], make_cell: Callable[..., CellSpec], checkpoint: Path, draft: Path
) -> None:
    base = make_cell()
    block = replace(
        base, speculation=SpeculationSpec(algorithm="dspark", block_size=4, draft_path=str(draft), verify_mode="static")
    )
    deeper = replace(base, speculation=replace(base.speculation, num_steps=5))
    _, file = run(("block", block), ("deeper", deeper), "A", effects={"block": -0.3, "A": -0.1})
    conflict = file["changes"][1]
    assert (conflict["status"], conflict["rule"], conflict["verdict"]) == ("skipped", "conflict", None)
    assert "speculation.num_steps" in conflict["reason"]
    assert file["kept"] == ["block", "A"]


def test_a_change_that_is_there_already_is_not_measured(
    run: Callable[..., Any], make_cell: Callable[..., CellSpec]
) -> None:
    deeper = replace(make_cell(), env={"A": "1"})
    table, file = run("A", ("again", deeper), "B", effects={"A": -0.1, "B": -0.1})
    assert file["changes"][1]["rule"] == "no_difference"
    assert "again" not in table.cells


def test_a_change_that_a_later_one_replaced_is_worth_nothing_by_itself(
    run: Callable[..., Any], make_cell: Callable[..., CellSpec]
) -> None:
    two = replace(make_cell(), env={"A": "2"})
    _, file = run("A", ("two", two), "B", effects={"A": -0.1, "two": -0.1, "B": -0.1})
    assert file["kept"] == ["A", "two", "B"]
    assert file["leave_one_out"][0]["reason"] == "a later change took its place"


def test_a_base_that_cannot_be_trusted_ends_it(run: Callable[..., Any]) -> None:
    table, file = run("A", effects={"A": -0.1}, invalid=("base",))
    assert (table.asked, table.cells, file["changes"], file["best"]) == ([], ["base"], [], None)


def test_only_the_same_campaign_goes_on_under_its_first_call(run: Callable[..., Any]) -> None:
    table, file = run("A", effects={"A": 0.0})
    begun = campaign.begun(table.directory, "id")
    assert begun is not None
    assert begun.id == file["invocation"]["id"] == "one"
    assert campaign.begun(table.directory, "other") is None
    assert campaign.begun(table.directory / "nowhere", "id") is None
