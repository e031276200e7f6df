"""From composed configurations to plans whose cells cannot be misconfigured any more: checked, with data and identity.

The surprise: this generates data and reads the model's files, yet starts nothing. Whatever is wrong with the last cell
of a sweep is found before the first one runs.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import environment, plan, ruler, workloads
from experiments.audit import cells
from experiments.checks import checked
from experiments.clients.bench_serving import check_installed
from experiments.cluster import spec as cluster
from experiments.composition import convert
from experiments.drawn import check_memory
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError
from experiments.files import once
from experiments.kernels import registered_variants
from gates.change import Change, ChangeError, classify
from gates.evidence import Missing
from gates.golden import GoldenError, Reference, reference
from gates.prompts import gate_prompts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omegaconf import DictConfig

    from experiments.audit.finding import Finding
    from experiments.spec import CellSpec, ClaimSpec, GateSpec, StudySpec

STUDY = r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*"


@dataclass(frozen=True)
class Prepared:
    cell: plan.Cell
    data: workloads.Data
    identity: str
    golden: Reference | Missing
    """What a cell without a baseline is held against."""
    findings: tuple[Finding, ...] = ()
    """What the audit has to say about it."""


@dataclass(frozen=True)
class Plan:
    study: StudySpec
    cells: tuple[Prepared, ...]

    @property
    def directory(self) -> Path:
        return Path(self.study.output_dir).absolute() / self.study.study

    @property
    def identity(self) -> str:
        """Of all cells: two drivers that have it in common are at the same sweep."""
        text = json.dumps([[item.cell.name, item.identity] for item in self.cells])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def prepare(configs: Sequence[DictConfig]) -> Iterator[Plan]:
    """One plan per study, in the order of first appearance. Raises ConfigError."""
    studies: dict[StudySpec, list[CellSpec]] = {}
    for one in map(convert, configs):
        spec = checked(one.cell)
        check_programs(spec, one.study)
        check_memory(spec, one.study)
        studies.setdefault(one.study, []).append(spec)
    for study, specs in studies.items():
        check_study(study)
        cells = plan.expand(specs)
        for candidate in cells[1:]:
            change_between(cells[0].spec, candidate.spec)
        if len(cells) == 1:
            change_between(plain(cells[0].spec), cells[0].spec)
        golden = golden_of(cells[0].spec) if len(cells) == 1 else Missing("no baseline")
        yield Plan(study, tuple(with_data(cell, study, golden) for cell in cells))


def with_data(cell: plan.Cell, study: StudySpec, golden: Reference | Missing) -> Prepared:
    try:
        data = workloads.prepare(cell.spec, Path(study.output_dir) / "data")
    except OSError as error:
        raise ConfigError("output_dir", f"no data can be written there: {error}") from error
    if not cell.spec.calibrates:
        check_prompts(cell.spec.gate, data)
    machine = environment.capture()
    speculation = cell.spec.speculation
    inputs = plan.Inputs(
        commit=environment.source(machine),
        harness=ruler.harness(),
        dataset=data.dataset_sha256,
        task_data=data.task_sha256,
        model=ruler.source_revision(cell.spec.model.path, cell.spec.model.revision),
        draft=speculation.draft_path and ruler.source_revision(speculation.draft_path),
        sts=artifact(speculation.sts_path),
        cost_table=artifact(speculation.cost_table_path),
        hardware=environment.hardware_class(machine),
    )
    findings = () if study.audit == "off" else cells.audit(cell.spec, study.claims)
    return Prepared(cell, data, plan.identity(cell.spec, inputs), golden, findings)


def check_programs(cell: CellSpec, study: StudySpec) -> None:
    """Raises ConfigError where client or server cannot be started here; a dry run starts neither."""
    if not study.dry_run:
        check_command("engine.command", cell.engine.command, cell)
        check_command("calibration.command", cell.calibration.command, cell)
        engine_of(cell).check_installed(cell)
        check_installed()


def check_command(key: str, command: Sequence[str], cell: CellSpec) -> None:
    """Raises ConfigError where its program is not there, as the child will look for it."""
    if command and shutil.which(command[0], path=cell.env.get("PATH")) is None:
        raise ConfigError(key, f"{command[0]!r} is no program on this machine; allowed: a path or a name in PATH")


def artifact(path: str | None) -> str | None:
    """Its hash; where it was allowed to be missing, it is not there for the server either."""
    return ruler.digest([Path(path)]) if path and Path(path).is_file() else None


def check_study(study: StudySpec) -> None:
    if study.retry != "invalid" and not study.resume:
        raise ConfigError("retry", f"{study.retry} is without effect; it says what resume=true takes over")
    if not re.fullmatch(STUDY, study.study):
        raise ConfigError("study", f"{study.study!r} cannot name a directory; allowed: letters, digits and any of _.+-")
    check_claims(study.claims)
    cluster.check(study.launcher)


def check_claims(claims: ClaimSpec) -> None:
    if claims.accept_length is not None and claims.accept_length < 1:
        problem = f"{claims.accept_length:g} tokens a step; allowed: 1 and more, for the bonus token counts"
        raise ConfigError("claims.accept_length", problem)
    if claims.expert_mb is not None and claims.expert_mb <= 0:
        raise ConfigError("claims.expert_mb", f"{claims.expert_mb:g} MB a step; allowed: above 0")


def check_prompts(gate: GateSpec, data: workloads.Data) -> None:
    """The gates would find that out behind launch and benchmark."""
    if problem := too_few(data.dataset, gate.parity_prompts):
        raise ConfigError("gate.parity_prompts", problem)


@once
def too_few(dataset: Path, wanted: int) -> str | None:
    try:
        gate_prompts(wanted, dataset)
    except ValueError as error:
        return str(error)
    return None


def plain(cell: CellSpec) -> CellSpec:
    """What a single cell's declaration speaks of: the cell without the settings that may round."""
    return replace(cell, kernels={}, env={}, engine=replace(cell.engine, flags={}, extra_args=()))


def golden_of(cell: CellSpec) -> Reference | Missing:
    """The golden record of a single cell's model. Raises ConfigError for one that is named and does not fit."""
    try:
        return reference(cell)
    except GoldenError as error:
        raise ConfigError("gate.golden", str(error)) from error
    except ChangeError as error:
        raise ConfigError("change", str(error)) from error


def change_between(baseline: CellSpec, candidate: CellSpec) -> Change:
    """Raises ConfigError for a declaration that contradicts the difference."""
    try:
        return classify(baseline, candidate, registered_variants() if baseline.kernels or candidate.kernels else ())
    except ChangeError as error:
        raise ConfigError("change", str(error)) from error
