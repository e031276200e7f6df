"""Decisions as lines: what changed, what was decided by which rule, and on what evidence.

A change that went through an A/B has a decision on record; a cell of a sweep that was only held against its baseline
has its verdict in its own record, and both are decisions here. The surprise: a ratio says where it comes from. Only
`paired` ones have an interval; those of two cells measured one after the other, or of two printed figures, are
estimates that no verdict has read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import expm1, log
from typing import TYPE_CHECKING, Any, Literal

from analysis.records import reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from analysis.dossier import Filed, Study

    Record = Mapping[str, Any]

DECIDING = {"step_time": "always_valid", "tpot": "always_valid", "accept": "bootstrap"}
"""The interval that a verdict reads, by figure."""
FIGURES = {"step_time": "step_ms", "tpot": "mean_tpot_ms", "accept": "accept_length"}
"""Their names among a cell's metrics and an arm's figures."""


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """log(candidate / baseline); an end is None where the interval is unbounded or there is none."""

    estimate: float
    low: float | None = None
    high: float | None = None
    source: Literal["paired", "unpaired", "published"] = "paired"
    simulated: bool = False
    """Of accept lengths that a server was told."""

    def __str__(self) -> str:
        end = " simulated" * self.simulated
        if self.source != "paired":
            return f"{expm1(self.estimate):+.1%} {self.source}{end}"
        low, high = ("?" if bound is None else f"{expm1(bound):+.1%}" for bound in (self.low, self.high))
        return f"{expm1(self.estimate):+.1%} [{low}, {high}]{end}"


@dataclass(frozen=True, kw_only=True)
class Line:
    study: str
    name: str
    kind: str
    """ab, change, leave_one_out; cell where no A/B was asked for."""
    baseline: str
    change: tuple[str, ...]
    class_: str
    declared: str | None
    hypothesis: str | None
    status: str
    verdict: str | None
    rule: str
    reason: str
    criterion: str | None
    step_time: Ratio | None
    tpot: Ratio | None
    accept: Ratio | None
    mde: float | None
    floor: float | None
    blocks: int | None
    gates: dict[str, str]
    origin: str
    """measured, or where the figures were published."""
    evidence: str
    """The record, seen from the output directory."""

    def to_json(self) -> dict[str, Any]:
        """A ratio of accept lengths is marked where they were simulated, and else as any other."""
        line = {key.rstrip("_"): value for key, value in asdict(self).items()}
        for name in FIGURES:
            if line[name] and not line[name]["simulated"]:
                del line[name]["simulated"]
        return line


def lines(study: Study) -> Iterator[Line]:
    """Decisions in the order in which they were made, then what was judged without any."""
    decided = {filed.record["arms"]["candidate"]["cell"] for filed in study.decisions}
    yield from (line(filed, None) for filed in study.decisions)
    for filed in study.cells:
        if filed.record.get("change") and filed.name not in decided:
            yield line(filed, study.cell(filed.record["baseline"]))


def line(filed: Filed, baseline: Filed | None) -> Line:
    """`baseline`: of a cell without a decision, its baseline's record."""
    record = filed.record
    compared = record.get("comparison") or {}
    criterion = record.get("criterion")
    return Line(
        study=record["study"],
        name=filed.name,
        kind=record.get("kind", "cell"),
        baseline=record["arms"]["baseline"]["cell"] if "arms" in record else record["baseline"],
        change=tuple(record["change"]["parts"]),
        class_=record["change"]["class"],
        declared=record["change"]["reason"] if record["change"]["declared"] else None,
        hypothesis=record.get("hypothesis"),
        status=record["status"],
        verdict=record["verdict"],
        rule=record["rule"],
        reason=reason(dict(record)) or "",
        criterion=criterion,
        **ratios(record, baseline),
        mde=compared[criterion]["mde"] if compared else None,
        floor=(record.get("floor") or {}).get("value"),
        blocks=compared.get("blocks"),
        gates={name: gate["status"] for name, gate in (record.get("gates") or {}).items()},
        origin=record.get("origin", "measured"),
        evidence=filed.shown,
    )


def ratios(record: Record, baseline: Filed | None) -> dict[str, Ratio | None]:
    told = "simulated" in (record.get("accept_source"), (record.get("metrics") or {}).get("accept_source"))
    simulated = {name: told and name == "accept" for name in FIGURES}
    if compared := record.get("comparison"):
        return {name: Ratio(**compared[name][kind], simulated=simulated[name]) for name, kind in DECIDING.items()}
    source: Literal["unpaired", "published"] = "published" if "origin" in record else "unpaired"
    arms = record.get("figures") or {}
    before = arms.get("baseline") or (baseline.record.get("metrics") if baseline else None)
    after = arms.get("candidate") or record.get("metrics")
    if not (before and after) or record["status"] != "valid" or (baseline and baseline.record["status"] != "valid"):
        return dict.fromkeys(FIGURES)
    return {
        name: Ratio(estimate=log(after[key] / before[key]), source=source, simulated=simulated[name])
        for name, key in FIGURES.items()
    }
