"""What is read off a source tree of SGLang: a made-up one in both shapes of declaration, then the installed one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from experiments.audit import declared_flags, declared_variables
from experiments.audit.audit import audit, launch_of
from experiments.audit.installed import TESTED, Installed, installed, locate, read, version
from experiments.audit.rules.communication import TURNED_OFF
from experiments.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.audit.launch import Launch

FIELDS = """
class Spec(msgspec.Struct):
    plain: A[int, "Help."] = 1
    _hidden: A[Optional[bool], Arg(no_cli=True)] = None
    switch: A[bool, "Deprecated. Use --other."] = False
    tri_state: A[Optional[bool], Arg(help="Help.", action=argparse.BooleanOptionalAction)] = None
    listed: A[Optional[str], Arg(help="Help.", choices=KINDS, aliases=["--kinds"])] = None
    literal: A[Literal["ar", "rs"], Arg(help="Help.", cli_name="--reduction")] = "ar"
    parsed: A[int, Arg(help="Help.", type_parser=human_readable_int)] = 1
    many: A[Optional[List[int]], Arg(help="Help.", nargs="*")] = None
    not_a_flag: int = 3

KINDS = ["one", "two"]
"""
CALLS = """
def add_cli_args(parser):
    parser.add_argument("--old", "--older", type=int, dest="field", choices=KINDS)
    parser.add_argument("--gone", action=DeprecatedAction, error_message="use --plain")
    parser.add_argument("--was-a-switch", action=DeprecatedStoreTrueAction, new_flag="--switch")
    parser.add_argument("--renamed", action=DeprecatedAliasStoreAction, new_flag="--plain")
    parser.add_argument("positional")

def _handle_dspark(server_args):
    declare_resolution(server_args, "_handle_dspark", plain=1)

@register_post_process
def _listed(view):
    declared = {}
    declared["listed"] = None
    return declared

@register_post_process
def _many(view):
    return {"many": [1]}

def not_a_pass(view):
    return {"literal": "rs"}
"""
ENVIRON = """
class Envs:
    SGLANG_ONE = EnvBool(False)
    SGLANG_TWO = EnvIntWithAlias(3, deprecated_name="SGLANG_DOS")

