"""Do report, MLflow and records of an output directory say the same? `python -m tests.analysis.agreement OUTPUT_DIR`.

Each figure is looked up in the record by a name written out here and compared for equality, last digit included. The
store is a fresh one, filled by `analysis sync`. Whatever is in one of the three and not in the others is said too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse
from urllib.request import url2pathname

from mlflow.tracking import MlflowClient

from analysis.dossier import studies
from analysis.report.page import page
from analysis.sync import sync

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mlflow.entities import Run

    from analysis.dossier import Filed, Study

ON_PAGE = ("accept_length", "mean_tpot_ms", "median_tpot_ms", "step_ms", "mean_ttft_ms", "output_tok_s")
IN_STORE = {
    "tpot/mean_ms": "mean_tpot_ms",
    "tpot/median_ms": "median_tpot_ms",
    "step/derived_ms": "step_ms",
    "step/server_ms": "server_step_ms",
    "spec/accept_length": "accept_length",
    "ttft/mean_ms": "mean_ttft_ms",
    "throughput/output_tok_s": "output_tok_s",
    "throughput/peak_tok_s": "peak_tok_s",
}
DECIDES = {"step_time": "always_valid", "tpot": "always_valid", "accept": "bootstrap"}
TAGS = ("name", "identity", "status", "verdict", "rule")


class Figures(HTMLParser):
    """Of each decision's card, and of all that is outside of one (under None), the page's figures by name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.card: str | None = None
        self.cards: dict[str | None, dict[str, set[float]]] = {None: {}}
        self.verdicts: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag == "article":
            self.card = values.get("data-decision")
            if self.card is not None:
                self.verdicts[self.card] = values["class"]
        if tag == "data":
            self.cards.setdefault(self.card, {}).setdefault(values["data-of"], set()).add(float(values["value"]))

    def handle_endtag(self, tag: str) -> None:
        if tag == "article":
            self.card = None


def problems(directory: Path, uri: str) -> list[str]:
    """All places where they differ; `uri`: an empty store."""
    found = [text for study in studies(directory) for text in on_page(study)]
    sync(directory, uri)
    return found + [text for study in studies(directory) for text in in_store(study, MlflowClient(uri))]


def on_page(study: Study) -> Iterator[str]:
    seen = Figures(page([study]))
    plain, decided = seen.cards[None], {one.name: one.record for one in study.decisions}
    for cell in study.cells:
        yield from differing(f"page, {cell.name}", cell_figures(cell, study), plain, f"{cell.name}/")
    for name, record in decided.items():
        wanted = decision_figures(record)
        yield from differing(f"page, decision {name}", wanted, seen.cards.get(name, {}), "")
        if (shown := seen.verdicts.get(name)) != (record["verdict"] or record["status"]):
            yield f"page, decision {name}: {shown}, on record {record['verdict']}"


def cell_figures(cell: Filed, study: Study) -> dict[str, float]:
    """With ratios to the baseline, which are on no record and follow from two."""
    record = cell.record
    if record["status"] != "valid" or not record["metrics"]:
        return {}
    figures = {key: record["metrics"][key] for key in ON_PAGE}
    if record["task"]:
        figures["accuracy"] = record["task"]["accuracy"]
    base = study.cell(record["baseline"])
    if base and base.record["status"] == "valid":
        for ratio, key in (("tpot_ratio", "mean_tpot_ms"), ("step_ratio", "step_ms")):
            figures[ratio] = record["metrics"][key] / base.record["metrics"][key]
    return figures


def decision_figures(record: Mapping[str, Any]) -> dict[str, float]:
    compared = record["comparison"]
    if not compared:
        return {}
    figures = {name: compared[name][kind]["estimate"] for name, kind in DECIDES.items()}
    figures |= {"mde": compared[record["criterion"]]["mde"], "floor": record["floor"]["value"]}
    percent = {key: 100 * figures[key] for key in ("mde", "floor") if figures[key] is not None}
    return {key: value for key, value in figures.items() if key in DECIDES} | percent


def differing(where: str, wanted: Mapping[str, float], seen: Mapping[str, set[float]], prefix: str) -> Iterator[str]:
    """Every place of the page that shows a figure shows this one."""
    for key, value in wanted.items():
        shown = seen.get(f"{prefix}{key}", set())
        if shown != {value}:
            yield f"{where}/{key}: {sorted(shown)}, on record {value!r}"


def in_store(study: Study, client: MlflowClient) -> Iterator[str]:
    runs = client.search_runs([client.get_experiment_by_name(study.name).experiment_id], max_results=5000)
    for filed in (*study.cells, *study.decisions):
        record, kind = filed.record, filed.record.get("kind")
        where, wanted = f"MLflow, {kind or 'cell'} {filed.name}", dict(store_figures(record))
        own = [run for run in runs if is_of(run, record)]
        if len(own) != 1:
            yield f"{where}: {len(own)} runs"
            continue
        (run,) = own
        yield from (
            f"{where}/{key}: {run.data.metrics.get(key)!r}, on record {value!r}"
            for key, value in wanted.items()
            if run.data.metrics.get(key) != value
        )
        yield from (
            f"{where}: {key} is {run.data.tags.get(key)!r}, on record {record[key]!r}"
            for key in TAGS
            if record[key] is not None and run.data.tags.get(key) != str(record[key])
        )
        name = "decision.json" if kind else "record.json"
        copy = Path(url2pathname(urlparse(run.info.artifact_uri).path), name)
        if copy.read_bytes() != (filed.directory / name).read_bytes():
            yield f"{where}: {name} is another"


def is_of(run: Run, record: Mapping[str, Any]) -> bool:
    """Cells and decisions of one name are told apart by what only a decision has."""
    tags = run.data.tags
    same = (tags.get("name"), tags.get("attempt")) == (record["name"], str(record["attempt"]))
    return same and tags.get("kind") == record.get("kind")


def store_figures(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    if "kind" not in record:
        measured, task = record["metrics"] or {}, record["task"] or {}
        yield from ((name, measured[key]) for name, key in IN_STORE.items() if measured.get(key) is not None)
        if task:
            yield f"task/{task['name']}_accuracy", task["accuracy"]
        return
    for figure in DECIDES if record["comparison"] else ():
        for kind in ("always_valid", "bootstrap"):
            for end, value in record["comparison"][figure][kind].items():
                if value is not None:
                    yield f"ab/{figure}/{kind}_{end}", value
    for arm, figures in (record["figures"] or {}).items():
        yield from ((f"{arm}/{name}", value) for name, value in figures.items())


def main() -> int:
    directory = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as place:
        found = problems(directory, f"sqlite:///{place}/mlflow.db")
    counts = {one.name: (len(one.cells), len(one.decisions)) for one in studies(directory)}
    print(*found, json.dumps({"studies": counts, "problems": len(found)}), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
