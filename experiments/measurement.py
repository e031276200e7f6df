"""What one live server has to go through to become a cell's numbers: launch, warm up, flush, load, task, gates.

The surprise: the order. The load comes first, on a server that has seen nothing but the warm-up, and the server's own
step times are read before task and gates add theirs.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from experiments import activation, ruler, workloads
from experiments.clients import bench_serving
from experiments.clients.bench_serving import BenchClient
from experiments.clients.generate import ProtocolError
from experiments.errors import MeasurementError
from experiments.machine import LoadMeter, load_average
from experiments.metrics import Metrics, Sample, measure, step_flag
from experiments.record import write_lines
from experiments.server import Server
from experiments.tasks import gsm8k
from gates import run as gates
from gates.evidence import Accept, CellEvidence, GateResult, TaskAnswers
from gates.validity import Fault, Ruler, accept_faults, activation_faults, ruler_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiments.clients.bench_serving import BenchResult, RequestRow
    from experiments.machine import Cores
    from experiments.metrics import AcceptSource
    from experiments.progress import Stages
    from experiments.spec import CellSpec
    from experiments.workloads import Data
    from gates.change import Change

SIMULATION = "SGLANG_SIMULATE_ACC_LEN"
"""Environment name under which a server invents its accept length."""

FOREIGN_LOAD = 0.1
"""Cores used by others from which on a measurement is flagged."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a candidate is compared with: a valid cell of the same plan."""

    name: str
    change: Change
    evidence: CellEvidence
    ruler: Ruler


@dataclass(frozen=True, kw_only=True)
class Findings:
    metrics: Metrics
    score: gsm8k.Score | None
    gates: tuple[GateResult, ...]
    evidence: CellEvidence
    faults: tuple[Fault, ...]
    """Why these numbers may not be used."""
    flags: tuple[str, ...]
    """What a reader should know beside them."""
    activation: dict[str, Any]
    ruler: Ruler
    load: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Load:
    """The measured window, as client, server and machine saw it."""

    result: BenchResult
    info: dict[str, Any]
    """/server_info right after the window, before anything else ran."""
    machine: dict[str, Any]


def measure_cell(
    spec: CellSpec, data: Data, attempt: Path, cores: Cores, baseline: Baseline | None, stages: Stages
) -> Findings:
    """Everything the cell's server can tell, and the server stopped again. Raises CellError, ProtocolError."""
    stages.enter("launch")
    with (
        Server(spec, log=attempt / "server.log", cores=cores.server) as server,
        BenchClient(spec, url=server.url, dataset=data.dataset, directory=attempt, cores=cores.client) as client,
    ):
        write_commands(attempt / "command.txt", spec, server, data)
        server.wait_ready(spec.engine.ready_timeout_s)
        with blaming(server):
            load = run_load(spec, data, server, client, stages)
            metrics = derive(spec, load)
            score, answers = run_task(spec, data, server, attempt, stages)
            accept = Accept(length=metrics.accept_length, source=metrics.accept_source)
            stages.enter("gates")
            results, evidence = gates.apply(
                spec,
                baseline.change if baseline else None,
                server.client,
                baseline=baseline.evidence if baseline else None,
                accept=accept,
                task=answers,
                dataset=data.dataset,
            )
            server.check_alive()
        stages.enter("stop")
    own = Ruler(
        harness=ruler.harness(), dataset=data.dataset_sha256, prompt_order=ruler.prompt_order(load.result.requests)
    )
    faults = [*accept_faults(spec.speculation, accept), *(ruler_faults(baseline.ruler, own) if baseline else ())]
    return Findings(
        metrics=metrics,
        score=score,
        gates=results,
        evidence=evidence,
        faults=(*inactive(spec, load), *faults),
        flags=tuple(flags(metrics, load)),
        activation=prove_activation(spec, load),
        ruler=own,
        load=load.machine,
    )


