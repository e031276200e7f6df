"""One A/B, from two cells whose gates have spoken to a decision on record: floor, blocks, verdict.

The order is the point. A candidate that is invalid or fails a gate never costs a block; the floor is known before any
difference is looked at; and the verdict is gates/verdict.py's, from what is on record. The surprise: the two arms are
launched anew here, after their cells, because a server that has been through gates and a task is another server than
one that has only warmed up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from analysis.ab import compare
from analysis.floor import over
from experiments import ruler, telemetry
from experiments.attempt import recorded
from experiments.comparison import figures, floors, timing
from experiments.comparison.arms import Arms
from experiments.comparison.decision import Question, concluded, gates, opening
from experiments.comparison.load import block_harness
from experiments.comparison.requests import digest, requests
from experiments.comparison.timing import Rules
from experiments.findings import FOREIGN_LOAD, accept_source
from experiments.gpu import gpus
from experiments.lock import measurement_lock
from experiments.machine import LoadMeter, load_average
from experiments.record import DECISION, DECISIONS, new_attempt, read, write_text
from experiments.study import pinned
from experiments.telemetry import Telemetry
from gates.speed import Expectation, criterion, judge, source
from gates.validity import Fault
from gates.verdict import Verdict, decide

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from analysis.ab import ABResult
    from analysis.floor import Floor
    from analysis.pairs import Answer, Arm
    from experiments.comparison.spec import ABSpec
    from experiments.comparison.timing import Timed
    from experiments.machine import Cores
    from experiments.plan import Invocation
    from experiments.preparation import Plan, Prepared
    from experiments.progress import Stages

    Cells = dict[str, Path]
    """The arms' attempts."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Where decisions are made: what all of a run have in common."""

    plan: Plan
    settings: ABSpec
    invocation: Invocation
    stages: Stages
    floor_cell: Prepared
    """Both arms of an A/A."""

    @property
    def output(self) -> Path:
        return self.plan.directory.parent


def run(question: Question, cells: Cells, bench: Bench) -> Path:
    """The attempt with the decision's record. Raises Interrupted and StorageError only."""
    directory = new_attempt(bench.plan.directory / DECISIONS / question.name)
    opened = opening(
        question,
        bench.settings,
        directory=directory,
        study=bench.plan.study.study,
        invocation=bench.invocation,
        records={arm: str(attempt.relative_to(bench.plan.directory)) for arm, attempt in cells.items()},
    )
    recorded(directory / DECISION, opened, lambda: settle(question, cells, bench, directory), bench.stages)
    return directory


def settle(question: Question, cells: Cells, bench: Bench, directory: Path) -> dict[str, Any]:
    """What the decision changes in its record. Raises CellError."""
    candidate = read(cells["candidate"]) if "candidate" in cells else None
    if candidate and (early := spoken(candidate)):
        return concluded(early, candidate)
    bench.stages.enter("wait for the machine")
    with measurement_lock(bench.plan.study.machine.lock, bench.stages.say):
        cores = pinned(bench.plan.study.machine, question.baseline.cell.spec)
        known = find_floor(bench, cores)
        bench.stages.enter("blocks")
        before, meter = load_average(), LoadMeter()
        arms = servers(question.baseline, question.candidate, directory, bench, cores)
        watch = Telemetry(directory, cores.client)
        with arms, watch:
            timed = blocks(question, arms, known, bench, directory)
        load = {"load_average": before, "foreign_cores": round(meter.foreign_cores(), 3), "gpus": gpus()}
        load["telemetry"] = watch.seen
    return conclusion(question, candidate, known, timed, arms, bench) | {"load": load} | remarks(candidate, known, load)


def spoken(candidate: dict[str, Any]) -> Verdict | None:
    """What is decided without a block: the candidate's cell is invalid, or a gate has rejected it."""
    if candidate["status"] == "valid" and candidate["verdict"] != "reject":
        return None
    return Verdict.of(candidate)


def find_floor(bench: Bench, cores: Cores) -> Floor:
    bench.stages.enter("floor")
    item = bench.floor_cell

    def open_arms(directory: Path) -> Arms:
        return servers(item, item, directory, bench, cores)

    return floors.floor(bench.output, item, bench.settings, open_arms, bench.stages.say)