_DEPRECATED_ENVS: Dict[str, _DeprecatedEnv] = {
    "SGLANG_OLD": _DeprecatedEnv(replacement="SGLANG_ONE", note="Since " "long."),
    "SGLANG_GONE": _DeprecatedEnv(),
}
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of another version, with a test's and a kernel's variables."""
    files = {
        "_version.py": "__version__ = version = '0.9.1'\n",
        "srt/server_args.py": CALLS,
        "srt/arg_groups/fields/spec.py": FIELDS,
        "srt/environ.py": ENVIRON,
        "srt/other.py": 'os.getenv("SGLANG_READ")  # SGLANG_TALKED_ABOUT\n',
        "kernels/a.cuh": 'getenv("SGLANG_IN_KERNEL");\n',
        "test/t.py": 'os.environ["SGLANG_IN_TEST"]\n',
    }
    for name, text in files.items():
        path = tmp_path / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "sglang"


def test_flags_of_both_shapes_are_read_with_their_form() -> None:
    flags = {one.name: one for one in declared_flags.flags({"fields": FIELDS, "calls": CALLS})}
    forms = {name: (one.takes, one.kind, one.choices, one.aliases) for name, one in flags.items()}
    assert forms == {
        "--plain": ("value", "int", (), ()),
        "--switch": ("nothing", "str", (), ()),
        "--tri-state": ("nothing", "str", (), ("--no-tri-state",)),
        "--listed": ("value", "str", ("one", "two"), ("--kinds",)),
        "--reduction": ("value", "str", ("ar", "rs"), ()),
        "--parsed": ("value", "str", (), ()),
        "--many": ("either", "str", (), ()),
        "--old": ("value", "int", ("one", "two"), ("--older",)),
        "--gone": ("nothing", "str", (), ()),
        "--was-a-switch": ("nothing", "str", (), ()),
        "--renamed": ("value", "str", (), ()),
    }
    deprecated = {name: one.deprecated for name, one in flags.items() if one.deprecated}
    assert deprecated == {
        "--switch": "Deprecated. Use --other.",
        "--gone": "use --plain",
        "--was-a-switch": "--switch",
        "--renamed": "--plain",
    }
    assert flags["--old"].field == "field"
    assert [name for name, one in flags.items() if one.refused] == ["--gone"]


def test_variables_are_read_with_their_former_names() -> None:
    assert {one.name: (one.kind, one.deprecated) for one in declared_variables.variables(ENVIRON)} == {
        "SGLANG_ONE": ("EnvBool", None),
        "SGLANG_TWO": ("EnvIntWithAlias", None),
        "SGLANG_DOS": ("EnvStr", "use SGLANG_TWO"),
        "SGLANG_OLD": ("EnvStr", "SGLANG_ONE Since long."),
        "SGLANG_GONE": ("EnvStr", "removed without replacement"),
    }


def test_a_tree_is_read_without_its_tests_and_without_what_comments_say(tree: Path) -> None:
    seen = read(tree, version(tree))
    assert seen.version == "0.9.1"
    assert seen.mentioned == {"SGLANG_READ", "SGLANG_IN_KERNEL"}
    assert seen.overrides == {"plain": {"_handle_dspark"}, "many": {"_many"}, "listed": {"_listed"}}
    assert seen.flag("--kinds") == seen.flag("--listed") == seen.flag("--lis")


def test_the_package_of_the_named_interpreter_is_the_one_that_is_read(tree: Path, tmp_path: Path) -> None:
    """A stand-in that says what an interpreter of another environment would."""
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho '[\"'$PYTHONPATH{tree}'\"]'\n")
    python.chmod(0o755)
    here = {"PYTHONPATH": ""}
    assert locate(Command(("numactl", "-N0", str(python), "-m", "sglang.launch_server"), here)) == tree
    assert locate(Command((str(python),), {"PYTHONPATH": "/elsewhere"})) is None  # the child's own path counts
    assert (
        installed(Command((str(python),), here)) is None
    )  # no --model-path: its flags have moved to where nobody looks
    (tree / "srt/server_args.py").write_text(f'{CALLS}parser.add_argument("--model-path")')
    (tree / "_version.py").write_text("__version__ = '0.9.2'")
    found = installed(Command((str(python), "-m", "sglang.launch_server"), here))
    assert found is not None
    assert (found.version, found.flags["--gone"].deprecated) == ("0.9.2", "use --plain")


def test_an_interpreter_that_is_not_there_or_has_no_sglang_has_none(tmp_path: Path) -> None:
    assert installed(Command((str(tmp_path / "bin/python3"), "-m", "sglang.launch_server"))) is None
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho '[]'\n")
    python.chmod(0o755)
    assert installed(Command((str(python),))) is None


def test_without_an_sglang_of_its_own_a_command_is_held_against_this_program_s(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where `python3` is the system's, for nobody has activated the environment."""
    command = Command((str(tmp_path / "bin/python3"), "-m", "sglang.launch_server", "--plian", "1"))
    (tree / "srt/server_args.py").write_text(f'{CALLS}parser.add_argument("--model-path")')
    monkeypatch.setattr("experiments.audit.installed._own", lambda: [str(tree)])
    found = {one.code: one for one in audit(launch_of(command, "B200"))}
    assert "in 0.9.1, this program's own" in found["sglang-missing"].reason
    assert found["flag-unknown"].source.startswith("sglang 0.9.1")
    monkeypatch.setattr("experiments.audit.installed._own", list)
    (only,) = audit(launch_of(command, "B200"))
    assert "were looked up nowhere" in only.reason


@pytest.fixture(scope="module")
def real() -> Installed:
    found = installed(Command((sys.executable, "-m", "sglang.launch_server")))
    if found is None:
        pytest.skip("SGLang's sources are not installed here")
    if found.version != TESTED:
        pytest.skip(f"SGLang {found.version} is installed; this was written against {TESTED}")
    return found