def run_load(spec: CellSpec, data: Data, server: Server, client: BenchClient, stages: Stages) -> Load:
    stages.enter("warm-up")
    workloads.warm_up(server.client, data.warmup, spec.workload.input_len)
    server.client.flush_cache()
    stages.enter("bench", spec.workload.num_prompts)
    before, meter = load_average(), LoadMeter()
    result = client.run(server, stages.advance)
    machine = {"load_average": before, "foreign_cores": round(meter.foreign_cores(), 3)}
    return Load(result=result, info=server.client.server_info(), machine=machine)


def run_task(
    spec: CellSpec, data: Data, server: Server, attempt: Path, stages: Stages
) -> tuple[gsm8k.Score | None, TaskAnswers | None]:
    if spec.task.name == "none":
        return None, None
    stages.enter("task", spec.task.num_questions)
    score, answers = gsm8k.run(server.client, data.task_rows, spec.task, stages.advance)
    write_lines(attempt / "task.jsonl", [asdict(answer) for answer in answers])
    assert data.task_sha256 is not None
    return score, TaskAnswers(
        name=score.name,
        data_hash=f"{data.task_sha256}:{spec.task.num_shots}+{score.questions}",
        correct=tuple(answer.correct for answer in answers),
        invalid_rate=score.invalid,
        stop_rate=score.stop_rate,
        truncation_rate=score.truncation_rate,
    )


def derive(spec: CellSpec, load: Load) -> Metrics:
    """Figures of the measured window. Raises MeasurementError."""
    steps = load.info.get("steps") or {}
    return measure(
        tuple(sample(row) for row in load.result.requests),
        window=spec.speculation.window,
        source=accept_source(spec),
        wall_s=load.result.summary["duration"],
        peak_tok_s=load.result.summary["max_output_tokens_per_s"],
        server_step_ms=1e3 * steps["total_s"] / steps["count"] if steps.get("count") else None,
    )


def inactive(spec: CellSpec, load: Load) -> tuple[Fault, ...]:
    return tuple(activation_faults(activation.expected(spec), activation.observed(spec, load.info)))


def prove_activation(spec: CellSpec, load: Load) -> dict[str, Any]:
    """The activation part of a record."""
    faults = inactive(spec, load)
    return {
        "ok": not faults,
        "expected": activation.expected(spec),
        "observed": activation.observed(spec, load.info),
        "reason": "; ".join(fault.reason for fault in faults) or None,
    }


def sample(row: RequestRow) -> Sample:
    """The client asks for an exact length, so any other count is a fault of the engine or of the transfer."""
    if row.completion_tokens != row.asked_tokens:
        raise MeasurementError(
            f"request {row.index}: asked for {row.asked_tokens} tokens, the engine counted {row.completion_tokens}"
        )
    return Sample(tokens=row.completion_tokens, steps=row.spec_verify_ct, ttft_s=row.ttft_s, latency_s=row.latency_s)


def accept_source(spec: CellSpec) -> AcceptSource:
    if SIMULATION in spec.env:
        return "simulated"
    return "definition" if spec.speculation.algorithm == "none" else "measured"


def flags(metrics: Metrics, load: Load) -> Iterator[str]:
    if remark := step_flag(metrics):
        yield remark
    if load.machine["foreign_cores"] > FOREIGN_LOAD:
        yield f"other processes used {load.machine['foreign_cores']:.2f} cores during the benchmark"


def write_commands(path: Path, spec: CellSpec, server: Server, data: Data) -> None:
    """Lines to paste; the client's writes to the terminal and not into this attempt."""
    client = bench_serving.command(spec, url=server.url, dataset=data.dataset)
    path.write_text(f"{server.command.shell()}\n{client.shell()}\n")


@contextlib.contextmanager
def blaming(server: Server) -> Iterator[None]:
    """A call that failed because the server died is the server's failure, with its log's end."""
    try:
        yield
    except ProtocolError:
        server.blame()
        raise
