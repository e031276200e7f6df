"""The switches of a decode step as a table: each off and on, on which steps it shows, and what the post says of it.

`Setting()` is the tuned stack, what a server runs on a card by default, and one side of most switches; a plan of pairs,
which this runtime does without, is on neither. Figures of the post were taken on four B200 with the whole model: they
say how large an effect was there, not what to expect here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from experiments.step_subject import BF16_GATE, TRITON_ONLY, Setting
from ling_runtime.executor.switches import Switches

Step = Literal["1", "6", "5/6"]
"""A verify step of so many rows, or a whole NEXTN step of so many drafts and rows."""
Mode = Literal["in turn", "pinned", "ahead"]
"""A host loop that waits for each step, for the lengths before each, or for neither."""


@dataclass(frozen=True, kw_only=True)
class Post:
    """What the post reports, and under which of its headings; `figure` None: that it was done, and no number."""

    figure: str | None
    section: str


@dataclass(frozen=True, kw_only=True)
class Switch:
    """`off` against `on` in replays of `steps`; a `loop` is the whole NEXTN 5/6 step as a host drives it."""

    name: str
    off: Setting
    on: Setting
    steps: tuple[Step, ...] = ("1", "6", "5/6")
    loop: tuple[Mode, Mode] | None = None
    post: Post | None
    """None: not in the post."""


TUNED = Setting()
UNFUSED = Setting(kernels={"moe": "triton"})
"""The router and the experts as operators of their own: what their own switches are held against."""
NARROW = Setting(kernels=BF16_GATE)
AHEAD: tuple[Mode, Mode] = ("ahead", "ahead")
SEAMS, PDL, KERNELS = (
    "Closing the seams",
    "PDL: stacking the latency floors of small kernels",
    "Two fusions and a retune",
)
WIDTHS = "bf16 router gate and lm_head"
HEAD32 = {"greedy_head": "triton_fp32"}

SWITCHES: tuple[Switch, ...] = (
    Switch(
        name="run-ahead", off=TUNED, on=TUNED, loop=("in turn", "ahead"),
        post=Post(figure="host loop 4.3 ms under a step of 4.9 ms", section="Letting the host run ahead, figure 6"),
    ),
    Switch(
        name="seq-lens-pin", off=TUNED, on=TUNED, loop=("pinned", "ahead"),
        post=Post(figure="485 us a step, median", section="Letting the host run ahead"),
    ),
    Switch(
        name="extend-graph", off=Setting(switches=Switches(extend_graph=False)), on=TUNED, loop=AHEAD,
        post=Post(
            figure="TPOT 3.33 to 1.76 ms, shorter runs and not controlled", section="the table of results"
        ),
    ),
    Switch(
        name="glue-graph", off=Setting(switches=Switches(glue_graph=False)),
        on=Setting(switches=Switches(glue_graph=True)), loop=AHEAD,
        post=Post(figure="5 to 15 us to dispatch an operation that runs 1 to 4", section=SEAMS),
    ),
    Switch(
        name="glue-inside", off=Setting(switches=Switches(glue_graph=True)), on=TUNED, loop=AHEAD, post=None,
    ),
    Switch(
        name="fused-verify-extend", off=TUNED, on=Setting(switches=Switches(fused_verify_extend=True)), loop=AHEAD,
        post=Post(figure=None, section="the command of the NEXTN run, as a flag"),
    ),
    Switch(
        name="result-ring", off=TUNED, on=Setting(switches=Switches(result_ring=True)), loop=AHEAD, post=None,
    ),
    Switch(
        name="pdl-late", off=Setting(pdl="off"), on=Setting(pdl="late"), post=Post(figure=None, section=PDL),
    ),
    Switch(
        name="pdl-early", off=Setting(pdl="late"), on=TUNED,
        post=Post(figure="not deterministic", section=PDL),
    ),
    Switch(
        name="moe-align-pairs", off=Setting(kernels={"moe": "triton_align_two"}),
        on=Setting(kernels={"moe": "triton_align_pairs"}),
        post=Post(figure="about 4 us a layer, on a par with two launches", section=KERNELS),
    ),
    Switch(
        name="no-align", off=Setting(kernels={"moe": "triton_align_pairs"}), on=UNFUSED, post=None,
    ),
    Switch(
        name="swiglu-epilogue", off=Setting(kernels={"moe": "triton_swiglu_apart"}), on=UNFUSED,
        post=Post(figure=None, section=KERNELS),
    ),
    Switch(
        name="single-rounding-combine", off=Setting(kernels={"moe": "triton_combine_rounded"}), on=UNFUSED,
        post=Post(figure=None, section=PDL),
    ),
    Switch(
        name="bv-table", off=Setting(kernels={"kda_window": "triton_bv32"}),
        on=Setting(kernels={"kda_window": "triton"}),
        post=Post(figure="up to 19 % a call: 14.26 to 11.56 us at 6 rows", section=KERNELS),
    ),
    Switch(
        name="router-bf16", off=UNFUSED, on=Setting(kernels={"router": "triton_bf16"}),
        post=Post(figure="not apart from the head", section=WIDTHS),
    ),
    Switch(
        name="lm-head-bf16", off=Setting(kernels=HEAD32), on=TUNED,
        post=Post(figure="not apart from the gate", section=WIDTHS),
    ),
    Switch(
        name="router-and-lm-head-bf16", off=Setting(kernels=HEAD32), on=NARROW,
        post=Post(figure="about +10 %, the largest after run-ahead", section=WIDTHS),
    ),
    Switch(
        name="dense-activation", off=Setting(kernels={"dense_mlp": "reference"}), on=TUNED, steps=("1", "6"), post=None,
    ),
    Switch(name="gate-norm", off=UNFUSED, on=Setting(kernels={"moe_block": "triton_gate_norm"}), post=None),
    Switch(name="gate-norm-bf16", off=TUNED, on=NARROW, post=None),
    Switch(name="streamed", off=Setting(kernels=TRITON_ONLY), on=TUNED, post=None),
    Switch(name="carveout", off=Setting(evenly=False), on=TUNED, post=None),
)  # fmt: skip

BV_CURVE_US = {4: 11.56, 8: 12.53, 16: 12.83, 32: 14.26, 64: 20.7, 128: 38.0}
"""The post's KDA verify kernel at 6 rows, microseconds by value columns of a program (section as KERNELS)."""
