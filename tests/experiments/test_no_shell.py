"""Nothing of ours passes through a shell, listens where others reach it, or runs what a checkpoint brings along."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from experiments.checks import checked
from experiments.clients import bench_serving
from experiments.command import Command
from experiments.engines.registry import ENGINES, engine_of
from experiments.errors import ConfigError
from experiments.ports import free_port, is_loopback, reached
from experiments.process import Supervised
from experiments.server import Server
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.spec import CellSpec

PACKAGES = ("experiments", "gates", "analysis", "ling_runtime", "hydra_plugins", "tests/fakes")
SOURCES = [ROOT / "run.py", *(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))]
SHELLS = {"system", "popen", "getoutput", "getstatusoutput", "create_subprocess_shell", "eval", "exec"}
WRITERS = {"write_text", "write_bytes", "dump"}
FILES = {
    "experiments/step_bench.py": "times of kernels, on a machine with a GPU and nothing else",
    "experiments/loop_bench.py": "as above",
    "experiments/ablation.py": "as above",
    "experiments/prefill_bench.py": "as above",
    "experiments/supervisor.py": "masks by itself, for it outlives the driver",
    "experiments/process.py": "what Python says when a supervisor does not start",
    "experiments/clients/recorded_serving.py": "into a pipe of the supervisor",
    "experiments/comparison/ab.py": "numbers, and hashes of prompts",
    "analysis/__main__.py": "the report, masked",
    "gates/reports.py": "the page for GitHub, masked",
}
AWKWARD = (
    "$(touch x)",
    "`touch x`",
    "a b",
    "'q' \"r\"",
    "; touch x",
    "&& touch x",
    "| tee x",
    "> x",
    "*",
    "~",
    "\\n\n",
    "%é",
)


def calls(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def called(call: ast.Call) -> str:
    """The last part of a call's name; `re.compile` is `compile`."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def test_no_call_of_ours_starts_a_shell() -> None:
    assert len(SOURCES) > 150, "they lie somewhere else now, and this test looks at nothing"
    for path in SOURCES:
        for call in calls(path):
            own = isinstance(call.func, ast.Name) or ast.unparse(call.func).split(".")[0] in (
                "os",
                "subprocess",
                "asyncio",
            )
            assert not (own and called(call) in SHELLS), f"{path}:{call.lineno}"
            keywords = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert keywords.get("shell", "False") == "False", f"{path}:{call.lineno}"


def test_only_one_module_writes_what_is_kept() -> None:
    """record.py masks; FILES says where another way is taken, and why no secret takes it."""
    found = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        for call in calls(path)
        if isinstance(call.func, ast.Attribute) and (called(call) in WRITERS or opens_to_write(call))
    }
    assert {place for place in found if place.startswith(("experiments/", "gates/", "analysis/"))} == {*FILES}
    assert "masked(page(" in (ROOT / "analysis/__main__.py").read_text()
    assert "masked(page))" in (ROOT / "gates/reports.py").read_text()


def test_every_program_guards_its_terminal() -> None:
    """But children, whose output goes through the supervisor, and measurements of kernels."""
    programs = [path for path in SOURCES if '__name__ == "__main__"' in path.read_text()]
    ours = {str(path.relative_to(ROOT)) for path in programs if "terminal.guard()" not in path.read_text()}
    ours = {place for place in ours if not place.startswith(("ling_runtime/", "tests/"))}
    children = {"experiments/supervisor.py", "experiments/clients/recorded_serving.py"}
    benches = ("step_bench", "loop_bench", "prefill_bench", "tile_sweep", "prefill_sweep", "compile_check")
    kernels = {f"experiments/{name}.py" for name in benches}
    assert ours == children | kernels | {"gates/hardware.py"}


def opens_to_write(call: ast.Call) -> bool:
    modes = [ast.unparse(argument).strip("'") for argument in call.args]
    return called(call) == "open" and any(mode[:1] in ("w", "a", "x") and len(mode) <= 3 for mode in modes)


