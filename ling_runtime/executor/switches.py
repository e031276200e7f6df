"""How a greedy step on graphs is cut into replays and fed, as switches; the defaults are what docs/gpu.md measured.

The others are here to be measured against that, in a server or by `experiments.step_bench --ablation`; none changes a
token. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ling_runtime.config import ConfigError


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


def check(switches: Switches, *, drafting: bool, blocks: bool = False) -> None:
    """ConfigError for a switch of what the step does not have; under DSPARK (`blocks`) it has none of them."""
    if blocks and switches != DEFAULT:
        names = [field.name for field in fields(switches) if getattr(switches, field.name) != field.default]
        raise ConfigError(f"{', '.join(names)}: not under speculative_algorithm DSPARK; allowed: NEXTN or none")
    if switches.fused_verify_extend and not switches.extend_graph:
        raise ConfigError("fused_verify_extend: the extension is part of its graph; allowed with extend_graph only")
    if not drafting:
        for name in ("fused_verify_extend", "extend_graph"):
            if getattr(switches, name) != getattr(DEFAULT, name):
                raise ConfigError(f"{name}: allowed under speculative_algorithm NEXTN, whose drafts are extended")
