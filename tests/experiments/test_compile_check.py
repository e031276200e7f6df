"""Every kernel of a step compiles for a card that this machine does not have."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import compile_check

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
TINY = Path(__file__).parents[2] / "ling_runtime/checkpoints/ling_tiny"
EXPECTED = {
    "_linear",
    "_norm",
    "walk",
    "_normed_linear",
    "_split",
    "_norm_gate",
    "_norm_select",
    "_expert_hidden",
    "_settle",
    "_commit",
    *("_wide", "_gates", "_count", "_plan", "_order", "_up", "_down"),
    *("_ready", "_couple", "_solve", "_walk_chunks", "_read_chunks", "_keep", "_expand", "_attend_prompt"),
    "_place_heads",
    "_split_block",
    "_merge_block",
    "_next",
    "_last",
}


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("capability", ["90", "100"])
def test_a_step_compiles_without_the_card(tmp_path: Path, capability: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "experiments.compile_check", "--model-path", str(TINY), "--capability", capability]
    command += ["--rows", "2", "6", "--pdl", "early", "--context", "256", "--draft-path", f"{TINY}_dspark_8"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=220)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {line.split()[0] for line in done.stdout.splitlines()[:-1]} >= EXPECTED
    assert done.stdout.splitlines()[-1].endswith("0 over the limit of shared memory")


LAYOUTS = """#blocked = #ttg.blocked<{sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [1], order = [0]}>
#blocked1 = #ttg.blocked<{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [1], order = [0]}>
"""


def made(name: str, layout: str, kind: str = "128xf32") -> compile_check.Compiled:
    flattened = f"%1 = tt.reshape %0 allow_reorder : tensor<{kind}, {layout}> -> tensor<{kind}, #blocked1>"
    return compile_check.Compiled(name, 0, 1, compile_check.orders(f"{LAYOUTS}{flattened}\n"))


def test_kernels_of_the_same_rows_add_in_one_order() -> None:
    ready, other = made("ready", "#blocked"), made("walk", "#blocked1")
    assert compile_check.several_orders([ready, other]) == ["128xf32"]
    assert compile_check.several_orders([ready, made("walk", "#blocked"), made("_norm", "#blocked1")]) == []
    assert compile_check.several_orders([ready, made("walk", "#blocked1", kind="8xf32")]) == []