def servers(baseline: Prepared, candidate: Prepared, directory: Path, bench: Bench, cores: Cores) -> Arms:
    return Arms(
        {"baseline": baseline.cell.spec, "candidate": candidate.cell.spec},
        baseline.data,
        directory=directory,
        cores=cores,
        servers=bench.settings.servers,
        start=bench.settings.start,
        say=bench.stages.say,
    )


def blocks(question: Question, arms: Arms, known: Floor, bench: Bench, directory: Path) -> Timed:
    declared, settings = question.declared, bench.settings
    rules = Rules(
        figure=criterion(question.change.class_),
        floor=known.value,
        margin=declared.equal_margin if declared.expect == "equal" else None,
        budget_s=settings.budget_s,
        prompts=settings.prompts,
        seed=settings.seed,
        launch_blocks=settings.launch_blocks,
    )
    write_text(directory / "command.txt", "".join(f"{line}\n" for line in arms.commands.values()))
    asked = requests(question.baseline.cell.spec, question.baseline.data.dataset)
    with (directory / "answers.jsonl").open("w") as out:
        relaunch = arms.relaunch if arms.renewable else None
        return timing.run(arms.slot, asked, rules, told=partial(figures.note, out), relaunch=relaunch)


def conclusion(
    question: Question, candidate: dict[str, Any] | None, known: Floor, timed: Timed, arms: Arms, bench: Bench
) -> dict[str, Any]:
    figure = criterion(question.change.class_)
    compared = compare(timed.pairs, seed=bench.settings.seed)
    floor = over(known.value, timed.launches)
    result = compared.result(figure, floor, same_arms=question.same_arms)
    verdict = judged(question, candidate, [*faults(arms, timed.answers)], result)
    return concluded(verdict, candidate) | {
        "criterion": figure,
        "comparison": compared.to_json(),
        "figures": figures.by_arm(timed.pairs),
        "accept_source": accept_source(question.candidate.cell.spec),
        "effect": source(result),
        "floor": known.to_json() | {"value": floor, "one_launch": known.value},
        "blocks": ran(timed, arms, bench.settings),
        "activation": {arm: seen.to_json() for arm, seen in arms.activation.items()},
        "ruler": {
            "harness": block_harness(),
            "dataset": question.baseline.data.dataset_sha256,
            "prompt_order": digest("\n".join(order(timed.answers, "baseline"))),
            "load": ruler.load(question.baseline.cell.spec.workload),
        },
    }


def judged(question: Question, candidate: dict[str, Any] | None, found: list[Fault], result: ABResult) -> Verdict:
    """Who leaves a change out asks for speed alone: its gates have spoken when it came in."""
    declared = question.declared
    expectation = Expectation(expect=declared.expect, margin=declared.equal_margin)
    if candidate or found:
        given = gates(candidate) if candidate else ()
        return decide(question.change, given, faults=found, ab=result, expectation=expectation)
    speed = judge(question.change.class_, result, expectation)
    return Verdict(status="valid", verdict=speed.verdict, rule=speed.rule, reason=speed.reason)


def faults(arms: Arms, answers: Sequence[Answer]) -> Iterator[Fault]:
    """What speaks against using the blocks at all."""
    for arm, seen in arms.activation.items():
        if seen.faults:
            yield Fault("inactive", f"{arm}: {seen.reason}")
    if order(answers, "baseline") != order(answers, "candidate"):
        yield Fault("ruler", "the arms were asked different prompts")


def order(answers: Sequence[Answer], arm: Arm) -> list[str]:
    return [answer.prompt for answer in answers if answer.arm == arm]


def ran(timed: Timed, arms: Arms, settings: ABSpec) -> dict[str, Any]:
    return {
        "stop": timed.stop,
        "spent_s": round(timed.spent_s, 3),
        "budget_s": settings.budget_s,
        "orders": [*timed.orders],
        "prompts": settings.prompts,
        "seed": settings.seed,
        "together": arms.together,
        "launches": arms.launches,
        "blocks_by_launch": [*timed.launches],
        "room": asdict(arms.room) if arms.room else None,
    }


def remarks(candidate: dict[str, Any] | None, known: Floor, load: dict[str, Any]) -> dict[str, Any]:
    flags = [*(candidate["flags"] if candidate else ()), *filter(None, [floors.remark(known)])]
    if load["foreign_cores"] > FOREIGN_LOAD:
        flags.append(f"other processes used {load['foreign_cores']:.2f} cores during the blocks")
    flags += telemetry.remarks(load["telemetry"])
    return {"flags": flags}