def test_the_installed_sglang_knows_the_names_of_the_post(real: Installed) -> None:
    post = "tp-size trust-remote-code speculative-algorithm speculative-num-steps speculative-eagle-topk"
    for name in f"{post} flashinfer-allreduce-fusion-backend mem-fraction-static disable-radix-cache".split():
        assert real.flags[f"--{name}"].name == f"--{name}"
    known = {*real.variables, *real.mentioned}
    assert {"SGLANG_ENABLE_METADATA_GLUE_GRAPH", "SGLANG_OPT_FUSED_KDA_VERIFY", "SGLANG_SIMULATE_ACC_LEN"} <= known
    assert not known & {"SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH", "SGLANG_ENABLE_SPEC_V2"}
    assert real.variables["SGLANG_DSPARK_FAST_SAMPLING"].deprecated
    assert {flag.name for flag in real.matching("--cuda-graph-max-bs")} == {
        "--cuda-graph-max-bs-decode",
        "--cuda-graph-max-bs-prefill",
    }


@pytest.mark.parametrize(
    ("field", "function"),
    [
        *(
            (f"speculative_{key}", f"_handle_{name}")
            for key in ("num_steps", "eagle_topk")
            for name in ("dspark", "dflash")
        ),
        ("speculative_num_draft_tokens", "_handle_eagle_family"),
        ("page_size", "_mla_backend_page_constraints"),
        *(("flashinfer_allreduce_fusion_backend", function) for function in TURNED_OFF.values()),
    ],
)
def test_the_overrides_that_rules_speak_of_are_in_the_installed_source(
    real: Installed, field: str, function: str
) -> None:
    assert function in real.overrides[field]


LINES = {
    "--tp-size 4 --trust-remote-code": True,
    "--tp 4": True,
    "--disable-cuda-graph": True,
    "--cuda-graph-max-bs 4": False,
    "--speculative-num-stepz 5": False,
    "--trust-remote-code true": False,
    "--attention-backend trtlm_mla": False,
    "--tp-size four": False,
    "--tp-size": False,
    "--mem-fraction-static most": False,
}
"""Whether a server would get as far as reading its model."""

PARSER = """
import argparse, contextlib, io, json, shlex, sys, torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(add_help=False)
ServerArgs.add_cli_args(parser)

def takes(line):
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            parser.parse_args(["--model-path", "x", *shlex.split(line)])
    except SystemExit:
        return False
    return True

flags = {name: [one.dest, one.nargs, sorted(map(str, one.choices or []))]
    for one in parser._actions for name in one.option_strings}
print(json.dumps([flags, {line: takes(line) for line in json.loads(sys.argv[1])}]))
"""


@pytest.fixture(scope="module")
def theirs(real: Installed) -> tuple[dict[str, tuple[str, Any, list[str]]], dict[str, bool]]:
    """The flags of SGLang's own parser, and which of the lines it takes."""
    command = [sys.executable, "-c", PARSER, json.dumps([*LINES])]
    asked = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert asked.returncode == 0, asked.stderr
    flags, taken = json.loads(asked.stdout.splitlines()[-1])
    return flags, taken


@pytest.mark.slow
def test_what_is_read_is_what_its_own_parser_takes(real: Installed, theirs: tuple[dict[str, Any], Any]) -> None:
    """Spellings, fields, arity and choices of every flag, against SGLang's argparse."""
    assert {*theirs[0]} == {*real.flags}
    for name, (field, nargs, choices) in theirs[0].items():
        flag = real.flags[name]
        assert flag.field == field
        assert flag.takes == "either" or (nargs == 0) == (flag.takes == "nothing"), name
        assert not flag.choices or sorted(flag.choices) == choices, name


@pytest.mark.slow
def test_its_own_parser_ends_on_the_lines_that_the_audit_calls_errors(theirs: tuple[Any, dict[str, bool]]) -> None:
    assert theirs[1] == LINES


@pytest.mark.parametrize("line", LINES)
def test_the_audit_calls_errors_what_the_parser_ends_on(
    launch: Callable[..., Launch], real: Installed, line: str
) -> None:
    severities = {one.severity for one in audit(launch(line, installed=real))}
    assert ("error" not in severities) == LINES[line]
