"""What one live server has to go through to become a cell's numbers: launch, warm up, flush, load, task, gates.

The surprise: the order. The load comes first, on a server that has seen nothing but the warm-up, and the server's own
step times are read before task and gates add theirs.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from experiments import activation, ruler, workloads
from experiments.clients import bench_serving
from experiments.clients.bench_serving import BenchClient
from experiments.findings import Findings, Load, derive, flags
from experiments.gpu import gpus
from experiments.limits import within
from experiments.machine import LoadMeter, load_average
from experiments.record import write_lines, write_text
from experiments.running import running
from experiments.tasks import gsm8k
from experiments.telemetry import Telemetry
from gates import questions
from gates import run as gates
from gates.evidence import Accept
from gates.validity import Ruler, accept_faults, ruler_faults

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from experiments.limits import Phase
    from experiments.machine import Cores
    from experiments.progress import Stages
    from experiments.running import Running
    from experiments.spec import CellSpec
    from experiments.workloads import Data
    from gates.change import Change
    from gates.evidence import CellEvidence, GateResult, Missing, TaskAnswers
    from gates.golden import Reference


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a candidate is compared with: a valid cell of the same plan."""

    name: str
    spec: CellSpec
    identity: str
    change: Change
    evidence: CellEvidence
    ruler: Ruler


def measure_cell(
    spec: CellSpec,
    data: Data,
    attempt: Path,
    cores: Cores,
    baseline: Baseline | None,
    golden: Reference | Missing,
    stages: Stages,
) -> Findings:
    """Everything the cell's server can tell, and the server stopped again. Raises CellError."""
    stages.enter("launch")
    with (
        running(spec, log=attempt / "server.log", cores=cores.server) as server,
        BenchClient(
            spec, url=server.url, dataset=data.dataset, directory=attempt, served_name=server.name, cores=cores.client
        ) as client,
    ):
        write_commands(attempt / "command.txt", spec, server, data)
        server.wait_ready(spec.engine.ready_timeout_s)
        with server.blamed():
            load = run_load(spec, data, server, client, stages, Telemetry(attempt, cores.client))
            metrics = derive(spec, load)
            score, answers = run_task(spec, data, server, attempt, stages)
            accept = Accept(length=metrics.accept_length, source=metrics.accept_source)
            with phase(stages, "gates", spec.gate.timeout_s):
                results, evidence = gates.apply(
                    spec,
                    baseline.change if baseline else None,
                    server.client,
                    baseline=baseline.evidence if baseline else None,
                    accept=accept,
                    task=answers,
                    dataset=data.dataset,
                    golden=golden,
                )
            if any(result.status == "not_run" for result in results):
                server.blame()
        stages.enter("stop")
    if baseline and gates.waits_for_baseline(results, evidence):
        results = score_by_baseline(results, spec, baseline, evidence, attempt, cores, stages)
    own = Ruler(
        harness=ruler.harness(),
        dataset=data.dataset_sha256,
        prompt_order=ruler.prompt_order(load.result.requests),
        load=ruler.load(spec.workload),
    )
    active = activation.prove(spec, load.info, load.log)
    faults = [*accept_faults(spec.speculation, accept), *(ruler_faults(baseline.ruler, own) if baseline else ())]
    return Findings(
        metrics=metrics,
        score=score,
        gates=results,
        evidence=evidence,
        faults=(*active.faults, *faults),
        flags=tuple(flags(spec, metrics, load)),
        activation=active.to_json(),
        ruler=own,
        load=load.machine,
    )


def score_by_baseline(
    results: tuple[GateResult, ...],
    spec: CellSpec,
    baseline: Baseline,
    evidence: CellEvidence,
    attempt: Path,
    cores: Cores,
    stages: Stages,
) -> tuple[GateResult, ...]:
    """What only the baseline's server can say: launched once more, for two might not fit; an attached one is there.

    Raises CellError.
    """
    stages.enter("baseline")
    with running(baseline.spec, log=attempt / "baseline.log", cores=cores.server) as server:
        server.wait_ready(baseline.spec.engine.ready_timeout_s)
        with server.blamed(), within("gates", spec.gate.timeout_s):
            return gates.scored(results, spec, baseline.change, baseline.evidence, evidence, server.client)


def run_load(
    spec: CellSpec, data: Data, server: Running, client: BenchClient, stages: Stages, telemetry: Telemetry
) -> Load:
    with phase(stages, "warm-up", spec.workload.warmup_timeout_s):
        workloads.warm_up(server.client, data.warmup, spec.workload.input_len)
        server.client.flush_cache()
    with telemetry, phase(stages, "bench", spec.workload.timeout_s, spec.workload.num_prompts):
        before, meter = load_average(), LoadMeter()
        result = client.run(server, stages.advance)
    machine = {"load_average": before, "foreign_cores": round(meter.foreign_cores(), 3), "gpus": gpus()}
    machine["telemetry"] = telemetry.seen
    return Load(result=result, info=server.client.server_info(), log=server.log(), machine=machine)


def run_task(
    spec: CellSpec, data: Data, server: Running, attempt: Path, stages: Stages
) -> tuple[gsm8k.Score | None, TaskAnswers | None]:
    if spec.task.name == "none":
        return None, None
    with phase(stages, "task", spec.task.timeout_s, spec.task.num_questions):
        score, answers = gsm8k.run(server.client, data.task_rows, spec.task, stages.advance)
    write_lines(attempt / "task.jsonl", [asdict(answer) for answer in answers])
    assert data.task_sha256 is not None
    return score, questions.marked(spec.task, data.task_sha256, score, answers)


def write_commands(path: Path, spec: CellSpec, server: Running, data: Data) -> None:
    """Lines to paste; the client's writes to the terminal and not into this attempt."""
    client = bench_serving.command(spec, url=server.url, dataset=data.dataset, served_name=server.name)
    write_text(path, f"{server.line()}\n{client.shell()}\n")


@contextlib.contextmanager
def phase(stages: Stages, name: Phase, seconds: float, total: int | None = None) -> Iterator[None]:
    """A stage with a limit. Raises PhaseTimeout."""
    stages.enter(name, total)
    with within(name, seconds):
        yield
