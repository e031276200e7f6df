"""Which columns MLflow shows for a study, and in which order, without anybody having to choose them.

MLflow keeps a shared view of an experiment as a tag on it, and a link with the tag's name opens the table that way. The
surprise: without such a link its table shows source and data set and no number at all, however runs are named; so the
link stands in the experiment's own description and in that of every parent run.
"""

from __future__ import annotations

import json

VIEW = "decisions"
TAG = f"mlflow.sharedViewState.{VIEW}"
NOTE = "mlflow.note.content"
FILTER = "tags.status != ''"
"""Cells and decisions, and not the parents above them."""
ORDER = "attributes.end_time"
"""As they were made. Where runs are sorted by when they began, MLflow folds children away below their parents."""
WIDTHS = {"tags.`reason`": 360}
COLUMNS = {
    "tags": ("verdict", "rule", "reason"),
    "metrics": (
        "spec/accept_length",
        "step/derived_ms",
        "tpot/mean_ms",
        "throughput/output_tok_s",
        "task/gsm8k_accuracy",
        "ab/step_time/always_valid_estimate",
        "ab/tpot/always_valid_estimate",
        "ab/accept/bootstrap_estimate",
    ),
}


def state() -> str:
    """The view, as MLflow's page reads it."""
    chosen = [f"{group}.`{name}`" for group, names in COLUMNS.items() for name in names]
    columns = {"selectedColumns": chosen, "columnOrder": chosen, "columnWidths": WIDTHS}
    return json.dumps({"searchFilter": FILTER, "orderByKey": ORDER, "orderByAsc": True, **columns})


def link(experiment: str) -> str:
    """The table with these columns, on whichever server the page is."""
    return f"#/experiments/{experiment}/runs?viewStateShareKey={VIEW}&compareRunsMode=TABLE"


def note(experiment: str) -> str:
    return f"[Verdict, reason, accept length, step time and accuracy as columns]({link(experiment)})"
