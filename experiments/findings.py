"""What a measured cell amounts to: its figures, what speaks against using them, and what a reader should know beside.

The surprise: a fault and a flag are different things. A fault (inactive change, impossible count, another ruler) makes
the cell invalid; a flag (foreign load, step times that disagree) stays a remark, for it is the reader's to weigh.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis import drift
from analysis.peak import phase_band, streams, token_times
from experiments import telemetry
from experiments.engines.registry import engine_of
from experiments.engines.simulation import simulated_accept
from experiments.errors import MeasurementError
from experiments.metrics import Metrics, Sample, measure, step_flag, with_steps
from experiments.ports import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator

    from analysis.logratio import LogRatio
    from experiments.clients.bench_serving import BenchResult, RequestRow
    from experiments.metrics import AcceptSource
    from experiments.spec import CellSpec
    from experiments.tasks.gsm8k import Score
    from gates.evidence import CellEvidence, GateResult
    from gates.validity import Fault, Ruler

FOREIGN_LOAD = 0.1
"""Cores used by others from which on a measurement is flagged."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The measured window, as client, server and machine saw it."""

    result: BenchResult
    info: dict[str, Any]
    """/server_info right after the window, before anything else ran."""
    log: str
    """The server's, to this moment."""
    machine: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Findings:
    metrics: Metrics
    score: Score | None
    gates: tuple[GateResult, ...]
    evidence: CellEvidence
    faults: tuple[Fault, ...]
    """Why these numbers may not be used."""
    flags: tuple[str, ...]
    """What a reader should know beside them."""
    activation: dict[str, Any]
    ruler: Ruler
    load: dict[str, Any]


def derive(spec: CellSpec, load: Load) -> Metrics:
    """Figures of the measured window. Raises MeasurementError."""
    steps = load.info.get("steps") or {}
    metrics = measure(
        tuple(sample(row) for row in load.result.requests),
        window=spec.speculation.window,
        source=accept_source(spec),
        wall_s=load.result.summary["duration"],
        peak_tok_s=load.result.summary["max_output_tokens_per_s"],
        server_step_ms=1e3 * steps["total_s"] / steps["count"] if steps.get("count") else None,
    )
    said = counts(load.info.get("speculation") or {}) | slack(load.info.get("executor") or {})
    metrics = replace(metrics, **said, **peak_band(load))
    if metrics.output_tokens != load.result.summary["total_output_tokens"]:
        counted = load.result.summary["total_output_tokens"]
        raise MeasurementError(f"the client counted {counted} output tokens, its requests have {metrics.output_tokens}")
    return metrics


def peak_band(load: Load) -> dict[str, Any]:
    band = phase_band(token_times(streams([asdict(row) for row in load.result.requests])))
    return {"peak_low_tok_s": band.low, "peak_high_tok_s": band.high}


def counts(section: dict[str, Any]) -> dict[str, Any]:
    """Figures that only the server can count; a step is one request's part in a verification."""
    if not section.get("verify_requests"):
        return {}
    return {
        "verified_rows_per_step": section["verified_rows"] / section["verify_requests"],
        "committed_per_step": section["committed_tokens"] / section["verify_requests"],
        "accept_by_position": tuple(section["accept_by_position"]),
    }


def slack(report: dict[str, Any]) -> dict[str, Any]:
    """Where the server's host runs ahead of its device."""
    seen = report.get("slack") or {}
    if not seen.get("count"):
        return {}
    return {"slack_ms": 1e3 * seen["total_s"] / seen["count"], "dry_share": seen["dry"] / seen["count"]}


def sample(row: RequestRow) -> Sample:
    """The client asks for an exact length, so any other count is a fault of the engine or of the transfer."""
    if row.completion_tokens != row.asked_tokens:
        raise MeasurementError(
            f"request {row.index}: asked for {row.asked_tokens} tokens, the engine counted {row.completion_tokens}"
        )
    return Sample(tokens=row.completion_tokens, steps=row.spec_verify_ct, ttft_s=row.ttft_s, latency_s=row.latency_s)


def drift_of(spec: CellSpec, load: Load) -> LogRatio:
    samples = [with_steps(sample(row), spec.speculation.window) for row in load.result.requests]
    timed = [(one.decode_s, one.steps) for one in samples if one.steps]
    return drift.drift([seconds for seconds, _ in timed], [steps for _, steps in timed])


def accept_source(spec: CellSpec) -> AcceptSource:
    if simulated_accept(spec) is not None:
        return "simulated"
    return "definition" if spec.speculation.algorithm == "none" else "measured"


def flags(spec: CellSpec, metrics: Metrics, load: Load) -> Iterator[str]:
    yield from engine_of(spec).remarks(spec, load.info, load.log)
    if remark := step_flag(metrics):
        yield remark
    if remark := drift.remark(drift_of(spec, load)):
        yield remark
    if not is_loopback(spec.engine.host):
        yield f"the server listened at {spec.engine.host}, where other machines reach it"
    if load.machine["foreign_cores"] > FOREIGN_LOAD:
        yield f"other processes used {load.machine['foreign_cores']:.2f} cores during the benchmark"
    yield from telemetry.remarks(load.machine["telemetry"])
