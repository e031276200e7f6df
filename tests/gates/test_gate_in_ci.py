"""The example repository goes through its workflow, step by step: unchanged, one bit changed, and that declared."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import workflow
from junit_schema import validated

from gates import golden
from gates.__main__ import main
from gates.arguments import parser
from gates.hardware import here

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/gate-in-ci"
WORKFLOWS = (".github/workflows/gate.yml", "examples/gate-in-ci/.github/workflows/numerics.yml")
SMALL = "gate.parity_prompts=2 gate.parity_tokens=64 gate.pollution_requests=2"
REASON = 'the experts\' sum is rounded once; "last" bit $(false)\n'
"""With what a shell would trip over."""

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def record(tmp_path_factory) -> Path:
    """The one that ships; where this processor computes other bits, one that it took itself."""
    shipped = golden.read(EXAMPLE / "golden.json")
    if shipped.hardware.same_bits(here("cpu", {})):
        return EXAMPLE / "golden.json"
    file = tmp_path_factory.mktemp("golden") / "golden.json"
    small = ("gate.parity_prompts=2", "gate.parity_tokens=64", "gate.pollution_requests=2")
    assert main(["record", *small, "--out", str(file)]) == 0
    ours = golden.read(file)
    golden.write(
        file, replace(shipped, hardware=ours.hardware, evidence=replace(shipped.evidence, probe=ours.evidence.probe))
    )
    return file


@pytest.fixture
def repository(record, tmp_path) -> Path:
    """A checkout of the example beside one of this program, whose installation is this very one."""
    directory = tmp_path / "checkout"
    shutil.copytree(EXAMPLE, directory)
    shutil.copy(record, directory / "golden.json")
    python = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} "$@"\n'
    (directory / ".gate").mkdir()
    install = "install:\n\tmkdir -p .venv/bin\n\tcp python .venv/bin/python\n\tchmod +x .venv/bin/python\n"
    (directory / ".gate/Makefile").write_text(install)
    (directory / ".gate/python").write_text(python)
    return directory


def without_task(file: Path) -> None:
    known = golden.read(file)
    golden.write(file, replace(known, task=None, evidence=replace(known.evidence, task=None)))


def build(directory: Path, fault: str) -> None:
    serve = directory / "serve.sh"
    serve.write_text(serve.read_text().replace("ling_runtime.server", f"tests.fakes.planted {fault}"))


def pull_request(directory: Path) -> workflow.Done:
    calling = workflow.parsed(directory / ".github/workflows/numerics.yml")["jobs"]["gate"]
    called = workflow.parsed(ROOT / calling["uses"].partition("@")[0].split("/", 2)[2])
    return workflow.run(called["jobs"]["gate"], workflow.given(called, calling["with"]), directory)


def test_an_unchanged_server_passes(repository):
    done = pull_request(repository)
    assert done.code == 0, done.out
    suite = validated((repository / "gate.xml").read_text())
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    assert done.summary == (repository / "gate.md").read_text()
    assert done.summary.startswith("## Gates passed")


def test_one_bit_that_nobody_declared_fails_with_its_place(repository):
    build(repository, "last_bit")
    done = pull_request(repository)
    assert done.code == 1, done.out
    suite = validated((repository / "gate.xml").read_text())
    assert [case.get("name") for case in suite.findall("testcase") if case.find("failure") is not None] == [
        "logit_digest"
    ]
    assert "First difference that `logit_digest` sees" in done.summary
    assert "--rounding declared" in done.summary


def test_the_same_build_passes_declared_with_a_reason(repository):
    """The record has no task here, so what remains open is said; with its 500 questions: the slow test below."""
    build(repository, "last_bit")
    without_task(repository / "golden.json")
    (repository / "rounding.txt").write_text(REASON)
    done = pull_request(repository)
    assert done.code == 0, done.out
    line = json.loads(done.out.splitlines()[-1])
    assert (line["gates"]["logit_digest"]["status"], line["gates"]["logit_digest"]["required"]) == ("fail", False)
    assert (line["gates"]["accept_drift"]["status"], line["gates"]["accept_drift"]["required"]) == ("pass", True)
    assert "undecided" in done.summary


def from_base(directory: Path, base: str = "main", golden: str = "") -> workflow.Done:
    """As a repository that keeps no record calls it; what the base's checkout brings is put there."""
    calling = directory / ".github/workflows/numerics.yml"
    text = calling.read_text().replace("golden: golden.json", f"golden: '{golden}'\n      base: '{base}'")
    text = text.replace("gate.pollution_requests=2", SMALL)
    calling.write_text(text)
    return pull_request(directory)


