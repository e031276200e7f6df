"""run.py as Hydra users know it, and what it refuses: composed configuration, help, dry run, exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from experiments.errors import ConfigError
from experiments.preparation import check_programs
from experiments.spec import EngineSpec, StudySpec
from tests.experiments.driver import ROOT, Run
from tests.experiments.processes import MARK, marked
from tests.fakes.checkpoint import write_draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec

pytestmark = pytest.mark.process

PRESETS = sorted(path.stem for path in (ROOT / "conf/experiment").glob("*.yaml"))


def hydra(*arguments: str, cwd: Path) -> Run:
    done = subprocess.run(
        [sys.executable, str(ROOT / "run.py"), *arguments], cwd=cwd, capture_output=True, text=True, timeout=60
    )
    return Run(done.returncode, done.stdout, done.stderr, cwd)


def test_help_shows_groups_keys_and_exit_codes(tmp_path: Path) -> None:
    shown = hydra("--help", cwd=tmp_path)
    assert shown.code == 0
    for text in ("speculation: dspark, eagle3, nextn", "num_prompts: 16", "Exit codes", "experiment=quickstart"):
        assert text in shown.out
    assert list(tmp_path.iterdir()) == []


def model_of(preset: str) -> str:
    if preset.startswith(("paper_", "campaign_sglang")):
        return "inclusionAI/Ling-3.0-flash"
    return str(
        ROOT / (".venv-sglang-cpu/small_model" if preset == "sglang_cpu" else "ling_runtime/checkpoints/ling_tiny")
    )


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_the_configuration_composes_and_resolves(tmp_path: Path, preset: str | None) -> None:
    chosen = [f"experiment={preset}"] if preset else []
    shown = hydra("--cfg", "job", "--resolve", *chosen, cwd=tmp_path)
    assert shown.code == 0, shown.err
    assert "algorithm: " in shown.out
    assert model_of(preset or "") in shown.out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_lines_to_paste_and_starts_nothing(
    run_py: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    shown = run_py("dry_run=true", '+env.A_FLAG="on 1"', "speculation.num_steps=5")
    assert shown.code == 0, shown.err
    server, client = [line for line in shown.out.splitlines() if line.startswith("env ")]
    assert "A_FLAG='on 1'" in server
    assert "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6" in server
    assert "-m experiments.clients.recorded_serving /dev/stdout /dev/null --backend sglang" in client
    assert shown.line == {"cells": [], "decisions": [], "dry_run": ["nextn-5-6"], "findings": [], "exit": 0}
    assert list((tmp_path / "out").rglob("record.json")) == []
    assert marked(str(tmp_path)) == []


def test_a_pasted_server_line_runs(run_py: Callable[..., Run], tmp_path: Path) -> None:
    shown = run_py(
        "dry_run=true", engine=(sys.executable, str(ROOT / "tests/fakes/server.py"), "--fault", "die_at_start")
    )
    line = next(line for line in shown.out.splitlines() if line.startswith("env "))
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, "on purpose" in done.stdout) == (7, True)


def test_a_sweep_is_one_plan(run_py: Callable[..., Run]) -> None:
    shown = run_py("dry_run=true", "speculation.num_steps=1,2,3", "-m")
    assert shown.line["dry_run"] == ["nextn-1-2", "nextn-2-3", "nextn-3-4"]
    shown = run_py("dry_run=true", "speculation=none,nextn", "-m")
    assert shown.line["dry_run"] == ["none", "nextn-3-4"]
    shown = run_py("dry_run=true", "speculation=none,nextn", "study=a,b", "-m")
    assert shown.line["dry_run"] == ["none", "nextn-3-4"] * 2, "one plan a study, wherever Hydra puts its jobs"


def test_a_preset_lists_linked_cells_and_takes_overrides(run_py: Callable[..., Run]) -> None:
    shown = run_py("dry_run=true", "experiment=quickstart", "task.num_questions=7")
    assert shown.line["dry_run"] == ["none", "nextn-3-4", "nextn-5-6"]
    assert shown.out.count("--num-prompts 2 ") == 3


def test_presets_of_blocks_name_their_cells(run_py: Callable[..., Run], draft: Path, tmp_path: Path) -> None:
    larger = write_draft(tmp_path / "larger", block_size=16)
    drafts = (f"model.drafts.8={draft}", f"model.drafts.16={larger}", "dry_run=true")
    shown = run_py("experiment=speculation", *drafts)
    assert shown.line["dry_run"] == ["none", "nextn-3-4", "nextn-5-6", "dspark-8", "dspark-16"], shown.err
    sts = tmp_path / "sts.json"
    sts.write_text(json.dumps({"temperatures": [1.0] * 16}))
    shown = run_py("experiment=dspark_modes", *drafts, "speculation.block_size=16", f"speculation.sts_path={sts}")
    modes = ["", "-cap-accept", "-compact_scheduler=causal", "-compact_scheduler=global"]
    assert shown.line["dry_run"] == [f"dspark-16{mode}" for mode in modes], shown.err
    assert shown.out.count(f"--speculative-dspark-confidence-sts-path {sts}") == 3, "not where all rows are verified"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("speculation.num_stepz=3", "Key 'num_stepz' not in"),
        ("workload=nope", "Could not find 'workload/nope'"),
        ("speculation.num_steps=three", "could not be converted to Integer"),
        ("gate.mode=lenient", "gate.mode: 'lenient' is not one of strict, off"),
        ("model.path=/no/such/model", "model.path"),
        ("model.path=???", "model.path: Missing mandatory value"),
        (
            "speculation=dspark speculation.block_size=32",
            "ling_tiny names no draft of a block of 32 (model.drafts: 8, 16)",
        ),
        ("speculation=dspark speculation.num_steps=3", "speculation.num_steps: speculation=dspark has block_size"),
        ("kernels.no_such=fused", "kernels.no_such: no such operator"),
        ("kernels.lm_head=bf16 change.rounding=preserved", "change: change.rounding=preserved, but this rounds"),
        ("change.rounding=declared", "change: change.rounding=declared needs change.reason"),
        ("gate.parity_prompts=1000", "gate.parity_prompts: 1000 is too many; allowed: 1 to 118"),
        ("task.timeout_s=0", "task.timeout_s: 0 is no limit; allowed: seconds above 0"),
        ("study=../elsewhere", "study: '../elsewhere' cannot name a directory"),
        ("output_dir=/proc/nowhere", "output_dir: nothing can be written to /proc/nowhere (No such file"),
        (f"output_dir={__file__} -m", f"output_dir: nothing can be written to {__file__} (Not a directory)"),
        (f"output_dir={__file__} dry_run=true", f"output_dir: nothing can be written to {__file__} (Not a directory)"),
        ("output_dir=/proc/nowhere mode=ab ab.candidate=[]", "output_dir: nothing can be written to /proc/nowhere"),
        ("engine.ready_timeout_s=nan", "engine.ready_timeout_s: nan is no quantity; allowed: finite numbers"),
        ("claims.accept_length=inf", "claims.accept_length: inf is no quantity; allowed: finite numbers"),
        ("claims.accept_length=0.9 dry_run=true", "claims.accept_length: 0.9 tokens a step; allowed: 1 and more"),
        ("claims.expert_mb=0", "claims.expert_mb: 0 MB a step; allowed: above 0"),
        ("search.metric=speed dry_run=true", "search.metric: 'speed' is not one of criterion, mean_tpot_ms"),
        ("search.cells=-1 preflight=true", "search.cells: -1 is too small; allowed: 0 and more"),
        ("search.seconds=-1 mode=ab ab.candidate=[]", "search.seconds: -1 is no budget; allowed: above 0, or null"),
        ("launcher=slurm launcher.mem_gb=-4 dry_run=true", "launcher.mem_gb: -4 is too small; allowed: 1 and more"),
        ("experiment=search ab.expect=${nothing} dry_run=true", "ab.expect: Interpolation key 'nothing' not found"),
        ("output_dir=/proc/nowhere hydra.run.dir=.", "output_dir: no data can be written there"),
    ],
)
def test_configuration_errors_end_with_2_and_a_line(
    run_py: Callable[..., Run], tmp_path: Path, overrides: str, message: str
) -> None:
    shown = run_py(*overrides.split())
    assert shown.code == 2
    assert message in shown.err
    assert message in shown.line["error"]
    assert "Traceback" not in shown.err
    assert shown.line["exit"] == 2
    assert list((tmp_path / "out").rglob("record.json")) == []


@pytest.mark.parametrize("override", ["speculation.num_stepz=3", "study=???"])
def test_hydra_s_whole_stack_trace_does_not_change_the_code(
    run_py: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, override: str
) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    shown = run_py(override)
    assert (shown.code, shown.line["exit"]) == (2, 2)
    assert "Traceback" in shown.err


def test_a_python_without_the_environment_is_told_how_to_get_it(tmp_path: Path) -> None:
    command = [sys.executable, "-S", str(ROOT / "run.py"), "dry_run=true"]
    bare = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, env=bare, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    told = "No module named 'hydra': `make install` once, and `. .venv/bin/activate` in every new shell\n"
    assert (done.returncode, done.stderr, done.stdout) == (2, told, "")


def test_a_fault_of_the_program_does_not_end_with_the_code_of_a_reject(tmp_path: Path) -> None:
    """Python's own code for an exception is 1."""
    (tmp_path / "sglang.py").touch()  # no package, which nobody foresaw
    command = [sys.executable, str(ROOT / "run.py"), "dry_run=true", f"output_dir={tmp_path}"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert json.loads(done.stdout.splitlines()[-1])["error"].startswith("a fault of this program: AssertionError")
    assert "Traceback" in done.stderr


@pytest.mark.parametrize("program", [("/nope/python", "-m", "x"), (str(ROOT / "README.md"),), ("no-such-program",)])
@pytest.mark.parametrize("engine", ["ling", "sglang", "sglang_cpu", "vllm"])
def test_a_program_that_is_not_there_is_found_before_anything_is_locked(
    make_cell: Callable[..., CellSpec], engine: str, program: tuple[str, ...]
) -> None:
    cell = make_cell(engine=EngineSpec(name=engine, command=program))
    with pytest.raises(ConfigError, match=rf"engine\.command: '{program[0]}' is no program on this machine; allowed: "):
        check_programs(cell, StudySpec(study="s"))
    check_programs(cell, StudySpec(study="s", dry_run=True))


def test_a_missing_program_s_run_leaves_nothing(run_py: Callable[..., Run], tmp_path: Path) -> None:
    shown = run_py(engine=("/nope/python", "-m", "x"))
    assert (shown.code, shown.line["exit"]) == (2, 2)
    assert shown.line["error"].startswith("engine.command: '/nope/python'")
    assert not (tmp_path / "lock").exists()
    assert run_py("dry_run=true", engine=("/nope/python", "-m", "x")).code == 0


def test_a_store_that_cannot_be_opened_is_found_before_anything_starts(run_py: Callable[..., Run]) -> None:
    shown = run_py("tracking=mlflow", "tracking.uri=sqlite:////proc/nowhere/mlflow.db")
    assert shown.code == 2
    assert "tracking.uri: sqlite:////proc/nowhere/mlflow.db cannot be opened" in shown.line["error"]


def test_an_error_in_the_last_job_of_a_sweep_is_found_before_the_first_starts(
    run_py: Callable[..., Run], tmp_path: Path
) -> None:
    shown = run_py("speculation.num_steps=1,2,0", "-m")
    assert (shown.code, shown.line["cells"]) == (2, [])
    assert "speculation.num_steps: 0" in shown.err
    assert list((tmp_path / "out").rglob("record.json")) == []


def test_a_declaration_without_a_reason_is_a_configuration_error(run_py: Callable[..., Run]) -> None:
    shown = run_py("change.rounding=declared", "+env.A=0,1", "-m")
    assert shown.code == 2
    assert "change.reason" in shown.err


def test_preflight_reports_the_machine_and_starts_nothing(run_py: Callable[..., Run], tmp_path: Path) -> None:
    shown = run_py("preflight=true", "tracking=mlflow")
    assert shown.line["preflight"]["lock"] is True
    assert json.dumps(shown.line["preflight"]).count("true") >= 4
    assert "mlflow.db, which the first run makes" in shown.out
    assert shown.err == ""
    assert [*(tmp_path / "out").rglob("record.json"), *(tmp_path / "out").rglob("*.db")] == []


def test_preflight_does_not_ask_this_machine_for_a_gpu_that_is_declared(run_py: Callable[..., Run]) -> None:
    declared = ("engine=sglang", "engine.gpu=4xB200", "model=ling_3_flash", "model.path=org/name", "speculation=none")
    shown = run_py("preflight=true", *declared)
    assert (shown.line["preflight"]["gpu"], shown.line["preflight"]["memory"]) == (None, None), shown.err
    assert "unknown gpu             engine.gpu=4xB200 is another machine's" in shown.out
    bare = run_py("preflight=true", *(one for one in declared if "gpu" not in one))
    assert "engine.gpu" not in bare.out


def test_preflight_opens_a_store_that_is_there_and_names_one_that_cannot_be(run_py: Callable[..., Run]) -> None:
    shown = run_py("preflight=true", "tracking=mlflow", "tracking.uri=sqlite:////proc/nowhere/mlflow.db")
    assert (shown.code, shown.line["preflight"]["tracking"]) == (3, False)
    assert "tracking.uri: sqlite:////proc/nowhere/mlflow.db cannot be opened" in shown.out
