"""Finished cells in MLflow: one experiment per study, one parent run per plan, one child per cell.

Written from records alone, by this one process. The surprise: a store that fails while a study runs costs a warning and
nothing else, for the record is on disk; one that cannot be opened ends the program before anything starts.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from experiments.errors import ConfigError
from experiments.record import FILE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from mlflow.tracking import MlflowClient

    from experiments.spec import StudySpec

METRICS = {
    "tpot/mean_ms": "mean_tpot_ms",
    "tpot/median_ms": "median_tpot_ms",
    "step/derived_ms": "step_ms",
    "step/server_ms": "server_step_ms",
    "spec/accept_length": "accept_length",
    "spec/accept_length_request_mean": "accept_length_request_mean",
    "ttft/mean_ms": "mean_ttft_ms",
    "ttft/median_ms": "median_ttft_ms",
    "throughput/output_tok_s": "output_tok_s",
    "throughput/peak_tok_s": "peak_tok_s",
}
TASK_METRICS = ("accuracy", "invalid", "stop_rate", "truncation_rate")
GATE_VALUES = {"pass": 1.0, "fail": 0.0}
"""Other states of a gate are no number and stay in the tags."""

FILES = ("spec.yaml", FILE, "command.txt", "bench.jsonl", "requests.jsonl", "task.jsonl")
TAGS = ("name", "identity", "status", "verdict", "rule", "role", "baseline", "attempt")


@contextlib.contextmanager
def reported(state: str) -> Iterator[None]:
    """A failure inside is told on stderr and ends here: tracking never loses a finished cell."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - MLflow's stores fail in many ways
        print(f"tracking failed, {state}: {error}", file=sys.stderr)


class Untracked:
    """Tracking switched off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def log(self, record: dict[str, Any], attempt: Path) -> None:
        pass


class Tracker:
    """An open store and the plan's parent run in it; a context manager that ends that run."""

    def __init__(self, client: MlflowClient, experiment: str, name: str, cells: int) -> None:
        self._client = client
        self._experiment = experiment
        self._name = name
        self._missing = cells
        self._parent: str | None = None

    def __enter__(self) -> Self:
        with reported("the parent run is not there"):
            run = self._client.create_run(self._experiment, run_name=self._name, tags={"cells": str(self._missing)})
            self._parent = run.info.run_id
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parent:
            with reported("the parent run has no end"):
                self._client.set_terminated(self._parent, "FAILED" if self._missing else "FINISHED")

    def log(self, record: dict[str, Any], attempt: Path) -> None:
        """File one record as a child run."""
        with reported(f"{attempt / FILE} is complete"):
            self._log(record, attempt)
            self._missing -= record["status"] == "valid"

    def _log(self, record: dict[str, Any], attempt: Path) -> None:
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415 - a second of imports

        stamp = int(time.time() * 1000)
        tags = {key: record[key] for key in TAGS if record[key] is not None} | gate_tags(record)
        nesting = {"mlflow.parentRunId": self._parent} if self._parent else {}
        run = self._client.create_run(self._experiment, run_name=record["name"], tags=nesting)
        self._client.log_batch(
            run.info.run_id,
            metrics=[Metric(key, value, stamp, 0) for key, value in metrics(record).items()],
            params=[Param(key, str(value)) for key, value in record["axes"].items()],
            tags=[RunTag(key, str(value)) for key, value in tags.items()],
        )
        for name in FILES:
            if (attempt / name).exists():
                self._client.log_artifact(run.info.run_id, str(attempt / name))
        self._client.set_terminated(run.info.run_id, "FINISHED" if record["status"] == "valid" else "FAILED")


def metrics(record: dict[str, Any]) -> dict[str, float]:
    """Slash names and numbers of one record."""
    measured, task = record["metrics"] or {}, record["task"] or {}
    values = {name: measured.get(key) for name, key in METRICS.items()}
    values |= {f"task/{task.get('name')}_{key}": task.get(key) for key in TASK_METRICS}
    values |= {f"gate/{name}": GATE_VALUES.get(gate["status"]) for name, gate in record["gates"].items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def gate_tags(record: dict[str, Any]) -> dict[str, str]:
    source = record["environment"]["git_commit"]
    return {f"gate.{name}": gate["status"] for name, gate in record["gates"].items()} | (
        {"git_commit": source} if source else {}
    )


def open_tracker(study: StudySpec, cells: int) -> Tracker | Untracked:
    """The store, initialised. Raises ConfigError if it cannot be opened."""
    if not study.tracking.enabled:
        return Untracked()
    from mlflow.exceptions import MlflowException  # noqa: PLC0415 - seconds of imports, only where tracking is on
    from mlflow.tracking import MlflowClient  # noqa: PLC0415
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415

    # MLflow's own default is to retry a dead server for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    directory = Path(study.output_dir).absolute()
    uri = study.tracking.uri or f"sqlite:///{directory / 'mlflow.db'}"
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(study.study)
        location = None if study.tracking.uri else (directory / "mlartifacts" / study.study).as_uri()
        experiment = found.experiment_id if found else client.create_experiment(study.study, location)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise ConfigError("tracking.uri", f"{uri} cannot be opened: {error}") from error
    return Tracker(client, experiment, study.study, cells)
