"""One record as one run in MLflow: what it says there, and filing it once.

The writers during a study and `python -m analysis sync` after it all go through here, and every value, times included,
comes from the record, so that it makes no difference who filed it. A parent's note and plots come from all records of
its call, when it ends. The surprise: a run is there only when it has ended.
One that was begun and not ended lost its writer, and is replaced.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
from contextlib import nullcontext
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from analysis.dossier import filed, study_of
from analysis.records import reason
from analysis.report.plots import plots
from analysis.report.svg import alone
from experiments import calibration, columns, notes
from experiments.comparison import filing
from experiments.record import DECISION, FILE, SEARCH, record_file
from experiments.sharing import turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

    from analysis.dossier import Study

METRICS = {
    "tpot/mean_ms": "mean_tpot_ms",
    "tpot/median_ms": "median_tpot_ms",
    "step/derived_ms": "step_ms",
    "step/server_ms": "server_step_ms",
    "step/slack_ms": "slack_ms",
    "step/dry_share": "dry_share",
    "spec/accept_length": "accept_length",
    "spec/accept_length_request_mean": "accept_length_request_mean",
    "spec/verified_rows_per_step": "verified_rows_per_step",
    "spec/committed_per_step": "committed_per_step",
    "ttft/mean_ms": "mean_ttft_ms",
    "ttft/median_ms": "median_ttft_ms",
    "throughput/output_tok_s": "output_tok_s",
    "throughput/peak_tok_s": "peak_tok_s",
    "throughput/peak_low_tok_s": "peak_low_tok_s",
    "throughput/peak_high_tok_s": "peak_high_tok_s",
}
SERIES = {"spec/accept_by_position": "accept_by_position"}
CALIBRATION = {
    "calibration/temperature": "temperatures",
    "calibration/ece_before": "ece_before",
    "calibration/ece_after": "ece_after",
    "calibration/conditional_ece_before": "conditional_ece_before",
    "calibration/conditional_ece_after": "conditional_ece_after",
}
TASK_METRICS = ("accuracy", "invalid", "stop_rate", "truncation_rate")
GATE_VALUES = {"pass": 1.0, "fail": 0.0}
"""Other states of a gate are no number and stay in the tags."""

MEASURED = ("spec.yaml", FILE, "command.txt", "bench.jsonl", "requests.jsonl", "task.jsonl")
FILES = (*MEASURED, *calibration.FILES)
TAGS = ("name", "identity", "status", "verdict", "rule", "role", "baseline", "attempt")
KEY = "record_sha256"
PARENT_KEY = "invocation"
PARENT = "mlflow.parentRunId"
LONGEST = 5000
"""Characters of a tag that every store takes."""
PLOTS = "plots"
QUEUE = ".filing.lock"

P = ParamSpec("P")
T = TypeVar("T")


def writing(output: Path) -> AbstractContextManager[object]:
    """One writer at a time of what an output directory holds: two would make a parent twice, or lock each other out."""
    if not os.access(output, os.W_OK):  # nobody measures there, and its records may be filed elsewhere
        return nullcontext()
    return turn(output / QUEUE, waiting=lambda: None)


def one_at_a_time(method: Callable[Concatenate[Shelf, P], T]) -> Callable[Concatenate[Shelf, P], T]:
    @wraps(method)
    def in_turn(shelf: Shelf, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with writing(shelf.directory.parent):
            return method(shelf, *args, **kwargs)

    return in_turn


class Shelf:
    """The runs of one study in an open store; its records are in `directory`."""

    def __init__(self, client: MlflowClient, experiment: str, directory: Path) -> None:
        self._client = client
        self._experiment = experiment
        self.directory = directory

    @one_at_a_time
    def parent(self, study: str, invocation: Mapping[str, Any]) -> str:
        """The run that stands for one call of run.py; made if it is not there."""
        if found := self._search(f"tags.{PARENT_KEY} = '{invocation['id']}'"):
            return str(found[0].info.run_id)
        tags = {PARENT_KEY: invocation["id"], "cells": str(invocation["cells"])}
        start = milliseconds(invocation["started_utc"])
        return str(self._client.create_run(self._experiment, start, tags, study).info.run_id)

    @one_at_a_time
    def file(self, parent: str, attempt: Path) -> bool:
        """The attempt's record below its parent; an A/B's on it. False if it has been there."""
        text = record_file(attempt).read_bytes()
        key, record = hashlib.sha256(text).hexdigest(), json.loads(text)
        if record.get("kind") == "ab":
            if self._client.get_run(parent).data.tags.get(KEY) == key:
                return False
            self._fill(parent, record, attempt, {KEY: key})
            return True
        for run in self._search(f"tags.{KEY} = '{key}'"):
            if run.info.end_time is not None:
                return False
            self._client.delete_run(run.info.run_id)
        begun, ended = (milliseconds(record[stamp] or record["started_utc"]) for stamp in ("started_utc", "ended_utc"))
        created = self._client.create_run(self._experiment, begun, {PARENT: parent, KEY: key}, run_name(record))
        self._fill(created.info.run_id, record, attempt)
        status = "FINISHED" if record["status"] == "valid" else "FAILED"
        self._client.set_terminated(created.info.run_id, status, ended)
        return True

    def lacking(self, parent: str, invocation: Mapping[str, Any], attempts: Iterable[Path]) -> list[Path]:
        """Those of the call's cells whose record is not filed."""
        known = {child.data.tags[KEY] for child in self._children(parent) if child.info.end_time is not None}
        texts = {attempt: (attempt / FILE).read_bytes() for attempt in attempts}
        own = [attempt for attempt, text in texts.items() if json.loads(text)["invocation"]["id"] == invocation["id"]]
        return [attempt for attempt in own if hashlib.sha256(texts[attempt]).hexdigest() not in known]

    @one_at_a_time
    def end(self, parent: str, invocation: Mapping[str, Any]) -> None:
        """Finished if as many cells as were to be measured are there, the last attempt at each of them valid.

        An A/B's decision is no child but the parent's own, and is the last to end.
        """
        children = self._children(parent)
        last = {child.info.run_name: child for child in sorted(children, key=number_of)}
        valid = sum(child.info.status == "FINISHED" for child in last.values())
        ends = [child.info.end_time for child in children if child.info.end_time is not None]
        status = "FINISHED" if valid == len(last) >= wanted(self.directory, invocation) else "FAILED"
        if whole := of_call(self.directory, invocation["id"]):
            ends += [milliseconds(one.record["ended_utc"]) for one in whole.decisions if one.record["ended_utc"]]
            self._show(parent, whole)
            links = {"columns": columns.link(self._experiment)}
            self._client.set_tag(parent, columns.NOTE, notes.of_call(whole, links)[:LONGEST])
        self._client.set_terminated(parent, status, max(ends, default=milliseconds(invocation["started_utc"])))

    def _fill(self, run: str, record: dict[str, Any], attempt: Path, more: Mapping[str, str] | None = None) -> None:
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415 - seconds of imports

        ended, decision = milliseconds(record["ended_utc"] or record["started_utc"]), "kind" in record
        numbers, words = (filing.metrics, filing.tags) if decision else (metrics, tags)
        points = [(name, value, 0) for name, value in numbers(record).items()]
        points += [(name, value, k) for name, row in series(record).items() for k, value in enumerate(row, 1)]
        for name in filing.FILES if decision else FILES:
            if (attempt / name).exists():
                self._client.log_artifact(run, str(attempt / name))
        alone_in_it = study_of(record["study"], [filed(record_file(attempt), attempt.parent)])
        self._show(run, replace(alone_in_it, campaign=None))  # what the campaign came to is for its parent to show
        self._client.log_batch(
            run,
            metrics=[Metric(name, value, ended, step) for name, value, step in points],
            params=[Param(name, str(value)) for name, value in params(record).items()],
            tags=[RunTag(name, str(value)[:LONGEST]) for name, value in {**words(record), **(more or {})}.items()],
        )
        link = {"record": f"#/experiments/{self._experiment}/runs/{run}/artifacts/{record_file(attempt).name}"}
        self._client.set_tag(run, columns.NOTE, notes.of_record(record, link)[:LONGEST])

    def _show(self, run: str, study: Study) -> None:
        for name, plot in plots(study).items():
            self._client.log_text(run, alone(plot), f"{PLOTS}/{name}")

    def _children(self, parent: str) -> list[Run]:
        return self._search(f"tags.`{PARENT}` = '{parent}'")

    def _search(self, query: str) -> list[Run]:
        found: list[Run] = []
        token: str | None = ""
        while token is not None:  # a store gives a thousand at a time
            page = self._client.search_runs([self._experiment], query, page_token=token or None)
            found += page
            token = page.token or None
        return found


