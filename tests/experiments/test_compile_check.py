"""Every kernel of a step compiles for a card that this machine does not have."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import compile_check, compiled_kernel

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
#blocked2 = #ttg.blocked<{sizePerThread = [2], threadsPerWarp = [32], warpsPerCTA = [1], order = [0]}>
"""
OVER_AN_AXIS = """%3 = "tt.reduce"(%1) <{{axis = 1 : i32}}> ({{
    ^bb0(%a: f32, %b: f32):
      %2 = {operation} %a, %b : f32
      tt.reduce.return %2 : f32
    }}) : (tensor<{kind}, {layout}>) -> tensor<8xf32, #ttg.slice<{{dim = 1, parent = {layout}}}>>
"""
FLATTENED = "%1 = tt.reshape %0 allow_reorder : tensor<{kind}, {layout}> -> tensor<{kind}, #blocked2>\n" + (
    OVER_AN_AXIS.replace("{layout}", "#blocked2")
)


def made(
    name: str, layout: str, kind: str = "128xf32", form: str = FLATTENED, operation: str = "arith.addf"
) -> compiled_kernel.Compiled:
    ttgir = LAYOUTS + form.format(kind=kind, layout=layout, operation=operation)
    return compiled_kernel.Compiled(name, 0, 1, compiled_kernel.orders(ttgir))


FORMS = pytest.mark.parametrize("form", [FLATTENED, OVER_AN_AXIS], ids=["flattened", "over an axis"])


@FORMS
def test_a_kernel_adds_in_one_order_in_every_window(form: str) -> None:
    one, other = made("_norm", "#blocked", form=form), made("_norm", "#blocked1", form=form)
    assert compiled_kernel.several_orders([[one], [one, one]]) == []
    assert compiled_kernel.several_orders([[one], [other]]) == ["_norm"]
    assert compiled_kernel.several_orders([[one], [one, other]]) == ["_norm"]
    assert compiled_kernel.several_orders([[one], []]) == ["_norm"]


def test_two_kernels_that_make_the_same_rows_count_as_one() -> None:
    ready, walk = made("ready", "#blocked"), made("walk", "#blocked")
    assert compiled_kernel.several_orders([[walk], [ready, walk]]) == []
    assert compiled_kernel.several_orders([[walk], [ready, made("walk", "#blocked1")]]) == ["ready and walk"]


@FORMS
@pytest.mark.parametrize("operation", ["arith.maxnumf", "arith.addi"])
def test_what_no_order_changes_may_have_any(form: str, operation: str) -> None:
    one, other = (made("_merge", layout, form=form, operation=operation) for layout in ("#blocked", "#blocked1"))
    assert compiled_kernel.several_orders([[one], [other]]) == []


def test_windows_differ_in_all_that_a_step_may_have_more_of() -> None:
    windows = compile_check.windows_of([1, 6, 17], 8192)
    assert [len(set(each)) for each in zip(*windows, strict=True)] == [3, 3, 2]
    assert max(requests * rows for requests, rows, _ in windows) > 64


CAREFUL = """.visible .entry _settle(.param .u64 a) {
	ld.global.cg.b32 {%r1}, [ %rd1 + 0 ];
	@%p1 bra $L__BB0_2;
	griddepcontrol.wait;
	@%p2 st.global.b32 [ %rd2 + 0 ], {%r1};
	ret;
}"""


@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ("", "", ""),
        ("\tgriddepcontrol.wait;\n", "", "waits in 0 places; one is needed"),
        ("griddepcontrol.wait;", "griddepcontrol.wait;\n\tgriddepcontrol.wait;", "waits in 2 places; one is needed"),
        ("griddepcontrol.wait;", "@%p3 griddepcontrol.wait;", "waits only if %p3"),
        ("@%p1 bra $L__BB0_2;", "@%p1 ret;", "ret; in front of its wait"),
        ("@%p1 bra $L__BB0_2;", "@!%p1 st.global.v2.b32 [ %rd1 ], {%r1};", "st.global.v2.b32 in front of its wait"),
        ("@%p1 bra $L__BB0_2;", "red.global.add.u32 [ %rd1 ], %r1;", "red.global.add.u32 in front of its wait"),
    ],
)
def test_a_kernel_waits_before_it_writes_or_ends(changed: str, to: str, said: str) -> None:
    ptx = CAREFUL.replace(changed, to) if changed else CAREFUL
    assert compiled_kernel.carelessness(ptx) == said
