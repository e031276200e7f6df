"""One attempt at one cell, from its directory to its record.

The surprise: what a cell's record says before the cell has ended is that it is invalid; only `conclusion` makes it
anything else (attempt.py writes it whatever happens).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from experiments import environment, secrets
from experiments.attempt import recorded
from experiments.calibration import calibrate
from experiments.failure import unfinished
from experiments.lock import measurement_lock
from experiments.measurement import measure_cell
from experiments.record import FILE, SCHEMA, now, number, write_atomically, write_json
from gates.golden import Reference
from gates.verdict import Verdict, decide

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.audit.finding import Finding
    from experiments.findings import Findings
    from experiments.machine import Cores
    from experiments.measurement import Baseline
    from experiments.plan import Cell, Invocation
    from experiments.progress import Stages
    from experiments.workloads import Data
    from gates.evidence import Missing


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What a record says of a cell before anything is started."""

    cell: Cell
    study: str
    invocation: Invocation
    identity: str
    directory: Path
    baseline: Baseline | None
    findings: tuple[Finding, ...] = ()
    """Of the audit before launch."""


@dataclass(frozen=True, kw_only=True)
class Attempt(Entry):
    """A cell with all that its study gives it."""

    data: Data
    cores: Cores
    lock: str | None
    golden: Reference | Missing


def run(attempt: Attempt, stages: Stages) -> None:
    """Leaves a record in the attempt's directory. Raises Interrupted and StorageError only."""
    recorded(attempt.directory / FILE, opening(attempt), lambda: work(attempt, stages), stages)


def work(attempt: Attempt, stages: Stages) -> dict[str, Any]:
    spec = secrets.masked_tree(asdict(attempt.cell.spec))
    write_atomically(attempt.directory / "spec.yaml", OmegaConf.to_yaml(spec))
    write_json(attempt.directory / "environment.json", environment.capture() | {"cores": asdict(attempt.cores)})
    return locked(attempt, stages)


def locked(attempt: Attempt, stages: Stages) -> dict[str, Any]:
    """What the cell's work changes in its record. Raises CellError."""
    stages.enter("wait for the machine")
    with measurement_lock(attempt.lock, stages.say):
        spec, data, directory, cores = attempt.cell.spec, attempt.data, attempt.directory, attempt.cores
        if spec.calibrates:
            return calibrate(spec, data.dataset, directory, cores.server, stages)
        findings = measure_cell(spec, data, directory, cores, attempt.baseline, attempt.golden, stages)
    write_json(attempt.directory / "gate.json", findings.evidence.to_json())
    return conclusion(attempt, findings)


def opening(attempt: Entry) -> dict[str, Any]:
    """The record of a cell that has not ended: invalid, and all that is known before it starts."""
    baseline = attempt.baseline
    return {
        "schema": SCHEMA,
        "name": attempt.cell.name,
        "study": attempt.study,
        "attempt": number(attempt.directory),
        "invocation": asdict(attempt.invocation),
        "identity": attempt.identity,
        "status": "invalid",
        "failure": unfinished(),
        "role": role(attempt),
        "baseline": baseline.name if baseline else None,
        "baseline_identity": baseline.identity if baseline else None,
        "verdict": None,
        "rule": "infrastructure",
        "reason": "unfinished",
        "change": change(baseline),
        "axes": attempt.cell.axes,
        "metrics": None,
        "task": None,
        "gates": {},
        "activation": None,
        "ruler": None,
        "flags": [],
        "findings": [finding.to_json() for finding in attempt.findings],
        "environment": environment.summary(environment.capture()),
        "started_utc": now(),
        "ended_utc": None,
        "duration_s": None,
        "stages": {},
    }


def role(attempt: Entry) -> str:
    if attempt.cell.spec.calibrates:
        return "calibration"
    return "candidate" if attempt.baseline else "baseline"


def change(baseline: Baseline | None) -> dict[str, Any] | None:
    if baseline is None:
        return None
    declared = baseline.change
    return {
        "class": declared.class_,
        "parts": list(declared.parts),
        "declared": declared.declared,
        "reason": declared.reason,
    }


def conclusion(attempt: Attempt, findings: Findings) -> dict[str, Any]:
    """What a measured cell changes in its record: figures, gates, verdict."""
    declared = attempt.baseline.change if attempt.baseline else None
    golden = attempt.golden.golden.model if isinstance(attempt.golden, Reference) else None
    verdict: Verdict = decide(declared, findings.gates, faults=findings.faults, golden=golden)
    return asdict(verdict) | {
        "failure": None,
        "metrics": asdict(findings.metrics),
        "task": asdict(findings.score) if findings.score else None,
        "gates": {gate.name: gate_entry(asdict(gate)) for gate in findings.gates},
        "activation": findings.activation,
        "ruler": asdict(findings.ruler),
        "flags": list(findings.flags),
        "environment": environment.summary(environment.capture()) | {"load": findings.load},
    }


def gate_entry(gate: dict[str, Any]) -> dict[str, Any]:
    return {key: gate[key] for key in ("status", "required", "reason", "evidence")}
