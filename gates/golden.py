"""A golden record: the evidence of a server that somebody decided to trust, in one file that can be committed.

It names the weights it speaks of by hash, the cell it was taken from and the hardware that computed it. The surprise:
it holds the prompts themselves and not their names, so it stays valid when the built-in set changes, and a server can
be checked with nothing but the file.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from experiments.kernels import registered_variants
from experiments.record import write_atomically
from experiments.ruler import model_revision
from experiments.secrets import masked_tree
from experiments.spec import EngineSpec, SpeculationSpec, TaskSpec  # noqa: TC001 - pydantic reads the annotations
from gates.applicability import TABLE
from gates.change import classify
from gates.evidence import CellEvidence, Missing
from gates.hardware import Hardware  # noqa: TC001 - as above

if TYPE_CHECKING:
    from experiments.spec import CellSpec, ModelSpec
    from gates.change import Change

SCHEMA = 2
DIRECTORY = Path(__file__).parent / "golden"
"""The records that ship: NAME.json for the model of that name."""


class GoldenError(ValueError):
    """A file that is no golden record, or one of another model; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Evidence with a probe, and what it is evidence of."""

    model: str
    revision: str
    hardware: Hardware
    engine: EngineSpec
    speculation: SpeculationSpec
    env: dict[str, str]
    kernels: dict[str, str]
    evidence: CellEvidence
    task: TaskSpec | None = None
    """What `evidence.task` answers; its data are known by hash, not by where they lay."""

    def cell(self, candidate: CellSpec) -> CellSpec:
        """The cell it was taken from, for the class of change.

        The model is the candidate's, since weights are compared by hash. A server that was only attached to, then or
        now, can be any engine.
        """
        known = {self.engine.name, candidate.engine.name} - {"attach"}
        engine = self.engine if len(known) > 1 else replace(self.engine, name=candidate.engine.name)
        return replace(candidate, engine=engine, speculation=self.speculation, env=self.env, kernels=self.kernels)


@dataclass(frozen=True)
class Reference:
    """A golden record of a cell's very weights, and how the cell differs from the one it was taken from."""

    golden: Golden
    change: Change


def taken(spec: CellSpec, hardware: Hardware, evidence: CellEvidence) -> Golden:
    """Pollution stays out: it is judged within an arm.

    So do a draft's files: which one it was does not matter to the bytes, and against a record of blocks of drafts every
    cell is a change of speculation.
    """
    assert evidence.probe is not None, "a server without answers is no golden record"
    return Golden(
        model=spec.model.name,
        revision=revision_of(spec.model),
        hardware=hardware,
        engine=replace(spec.engine, command=(), reported={}),
        speculation=replace(spec.speculation, draft_path=None, sts_path=None, cost_table_path=None),
        env=spec.env,
        kernels=spec.kernels,
        evidence=CellEvidence(probe=evidence.probe, task=evidence.task),
        task=replace(spec.task, data_path=None, shots_path=None) if evidence.task else None,
    )


def check_writable(path: Path) -> None:
    """Raises GoldenError where `write` could not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise GoldenError(f"{path}: no record can be written there ({error.strerror})") from error
    if path.is_dir():
        raise GoldenError(f"{path}: a directory; a record is one file")


def write(path: Path, golden: Golden) -> None:
    content = masked_tree({"schema": SCHEMA, **asdict(golden)})
    write_atomically(path, json.dumps(content, separators=(",", ":")) + "\n")


def read(path: Path) -> Golden:
    """Raises GoldenError."""
    try:
        data = json.loads(path.read_text())
        schema = data.pop("schema")
        golden = _ADAPTER.validate_python(data) if schema == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GoldenError(f"{path}: not a golden record ({error})") from error
    if golden is None or golden.evidence.probe is None:
        raise GoldenError(f"{path}: schema {schema} (this program reads {SCHEMA}), or no probe")
    return golden


def reference(cell: CellSpec) -> Reference | Missing:
    """The record that `gate.golden` names, or the one that ships for the model's name, if it speaks of this cell.

    Raises GoldenError for a named file that is no record or does not fit, ChangeError as `classify` does.
    """
    file = file_of(cell)
    if cell.gate.mode == "off" or not (cell.gate.golden or file.exists()):
        return Missing("no baseline")
    golden = read(file)
    before = golden.cell(cell)
    variants = registered_variants() if before.kernels or cell.kernels else ()
    change = classify(before, cell, variants)
    problem = misfit(golden, cell, change)
    if not problem:
        return Reference(golden, change)
    if cell.gate.golden:
        raise GoldenError(f"{file}: {problem}")
    return Missing(f"no baseline; the golden record {problem}")


def file_of(cell: CellSpec) -> Path:
    return Path(cell.gate.golden) if cell.gate.golden else DIRECTORY / f"{cell.model.name}.json"


def asking(cell: CellSpec, found: Reference) -> CellSpec:
    """The cell with the record's task, where its class of change is held to one and it names none itself."""
    task, wanted = found.golden.task, TABLE["task_score"][found.change.class_] == "required"
    if cell.task.name != "none" or task is None or not wanted:
        return cell
    return replace(cell, task=replace(task, data_path=cell.task.data_path, shots_path=cell.task.shots_path))


def misfit(golden: Golden, cell: CellSpec, change: Change) -> str | None:
    """Why a record says nothing about a cell; None if it does."""
    if cell.model.weights == "drawn":
        return "is of a checkpoint's weights, and this model's are drawn (model.weights)"
    revision = revision_of(cell.model)
    if golden.revision != revision:
        return f"is of other weights: {golden.revision}, not {revision}"
    return f"is of another model: {'; '.join(change.parts)}" if change.class_ == "model" else None


def revision_of(model: ModelSpec) -> str:
    """Hash of a checkpoint directory and of a tokenizer elsewhere; for what is no directory here, its name."""
    parts = dict.fromkeys([model.path, model.tokenizer_path or model.path])
    return "+".join(model_revision(Path(part)) if Path(part).is_dir() else part for part in parts)


_ADAPTER = TypeAdapter(Golden)
