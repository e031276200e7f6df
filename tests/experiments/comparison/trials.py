"""How often A/B runs on this machine say what is true: `python -m tests.experiments.comparison.trials KIND DIRECTORY`.

Live servers of the miniature, a build with one known effect in it as the candidate, and as many runs as asked for,
each by run.py with a coin and servers of its own. The surprise: all trials share one directory and so one floor, as the
A/B runs of a user do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.experiments.driver import ROOT

SMALL = ("workload.num_prompts=32", "gate.parity_prompts=2", "gate.parity_tokens=64", "ab.prompts=2")


@dataclass(frozen=True)
class Kind:
    """Two builds (tests/fakes/planted.py), and the verdict that is true of them."""

    baseline: str
    candidate: str
    verdict: str
    overrides: tuple[str, ...] = ()


DECLARED = ("ab.rounding=declared", 'ab.reason="tokens are the same, steps are not"', "ab.accept_bound=2")
DECLARED += ("task=gsm8k", "task.num_questions=20", "task.num_shots=0")  # rounding is not judged without a task
KINDS = {
    "aa": Kind("none", "none=1", "inconclusive"),  # one build by two command lines, so that no rule knows them as equal
    "slow": Kind("none", "slow=0.05", "reject"),
    "trade": Kind("slow=0.12", "fewer_accepted=36", "inconclusive", DECLARED),
}


def build(effect: str) -> str:
    return f'["engine.command=[{sys.executable},-m,tests.fakes.planted,\\"{effect}\\"]"]'


def trial(kind: Kind, directory: Path, seed: int, overrides: list[str]) -> dict[str, Any]:
    """The decision's record. Raises CalledProcessError and KeyError where run.py made none."""
    arms = [f"ab.baseline={build(kind.baseline)}", f"ab.candidate={build(kind.candidate)}"]
    command = [sys.executable, str(ROOT / "run.py"), "experiment=ab", f"output_dir={directory}", "tracking=none"]
    command += [*arms, f"ab.seed={seed}", "resume=true", *SMALL, *kind.overrides, *overrides]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=directory, stdout=subprocess.PIPE, text=True, check=False)
    (line,) = json.loads(done.stdout.splitlines()[-1])["decisions"]
    record: dict[str, Any] = json.loads(Path(line["record"]).read_text())
    return record


def row(seed: int, record: dict[str, Any]) -> str:
    compared, blocks = record.get("comparison") or {}, record.get("blocks") or {}
    interval = compared.get("step_time", {}).get("always_valid", {})
    per_cent = [f"{100 * interval[key]:+.2f}" for key in ("estimate", "low", "high")] if interval else ["-"] * 3
    shown = [seed, record["verdict"] or record["status"], record["rule"], *per_cent]
    shown += [len(blocks.get("orders", ())), blocks.get("spent_s"), (record.get("load") or {}).get("foreign_cores")]
    return "\t".join(map(str, shown))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("overrides", nargs="*", help="of run.py, such as ab.budget_s=120")
    options = parser.parse_intermixed_args()
    kind, right = KINDS[options.kind], 0
    options.directory.mkdir(parents=True, exist_ok=True)
    print("seed\tverdict\trule\tstep %\tlow\thigh\tblocks\tseconds\tforeign cores", flush=True)
    for seed in range(options.first_seed, options.first_seed + options.runs):
        record = trial(kind, options.directory.absolute(), seed, options.overrides)
        right += record["verdict"] == kind.verdict
        print(row(seed, record), flush=True)
    print(f"{right} of {options.runs} {kind.verdict}")


if __name__ == "__main__":
    main()
