"""`python -m gates record|check`: the gates for a server that is already running, as a step of somebody's CI.

The surprise: a change is `same` unless the caller says otherwise, and the server is a stranger unless called ours; both
defaults are the strict ones for tokens. Exit code and last line (one JSON object) are those of a run.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.clients.generate import GenerateClient
from experiments.spec import CellSpec, EngineSpec, GateSpec, ModelSpec, SpeculationSpec, TaskSpec, WorkloadSpec
from gates import golden
from gates.change import STRENGTH, Change
from gates.check import check, record
from gates.verdict import CONFIGURATION, exit_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gates.evidence import GateResult
    from gates.verdict import Verdict


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    try:
        with GenerateClient(options.url) as client:
            return run_record(options, client) if options.command == "record" else run_check(options, client)
    except golden.GoldenError as error:
        print(f"error: {error}", file=sys.stderr)
        return CONFIGURATION


def run_record(options: argparse.Namespace, client: GenerateClient) -> int:
    verdict, gates, evidence = record(spec(options), client, options.dataset)
    if verdict.verdict == "baseline":
        golden.write(options.out, evidence)
    return report(verdict, gates)


def run_check(options: argparse.Namespace, client: GenerateClient) -> int:
    evidence = golden.read(options.golden)
    change = Change(
        class_=options.change, parts=(f"against {options.golden.name}",), declared=None, reason=options.reason
    )
    with GenerateClient(options.baseline) if options.baseline else nullcontext() as baseline_client:
        verdict, gates, _ = check(spec(options), change, client, evidence, baseline_client)
    return report(verdict, gates)


def report(verdict: Verdict, gates: Sequence[GateResult]) -> int:
    code = exit_code([verdict])
    for gate in gates:
        print(f"{gate.name:16} {gate.status:15} {'required' if gate.required else '':9} {gate.reason}")
    print(f"{verdict.verdict or verdict.status}: {verdict.reason}")
    results = {gate.name: {"status": gate.status, "required": gate.required, "reason": gate.reason} for gate in gates}
    print(json.dumps(asdict(verdict) | {"gates": results, "exit": code}))
    return code


def spec(options: argparse.Namespace) -> CellSpec:
    """The gates read a cell; of a server by its address only this much is known."""
    gate = GateSpec()
    if options.command == "record":
        gate = GateSpec(parity_prompts=options.prompts, parity_tokens=options.tokens)
    return CellSpec(
        engine=EngineSpec(name=options.engine, dtype=options.dtype),
        model=ModelSpec(name="attached", path=options.url),
        speculation=SpeculationSpec(),
        workload=WorkloadSpec(name="none"),
        task=TaskSpec(),
        gate=gate,
    )


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m gates", description="Gates for a running server.")
    commands = top.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("record", help="write a golden record of a server that passes alone")
    taking.add_argument("--out", type=Path, required=True)
    taking.add_argument("--prompts", type=int, default=GateSpec().parity_prompts)
    taking.add_argument("--tokens", type=int, default=GateSpec().parity_tokens)
    taking.add_argument("--dataset", type=Path, help="JSON in ShareGPT's form; by turns with the built-in prompts")
    checking = commands.add_parser("check", help="hold a server against a golden record")
    checking.add_argument("golden", type=Path)
    checking.add_argument("--change", choices=STRENGTH, default="same", help="class of the change (default: same)")
    checking.add_argument("--reason", help="of a declared rounding change")
    checking.add_argument("--baseline", help="address of a live baseline, which only the lossless gate asks for")
    for command in (taking, checking):
        command.add_argument("--url", required=True, help="http://HOST:PORT")
        command.add_argument("--engine", choices=("attach", "ling", "sglang"), default="attach")
        command.add_argument("--dtype", default="float32", help="of the engine; decides what a near-tie is")
    return top


if __name__ == "__main__":
    sys.exit(main())
