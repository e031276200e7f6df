"""Records made by hand, of a small campaign: what one was kept, what was not, and one that broke."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "host": "bench-1",
    "cpu": "Some CPU",
    "cores": 2,
    "python": "3.11.7",
    "hardware": "Some CPU x 2",
    "git_commit": "c0ffee",
    "git_dirty": False,
    "packages": {"torch": "2.13.0"},
}
LOAD = {"load_average": [0.5, 0.4, 0.3], "foreign_cores": 0.02, "gpus": [], "telemetry": None}
STAMP = "2026-01-02T03:04:0{}+00:00"


def gate(status: str, reason: str = "because") -> dict[str, Any]:
    return {"status": status, "required": True, "reason": reason, "evidence": {}}


def cell(name: str, tpot: float, accept: float = 3.7, rows: float = 4.0, **changes: Any) -> dict[str, Any]:
    metrics = {
        "accept_length": accept,
        "accept_source": "measured",
        "accept_length_request_mean": accept + 0.01,
        "verified_rows_per_step": rows,
        "accept_by_position": [0.95, 0.9, 0.85],
        "mean_tpot_ms": tpot,
        "median_tpot_ms": tpot - 0.125,
        "step_ms": tpot * accept,
        "mean_ttft_ms": 80.5,
        "median_ttft_ms": 79.0,
        "output_tok_s": 1000 / tpot,
        "peak_tok_s": 1100 / tpot,
    }
    base = {
        "schema": 1,
        "name": name,
        "study": "tuning",
        "attempt": 1,
        "identity": "abc",
        "status": "valid",
        "failure": None,
        "role": "candidate",
        "baseline": "base",
        "verdict": "inconclusive",
        "rule": "no_ab",
        "reason": "gates passed, no A/B",
        "change": {"class": "same", "parts": [f"env.{name}: None -> 1"], "declared": None, "reason": None},
        "axes": {f"env.{name}": "1"},
        "metrics": metrics,
        "task": {"name": "gsm8k", "accuracy": 0.941234, "questions": 500},
        "gates": {"byte_parity": gate("pass")},
        "activation": {"ok": True, "expected": {}, "observed": {}, "reason": None},
        "ruler": {"harness": "h", "dataset": "d", "prompt_order": "o", "load": "64 tokens a request, 1 at once"},
        "flags": [],
        "environment": ENVIRONMENT | {"load": LOAD},
        "started_utc": STAMP.format(1),
        "ended_utc": STAMP.format(2),
    }
    return base | changes


def interval(estimate: float, half: float | None = 0.01) -> dict[str, float | None]:
    ends = (None, None) if half is None else (estimate - half, estimate + half)
    return {"estimate": estimate, "low": ends[0], "high": ends[1]}


def decision(name: str, step: float, verdict: str | None, rule: str, **changes: Any) -> dict[str, Any]:
    figures = {
        figure: {"always_valid": interval(value), "bootstrap": interval(value, 0.008), "mde": 0.012}
        for figure, value in (("step_time", step), ("tpot", step + 0.001), ("accept", 0.0005))
    }
    base = {
        "schema": 1,
        "kind": "change",
        "name": name,
        "study": "tuning",
        "attempt": 1,
        "status": "valid" if verdict else "invalid",
        "failure": None,
        "verdict": verdict,
        "rule": rule,
        "reason": f"{rule}: as the interval says",
        "hypothesis": f"{name} saves a launch",
        "overrides": [f"+env.{name}=1"],
        "change": {"class": "same", "parts": [f"env.{name}: None -> 1"], "declared": None, "reason": None},
        "arms": {"baseline": {"cell": "base"}, "candidate": {"cell": name}},
        "gates": {"byte_parity": gate("pass"), "accept_drift": gate("pass")},
        "criterion": "step_time",
        "comparison": {"blocks": 16, "cells": 64, **figures},
        "figures": None,
        "floor": {"value": 0.0123},
        "flags": [],
        "environment": ENVIRONMENT,
        "started_utc": STAMP.format(3),
        "ended_utc": STAMP.format(4),
    }
    return base | changes


BASE = cell(
    "base", 2.640123456789, role="baseline", baseline=None, verdict="baseline", rule="no_baseline", change=None,
    reason="nothing to compare with",
)  # fmt: skip
BROKEN = cell(
    "broken",
    1.0,
    status="invalid",
    verdict=None,
    rule="infrastructure",
    metrics=None,
    task=None,
    gates={},
    failure={"class": "launch", "phase": "launch", "message": "exit code 7", "log_tail": "no <memory> & no hope"},
)
CELLS = (BASE, cell("overlap", 2.2 + 1 / 3, rows=5.0), cell("pinned", 2.7), cell("loud", 2.6), BROKEN)
DECISIONS = (
    decision("overlap", -0.12, "keep", "faster"),
    decision("pinned", 0.04, "reject", "slower", started_utc=STAMP.format(5)),
    decision("loud", 0.001, "inconclusive", "interval", started_utc=STAMP.format(7)),
)
CAMPAIGN = {
    "schema": 1,
    "study": "tuning",
    "changes": [
        *({"name": one["name"], "verdict": one["verdict"], "status": "valid", "record": "there"} for one in DECISIONS),
        {"name": "again", "verdict": None, "status": "skipped", "rule": "no_difference",
         "reason": "overlap has it already", "record": None},
    ],
    "kept": ["overlap"],
    "leave_one_out": [
        {"name": "without-overlap", "criterion": "step_time", "then": interval(-0.12), "now": interval(-0.03),
         "interaction": 0.09, "named": "gains 9.4% less among the others than when it came in", "reason": "r"},
    ],
    "best": {"cell": "overlap", "record": "overlap/attempt-1"},
}  # fmt: skip


def write(directory: Path, *records: dict[str, Any], campaign: dict[str, Any] | None = None) -> Path:
    """An output directory with these, each with a command to paste."""
    for record in records:
        study = directory / record["study"]
        kind = "kind" in record
        folder = (study / "decisions" if kind else study) / record["name"] / f"attempt-{record['attempt']}"
        folder.mkdir(parents=True)
        (folder / ("decision.json" if kind else "record.json")).write_text(json.dumps(record))
        (folder / "command.txt").write_text(f"env NAME='a b' python -m server --cell {record['name']}\npython client\n")
    if campaign:
        (directory / campaign["study"] / "campaign.json").write_text(json.dumps(campaign))
    return directory
