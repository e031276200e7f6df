"""Whole cells on a stand-in for SGLang: launched, measured, gated, and held to what they asked for."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from analysis.__main__ import main as analysis
from experiments import filing, notes
from tests.experiments.driver import ROOT, Run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.process, pytest.mark.whole]

FAKE = ROOT / "tests/fakes/sglang_server.py"
KDA = '+env.SGLANG_OPT_FUSED_KDA_VERIFY="1"'


@pytest.fixture
def run(run_py: Callable[..., Run]) -> Callable[..., Run]:
    """One cell on the stand-in with NEXTN 3/4, ungated unless overridden; `own` are its flags."""

    def go(*overrides: str, own: tuple[str, ...] = ()) -> Run:
        named = {override.partition("=")[0] for override in overrides}
        defaults = {
            "engine": "sglang",
            "engine.device": "cpu",
            "engine.dtype": "float32",
            "gate": "off",
            "audit": "off",
        }
        given = [f"{key}={value}" for key, value in defaults.items() if key not in named]
        return run_py(*given, *overrides, engine=(sys.executable, str(FAKE), *own))

    return go


def test_a_cell_is_measured_gated_and_proved(run: Callable[..., Run], tmp_path: Path) -> None:
    record = tmp_path / "command.json"
    shown = run(
        *("gate=strict", "task=gsm8k", "task.num_questions=3", "task.num_shots=1", KDA),
        *("engine.flags.disable-radix-cache=''", "engine.mem_fraction_static=0.85"),
        own=("--record", str(record)),
    )
    assert shown.code == 0, shown.err
    kept, ran = shown.record(), json.loads(record.read_text())
    assert kept["status"] == "valid"
    assert kept["activation"]["ok"]
    assert kept["activation"]["observed"]["env.SGLANG_OPT_FUSED_KDA_VERIFY"] == "1"
    assert kept["activation"]["observed"]["--disable-radix-cache"] == ""
    assert kept["metrics"]["accept_source"] == "measured"
    assert kept["task"]["questions"] == 3
    assert {name: gate["status"] for name, gate in kept["gates"].items() if gate["required"]}
    assert ran["env"] == {"SGLANG_OPT_FUSED_KDA_VERIFY": "1"}
    assert ran["flags"]["--host"] == "127.0.0.1"
    assert (ran["flags"]["--disable-radix-cache"], ran["flags"]["--mem-fraction-static"]) == ("", "0.85")


def test_what_was_asked_for_and_is_not_active_makes_the_cell_invalid_in_one_line(run: Callable[..., Run]) -> None:
    shown = run(KDA, "engine.attention_backend=fa3", own=("--without", "kda", "--resolve", "attention_backend:triton"))
    kept = shown.record()
    assert (shown.code, kept["status"], kept["rule"]) == (3, "invalid", "inactive")
    assert kept["activation"]["reason"] == (
        "--attention-backend=fa3 was asked for; active: triton; "
        "env.SGLANG_OPT_FUSED_KDA_VERIFY=1 was asked for; active: nothing: its line is not in the log"
    )


def test_blocks_of_drafts_on_another_version(run: Callable[..., Run], draft: Path) -> None:
    shown = run("speculation=dspark", f"speculation.draft_path={draft}", own=("--version", "0.6.0"))
    assert shown.code == 0, shown.err
    seen = shown.record()["activation"]["observed"]
    assert (seen["speculation.block_size"], seen["speculation.num_draft_tokens"]) == (8, 9)
    assert seen["speculation.verify_mode"] == "static"
    remark = "SGLang 0.6.0 runs and 0.5.23 was tested; what it shows is read as 0.5.23 shows it"
    assert remark in shown.record()["flags"]


def test_simulated_acceptance_is_marked_wherever_it_appears(run: Callable[..., Run], tmp_path: Path) -> None:
    shown = run('+env.SGLANG_SIMULATE_ACC_LEN="2.5"')
    assert shown.code == 0, shown.err
    kept = shown.record()
    assert kept["metrics"]["accept_source"] == "simulated"
    assert " simulated" in shown.out
    assert shown.line["cells"][0]["accept_source"] == "simulated"
    assert filing.tags(kept)["accept_source"] == "simulated"
    assert re.search(r"accept length \d\.\d\d simulated", notes.of_record(kept, {}))
    page = tmp_path / "report.html"
    analysis(["report", str(tmp_path / "out"), "--out", str(page)])
    assert " simulated" in page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["paper_nextn_corrected", "paper_dspark_corrected"])
def test_a_preset_of_the_post_is_measured_gated_and_proved_in_both_arms(run: Callable[..., Run], preset: str) -> None:
    shown = run(
        *(f"experiment={preset}", "engine=sglang", "gate=strict", "gate.near_tie=0.25"),
        *("task.num_questions=4", "task.num_shots=1", "task.floor=null"),
    )
    assert shown.code == 0, shown.err
    baseline, speculative = (shown.record(number) for number in (0, 1))
    assert (baseline["status"], speculative["status"]) == ("valid", "valid")
    assert speculative["gates"]["lossless"]["status"] == "pass"
    assert speculative["activation"]["observed"]["env.SGLANG_OPT_FUSED_KDA_VERIFY"] == "1"
    assert "env.SGLANG_OPT_FUSED_KDA_VERIFY" not in baseline["activation"]["expected"]
    for record in (baseline, speculative):
        assert record["activation"]["observed"]["--flashinfer-allreduce-fusion-backend"] == "auto"


WITHOUT_SGLANG = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] == "sglang" else find(name, package)
"""


def test_a_dry_run_needs_no_sglang_and_a_run_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_SGLANG)
    command = [sys.executable, str(ROOT / "run.py"), "experiment=paper_dspark_corrected", "workload.num_prompts=2"]
    command += [f"output_dir={tmp_path}", "task.num_questions=5", "tracking=none", "workload.num_shots=1"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    shown = subprocess.run([*command, "dry_run=true"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("-m sglang.launch_server") == shown.stdout.count("-m sglang.bench_serving") == 2
    refused = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "configuration error: engine: SGLang is not installed here" in refused.stderr
