"""The example repository goes through its workflow, step by step: unchanged, one bit changed, and that declared."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import workflow
from junit_schema import validated

from gates import golden
from gates.__main__ import main
from gates.hardware import here

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/gate-in-ci"
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


@pytest.mark.parametrize("name", [".github/workflows/gate.yml", "examples/gate-in-ci/.github/workflows/numerics.yml"])
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