def test_a_base_is_recorded_first_and_then_held_against(repository):
    """The pull request's own build differs by one bit from main's, on the very machine that recorded main."""
    shutil.copytree(EXAMPLE, repository / ".base")
    (repository / "golden.json").unlink()
    build(repository, "last_bit")
    done = from_base(repository)
    assert done.code == 1, done.out
    assert json.loads(done.out.splitlines()[-1])["gates"]["logit_digest"]["status"] == "fail"
    assert (repository / "base.json").exists()


@pytest.mark.parametrize(("base", "golden"), [("", ""), ("main", "golden.json")])
def test_golden_and_base_exclude_each_other_and_one_is_needed(repository, base, golden):
    done = from_base(repository, base, golden)
    assert done.code == 2, done.out
    assert "base" in done.out
    assert not (repository / "gate.xml").exists()


def test_the_workflow_uses_no_option_that_the_gates_do_not_have():
    """`python -m gates COMMAND --option` in any `run:` step, and options that it collects in an array for them."""
    text = "\n".join(
        step["run"]
        for name in WORKFLOWS
        for job in workflow.parsed(ROOT / name)["jobs"].values()
        for step in job.get("steps", ())
        if "run" in step
    )
    subcommands = next(a for a in parser()._actions if a.dest == "command").choices
    lines = [line for line in text.splitlines() if "-m gates" in line]
    assert {line.split("-m gates ")[1].split()[0] for line in lines} == {"record", "check"}
    shared = set(re.findall(r"--[a-z][a-z-]+", "\n".join(line for line in text.splitlines() if "words+=" in line)))
    assert shared == {"--url", "--rounding", "--reason"}, "what this test looks for is still there"
    for line in lines:
        command = line.split("-m gates ")[1].split()[0]
        used = {*re.findall(r"--[a-z][a-z-]+", line.split("-m gates ")[1]), *(shared if command == "check" else ())}
        assert used <= {*subcommands[command]._option_string_actions}, command


def test_the_example_calls_the_workflow_as_it_is():
    called = workflow.parsed(ROOT / WORKFLOWS[0])
    calling = workflow.parsed(ROOT / WORKFLOWS[1])["jobs"]["gate"]
    assert calling["uses"].partition("@")[0].endswith(WORKFLOWS[0])
    assert workflow.given(called, calling["with"])["golden"] == "golden.json"
    assert ".ci/gate $(BASE)" in (ROOT / "Makefile").read_text()
    assert {"golden", "base"} <= called["on"]["workflow_call"]["inputs"].keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("fault", "args", "code", "status"),
    [("last_bit", "", 0, "pass"), ("worse_target=0.12", "--accept-bound 4", 1, "fail")],
)
def test_declared_rounding_is_held_to_the_record_s_task(repository, fault, args, code, status):
    build(repository, fault)
    (repository / "rounding.txt").write_text(REASON)
    calling = repository / ".github/workflows/numerics.yml"
    calling.write_text(f"{calling.read_text().rstrip()}\n      args: {args}\n")
    done = pull_request(repository)
    assert done.code == code, done.out
    task = json.loads(done.out.splitlines()[-1])["gates"]["task_score"]
    assert (task["status"], task["required"]) == (status, True)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_no_workflow_runs_text_of_an_event(name):
    assert "github.event" not in (ROOT / name).read_text()


def test_a_quote_without_its_pair_checks_nothing(repository):
    calling = repository / ".github/workflows/numerics.yml"
    calling.write_text(calling.read_text().replace("serve.sh]", "serve.sh] 'x"))
    done = pull_request(repository)
    assert done.code != 0
    assert done.summary == ""


def test_this_repository_s_own_ci_holds_the_miniature_against_its_record():
    assert "make gate\n" in (ROOT / ".ci/run").read_text()
    assert "gate: install" in (ROOT / "Makefile").read_text()
    assert "-m gates check" in (ROOT / ".ci/gate").read_text()


def test_the_example_is_small():
    assert (EXAMPLE / "golden.json").stat().st_size < 50_000
    assert os.access(EXAMPLE / "serve.sh", os.X_OK)
    assert str(ROOT) not in (EXAMPLE / "golden.json").read_text()
