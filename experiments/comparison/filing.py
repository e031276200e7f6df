"""One decision as MLflow shows it: numbers, tags and files, all from its record. Pure.

The surprise: ratios are filed as the record has them, log(candidate / baseline), so that store and file agree to the
last digit; a difference of one per cent is about 0.01 either way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.pairs import ARMS, FIGURES
from experiments.record import DECISION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FILES = (DECISION, "command.txt", "answers.jsonl")
TAGS = ("name", "kind", "identity", "status", "verdict", "rule", "reason", "attempt", "hypothesis", "expect", "effect")


def metrics(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in _numbers(record) if value is not None}


def tags(record: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: record[key] for key in TAGS} | {"git_commit": record["environment"]["git_commit"]}
    values |= {arm: record["arms"][arm]["cell"] for arm in ARMS} | {"class": record["change"]["class"]}
    values |= {"failure": (record["failure"] or {}).get("class"), "criterion": record["criterion"]}
    values |= {f"gate.{name}": gate["status"] for name, gate in record["gates"].items()}
    return {name: value for name, value in values.items() if value is not None}


def _numbers(record: Mapping[str, Any]) -> Iterator[tuple[str, float | None]]:
    if compared := record["comparison"]:
        for figure in FIGURES:
            for kind in ("always_valid", "bootstrap"):
                for end, value in compared[figure][kind].items():
                    yield f"ab/{figure}/{kind}_{end}", value
            yield f"ab/{figure}/mde", compared[figure]["mde"]
        yield "ab/blocks", compared["blocks"]
        yield "ab/spent_s", record["blocks"]["spent_s"]
        yield "ab/floor", record["floor"]["value"]
    for arm, figures in (record["figures"] or {}).items():
        for name, value in figures.items():
            yield f"{arm}/{name}", value