def number_of(child: Run) -> int:
    """The attempt's; of a run that was begun and lost its writer, none."""
    return int(child.data.tags.get("attempt", 0))


def of_call(directory: Path, invocation: str) -> Study | None:
    """The records below a study's directory that belong to one call."""
    paths = sorted(path for pattern in (f"*/*/{FILE}", f"*/*/*/{DECISION}") for path in directory.glob(pattern))
    found = [filed(path, directory.parent) for path in paths]
    own = [one for one in found if one.record["invocation"]["id"] == invocation]
    return study_of(directory.name, own) if own else None


def wanted(directory: Path, invocation: Mapping[str, Any]) -> int:
    """Cells that a call was to measure; a search that its budget of seconds ended, fewer than it began with."""
    path = directory / SEARCH.format(invocation["id"])
    if path.exists():
        invocation = json.loads(path.read_text())["invocation"]
    return int(invocation["cells"])


def run_name(record: Mapping[str, Any]) -> str:
    """A decision is often called as its candidate's cell is."""
    name: str = record["name"]
    return f"decision: {name}" if "kind" in record else name


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Slash names and numbers of one record."""
    measured, task = record["metrics"] or {}, record["task"] or {}
    values = {name: measured.get(key) for name, key in METRICS.items()}
    values |= {f"task/{task.get('name')}_{key}": task.get(key) for key in TASK_METRICS}
    values |= {f"gate/{name}": GATE_VALUES.get(gate["status"]) for name, gate in record["gates"].items()}
    return {name: float(value) for name, value in values.items() if value is not None}


def series(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Slash names and numbers by position in a block, 1 first; MLflow draws them over its steps."""
    measured, sts = record.get("metrics") or {}, record.get("calibration", {}).get("sts", {})
    values = {name: measured.get(key) for name, key in SERIES.items()}
    values |= {name: sts.get(key) for name, key in CALIBRATION.items()}
    return {name: row for name, row in values.items() if row}


def params(record: Mapping[str, Any]) -> dict[str, Any]:
    """What varies, and what came of it: MLflow's page that compares runs has no room for tags."""
    return {**record.get("axes", {}), "verdict": record["verdict"] or record["status"]}


def tags(record: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: record[key] for key in TAGS} | {"reason": reason(dict(record))}
    values |= {"git_commit": record["environment"]["git_commit"]}
    values |= {"failure": (record["failure"] or {}).get("class")}
    values |= {"accept_source": (record["metrics"] or {}).get("accept_source")}
    values |= {f"gate.{name}": gate["status"] for name, gate in record["gates"].items()}
    return {name: value for name, value in values.items() if value is not None}


def milliseconds(stamp: str) -> int:
    return int(dt.datetime.fromisoformat(stamp).timestamp() * 1000)
