"""engine=sglang_cpu without its environment: the command line, what it refuses, its group's defaults, its plugin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hydra import compose, initialize_config_dir

from experiments import schema
from experiments.checks import checked
from experiments.composition import convert
from experiments.engines.registry import engine_of
from experiments.engines.sglang_cpu import PLATFORM, PYTHON
from experiments.errors import ConfigError
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec

PLUGIN = ROOT / "plugins/sglang_cpu"
MODEL = {"config.json": '{"max_position_embeddings": 4096}', "tokenizer.json": "{}", "model.safetensors": ""}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    for name, text in MODEL.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def composed(model: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CellSpec]:
    """`engine=sglang_cpu` and more, as run.py composes it, with a Python that is there."""
    monkeypatch.setenv(PYTHON, sys.executable)
    schema.register()

    def cell(*overrides: str) -> CellSpec:
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            return convert(compose("config", ["engine=sglang_cpu", f"model.path={model}", *overrides])).cell

    return cell


def test_the_engine_brings_its_model_and_no_speculation(composed: Callable[..., CellSpec]) -> None:
    cell = composed()
    assert (cell.model.name, cell.speculation.algorithm, cell.engine.name) == ("small_llama", "none", "sglang_cpu")


def test_an_explicit_choice_wins_over_the_engine_s(composed: Callable[..., CellSpec]) -> None:
    assert composed("model=ling_tiny").model.name == "ling_tiny"
    assert composed("speculation=nextn").speculation.algorithm == "nextn"


def test_the_command_line(composed: Callable[..., CellSpec], model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere/else")
    cell = checked(composed("+env.OWN='1'", "engine.flags.max-total-tokens='4096'"))
    command = engine_of(cell).command(cell, port=4711, served_name="n")
    assert command.argv[:3] == (sys.executable, "-m", "sglang.launch_server")
    flags = " ".join(command.argv[3:])
    for part in (
        f"--model-path {model}",
        "--device cpu",
        "--dtype float32",
        "--attention-backend torch_native",
        "--sampling-backend pytorch",
        "--grammar-backend none",
        "--disable-overlap-schedule --max-total-tokens 4096 --sleep-on-idle",
        "--mem-fraction-static 0.2",
        "--host 127.0.0.1",
        "--port 4711",
        "--served-model-name n",
    ):
        assert part in flags
    assert "--num-threads" not in flags
    assert "--speculative" not in flags
    wanted = {"SGLANG_PLATFORM": PLATFORM, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "OWN": "1"}
    assert command.env.items() >= wanted.items()


@pytest.mark.parametrize(
    ("overrides", "key", "why"),
    [
        (["engine.device=cuda"], "engine.device", "allowed: cpu"),
        (["speculation=nextn"], "speculation", "none"),
        (["+kernels.kda_verify=fused"], "kernels.kda_verify", "ling_runtime"),
        (["model.path=/no/where"], "model.path", "make sglang-cpu"),
        (["model.tokenizer_path=/"], "model.tokenizer_path", "tokenizer.json"),
        (["workload=post_small", "workload.input_len=4000"], "workload", "4096 tokens"),
        (["engine.tp_size=2"], "engine.tp_size", "sglang_cpu"),
    ],
)
def test_what_it_cannot_do_is_refused(
    composed: Callable[..., CellSpec], overrides: list[str], key: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        checked(composed(*overrides))
    assert str(refused.value).startswith(key)


def test_a_missing_environment_is_named_with_what_makes_it(
    composed: Callable[..., CellSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = composed()
    monkeypatch.setenv(PYTHON, "/no/python")
    with pytest.raises(ConfigError, match=rf"/no/python is missing; `make sglang-cpu` makes it, or {PYTHON}"):
        engine_of(cell).check_installed(cell)
    own = replace(cell, engine=replace(cell.engine, command=("server",)))
    engine_of(own).check_installed(own)  # who names a program needs no environment


def test_the_entry_point_is_the_one_that_the_engine_asks_for() -> None:
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["sglang.srt.platforms"] == {PLATFORM: "sglang_cpu_platform.plugin:activate"}


SAY = """
import json
from sglang.srt.platforms import current_platform as p
from sglang.srt.platforms.interface import PlatformCapabilities
import torchvision
print(json.dumps([type(p).__name__, p.is_out_of_tree(), p.is_cpu(), p.get_dispatch_key_name(), p.device_type,
                  p.get_default_attention_backend(), p.capabilities == PlatformCapabilities()]))
"""


@pytest.mark.whole
@pytest.mark.process
def test_sglang_finds_the_plugin_and_takes_its_platform(tmp_path: Path) -> None:
    """As an installation would have it: by its metadata. Also that torchvision can be imported, which fails without."""
    metadata = tmp_path / "sglang_cpu_platform-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-cpu-platform\nVersion: 0.1.0\n")
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    for group, points in project["entry-points"].items():
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PLUGIN}", "SGLANG_PLATFORM": PLATFORM}
    done = subprocess.run([sys.executable, "-c", SAY], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["SmallCpu", True, False, "native", "cpu", "torch_native", True]
