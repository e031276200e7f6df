"""A command line that makes no sense ends in one line of what is allowed, before a card is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from experiments import allowed
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINTS = ROOT / "ling_runtime/checkpoints"
TINY, DRAFT = str(CHECKPOINTS / "ling_tiny"), str(CHECKPOINTS / "ling_tiny_dspark_8")
EACH = """
import contextlib, importlib, io, json, sys
main, ends = importlib.import_module(sys.argv[1]).main, []
for line in json.loads(sys.argv[2]):
    sys.argv[1:] = line
    said, code = io.StringIO(), None
    with contextlib.redirect_stderr(said):
        try:
            code = main()
        except SystemExit as end:
            code = end.code
    ends.append((code, said.getvalue()))
print(json.dumps(ends))
"""
BAD = {
    "experiments.compile_check": {
        ("--rows", "0"): "1 to 64", ("--rows", "65"): "1 to 64", ("--rows",): "at least one",
        ("--blocks", "0"): "1 to 63", ("--blocks", "64"): "1 to 63",
        ("--prompt", "-5"): "0 and more", ("--context", "0"): "1 and more",
        ("--ranks", "0"): "1 and more", ("--ranks", "3"): "what divides", ("--model-path", "/nope"): "config.json",
        ("--model-path", DRAFT): "allowed: True", ("--kernel", "foo"): "OP=VARIANT",
        ("--kernel", "foo=bar"): "kda_window", ("--kernel", "linear=foo"): "triton",
        ("--kernel", "kda_window=reference"): "Triton",
        ("--draft-path", TINY): "LingDSparkModel", ("--draft-path", DRAFT): "--blocks empty",
    },
    "experiments.step_bench": {
        ("--rows", "0"): "1 and more", ("--rows", "-1"): "1 and more", ("--rows", "6", "65"): "1 to 64",
        ("--nextn", "0"): "1 to 63", ("--dspark", "64"): "1 to 63", ("--context", "0"): "1 and more",
        ("--layers", "0"): "3 to 42", ("--layers", "43"): "3 to 42", ("--layers", "2"): "3 to 42",
        ("--model-path", "/nope"): "config.json", ("--accept", "nan"): "1 and more", ("--steps", "1"): "2 and more",
        ("--accept", "10", "--dspark", "8"): "1 to 9",
        ("--draft-path", DRAFT, "--dspark", "8"): "a draft of this model",
        ("--out", "/nope/x.json"): "a folder that exists",
    },
    "experiments.loop_bench": {
        ("--drafts", "-1"): "0 to 63", ("--drafts", "0", "--dspark"): "1 to 63", ("--accept", "9"): "1 to 4",
        ("--host-us", "-1"): "0 and more", ("--chunk", "0"): "1 and more", ("--model-path", "/nope"): "config.json",
        ("--draft-path", DRAFT, "--dspark"): "a draft of this model",
    },
    "experiments.prefill_bench": {
        ("--part", "0"): "1 and more", ("--layers", "99"): "3 to 42", ("--model-path", "/nope"): "config.json",
    },
    "experiments.prefill_sweep": {("--rows", "63"): "64 and more", ("--warm", "foo"): "I/N"},
    "experiments.tile_sweep": {("--rows", "65"): "1 to 64", ("--warm", "foo"): "I/N", ("--warm", "0/0"): "I/N"},
    "tests.ling_runtime.soak.steps": {
        ("--steps", "0"): "1 and more", ("--readings", "0"): "1 and more", ("--requests", "0"): "1 and more",
        ("--drafts", "-1"): "0 and more",
    },
}  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("program", BAD)
def test_it_names_the_option_and_what_is_allowed(program: str) -> None:
    pytest.importorskip("triton")
    words = [sys.executable, "-c", EACH, program, json.dumps([*BAD[program]])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-2000:]
    for (line, part), (code, said) in zip(BAD[program].items(), json.loads(done.stdout), strict=True):
        last = said.splitlines()[-1]
        assert (code, line[0] in last, part in last) == (2, True, True), (line, code, said)


def test_what_is_allowed_is_read(tmp_path: Path) -> None:
    assert allowed.whole(1, 3)("3") == 3
    assert allowed.number(0)("2.5") == 2.5
    assert allowed.share("1/4") == (1, 4)
    assert allowed.file(str(tmp_path / "x.json")) == tmp_path / "x.json"
    assert allowed.checkpoint(str.upper)("a") == "A"