@pytest.mark.process
@pytest.mark.parametrize("secrets", [False, True])
def test_arguments_and_variables_arrive_as_they_are(
    secrets: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the child's output goes through a filter."""
    monkeypatch.setattr("experiments.secrets.forms", lambda: ["planted-1"] if secrets else [])
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['AWKWARD']]))"
    argv = (sys.executable, "-c", program, *AWKWARD)
    command = Command(argv, {"AWKWARD": "\n".join(AWKWARD)})
    with Supervised.start(command, log=tmp_path / "log") as child:
        assert child.wait(20.0) == 0
    assert json.loads((tmp_path / "log").read_text()) == [[*AWKWARD], "\n".join(AWKWARD)]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    pasted = subprocess.run(["bash", "-c", command.shell()], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert json.loads(pasted.stdout) == [[*AWKWARD], "\n".join(AWKWARD)]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.process
def test_a_line_that_a_kill_cut_off_ends_in_no_half_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.secrets.forms", lambda: ["planted-secret"])
    program = "import os; os.write(1, b'whole planted-secret\\nhalf planted-sec'); os.kill(os.getpid(), 9)"
    with Supervised.start(Command((sys.executable, "-c", program)), log=tmp_path / "log") as child:
        assert child.wait(20.0) == -9
    assert (tmp_path / "log").read_text() == "whole ***\nhalf ***"


@pytest.mark.process
def test_a_child_that_writes_much_while_it_is_stopped_is_not_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a pipe holds, after TERM."""
    monkeypatch.setattr("experiments.secrets.forms", lambda: ["planted-secret"])
    program = (
        "import signal, sys, time\n"
        "def stop(*_):\n"
        "    print('planted-secret ' * 100_000, flush=True); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)"
    )
    with Supervised.start(Command((sys.executable, "-c", program)), log=tmp_path / "log") as child:
        while not child.tail():
            assert child.alive()
        assert child.stop() == 3
    lines = (tmp_path / "log").read_text().splitlines()
    assert (lines[0], len(lines[1].split()), {*lines[1].split()}) == ("up", 100_000, {"***"})


def hosts(command: Command) -> list[str]:
    return [value for flag, value in zip(command.argv, command.argv[1:], strict=False) if flag == "--host"]


def test_every_engine_that_is_started_is_told_to_listen_to_this_machine_alone(
    make_cell: Callable[..., CellSpec],
) -> None:
    cell = make_cell()
    for engine in ENGINES.values():
        if engine.started:
            assert hosts(engine.command(cell, port=1, served_name="n")) == ["127.0.0.1"], engine.name
            exposed = replace(cell, engine=replace(cell.engine, host="0.0.0.0"))
            assert hosts(engine.command(exposed, port=1, served_name="n")) == ["0.0.0.0"], engine.name


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"host": "example.org"}, "engine.host"),
        ({"host": "203.0.113.7"}, "engine.host"),
        ({"host": "::"}, "engine.host"),
        ({"extra_args": ("--host", "0.0.0.0")}, "--host is engine.host"),
        ({"extra_args": ("--host=0.0.0.0",)}, "--host is engine.host"),
    ],
)
def test_no_other_address_gets_in_by_the_back_door(
    keys: dict[str, object], problem: str, make_cell: Callable[..., CellSpec]
) -> None:
    cell = make_cell()
    with pytest.raises(ConfigError, match=problem):
        checked(replace(cell, engine=replace(cell.engine, **keys)))  # type: ignore[arg-type]


def listening(server: Server) -> set[str]:
    family = psutil.Process(server.process.supervisor_pid).children(recursive=True)
    connections = [one for process in family for one in process.net_connections("inet")]
    return {one.laddr.ip for one in connections if one.status == psutil.CONN_LISTEN}


@pytest.mark.process
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_server_listens_there_and_says_so_where_others_reach_it(
    host: str, make_cell: Callable[..., CellSpec], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = make_cell()
    cell = replace(cell, engine=replace(cell.engine, host=host))
    with Server(cell, log=tmp_path / "log") as server:
        server.wait_ready(10.0)
        assert listening(server) == {host}
    warned = "warning: engine.host=0.0.0.0" in capsys.readouterr().err
    assert warned == (host == "0.0.0.0")
    assert server.url.startswith("http://127.0.0.1:")


def test_addresses() -> None:
    assert (is_loopback("127.0.0.1"), is_loopback("127.1.2.3"), is_loopback("0.0.0.0")) == (True, True, False)
    assert (reached("0.0.0.0"), reached("127.1.2.3")) == ("127.0.0.1", "127.1.2.3")
    assert free_port() != free_port()


def test_code_of_a_checkpoint_is_trusted_where_the_cell_says_so_and_nowhere_else(
    make_cell: Callable[..., CellSpec],
) -> None:
    cell = make_cell()
    trusting = replace(cell, engine=replace(cell.engine, name="sglang", trust_remote_code=True))
    for one, wanted in ((cell, False), (trusting, True)):
        client = bench_serving.command(one, url="http://127.0.0.1:1", dataset=Path("data"), served_name="n")
        server = engine_of(one).command(one, port=1, served_name="n")
        assert ("--trust-remote-code" in client.argv, "--trust-remote-code" in server.argv) == (wanted, wanted)
    for path in SOURCES:
        for call in calls(path):
            keywords = {word.arg: ast.unparse(word.value) for word in call.keywords}
            assert keywords.get("trust_remote_code", "False") == "False", f"{path}:{call.lineno}"


PLANTED_TOKENIZER = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
Path({mark!r}).touch()
from transformers import PreTrainedTokenizerFast
class Planted(PreTrainedTokenizerFast):
    pass
"""


LOADER = """
import contextlib, sys
from pathlib import Path
from transformers import AutoTokenizer
from experiments.clients.recorded_serving import distrust
model, mark, load = sys.argv[1], Path(sys.argv[2]), AutoTokenizer.from_pretrained
distrust()
with contextlib.suppress(ValueError):
    AutoTokenizer.from_pretrained(model, trust_remote_code=True)
distrusted = mark.exists()
load(model, trust_remote_code=True)
print([distrusted, mark.exists()])
"""


@pytest.mark.process
def test_the_client_runs_no_tokenizer_s_code(checkpoint: Path, tmp_path: Path) -> None:
    """SGLang's own loader of tokenizers asks for trust every time, and gets it without what ours does."""
    mark, model = tmp_path / "ran", tmp_path / "model"
    model.mkdir()
    for file in checkpoint.iterdir():
        (model / file.name).symlink_to(file)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Planted", "auto_map": {"AutoTokenizer": [None, "planted.Planted"]}}
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "planted.py").write_text(PLANTED_TOKENIZER.format(mark=str(mark)))
    command = [sys.executable, "-c", LOADER, str(model), str(mark)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.stdout == "[False, True]\n", done.stderr
