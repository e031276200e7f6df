"""How a greedy step on graphs is cut into replays and fed, as switches; the defaults are what docs/gpu.md measured.

The others are here to be measured against that, in a server or by `experiments.step_bench --ablation`; none changes a
token. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Switches:
    fused_verify_extend: bool = False
    """Verification with acceptance, and the draft's extension behind it, as one graph instead of two: one launch and
    one seam less, and results that leave only when both have run.
    """
    extend_graph: bool = True
    """False: the extension is launched kernel by kernel, as it was in the post before its draft-extend graph fix."""
    glue_graph: bool | None = None
    """What a step looks up by slot: None inside its graphs, in one kernel; else by a chain of tensor operations before
    them, True as a graph of its own, False one by one, as a backend has it that refills its metadata on the host.
    """
    result_ring: bool = False
    """Verification writes its results into memory of the host itself, instead of a copy on another stream."""


DEFAULT = Switches()
