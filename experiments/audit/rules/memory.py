"""Do the weights fit, and can they be divided as asked.

The surprise: only what surely fails is said. Weights alone are held against memory, without cache, graphs or
activations, and every tensor is taken to be divided evenly, though some are whole on every rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.launch import Launch

FRACTION = "--mem-fraction-static"


def weights_fit(launch: Launch) -> Iterator[Finding]:
    if launch.gpus is None or launch.target is None or launch.target.weight_bytes is None:
        return
    total = launch.target.weight_bytes
    if launch.algorithm == "EAGLE" and launch.draft is None:
        total += launch.target.nextn_bytes
    total += (launch.draft and launch.draft.weight_bytes) or 0
    share, room = total / launch.ranks / 2**30, launch.gpus.memory_gib * _fraction(launch)
    if share > room:
        reason = (
            f"{total / 2**30:.0f} GiB of weights over {launch.ranks} ranks are {share:.0f} GiB each, and {launch.gpus} "
            f"leave {room:.0f} GiB for them"
        )
        remedy = f"--tp-size {_enough(total / 2**30, launch.gpus.memory_gib * _fraction(launch), launch.ranks)} or more"
        source = f"{launch.target.source} and the GPU's memory"
        yield Finding("memory", "error", "--tp-size", reason, source, f"{remedy}, or a quantised checkpoint")


def gpus_there(launch: Launch) -> Iterator[Finding]:
    needed = launch.ranks * launch.size("--dp-size")
    nodes = launch.size("--nnodes")
    if launch.gpus and launch.gpus.count and needed > launch.gpus.count * nodes:
        reason = f"{needed} GPUs are needed, and there are {launch.gpus.count * nodes}: {launch.gpus}"
        yield Finding("gpu-count", "error", "--tp-size", reason, "nvidia-smi, or engine.gpu", "fewer ranks, or nodes")


def experts_divide(launch: Launch) -> Iterator[Finding]:
    """A block of quantised weights has one scale, and so belongs to one rank."""
    target = launch.target
    if target is None or target.experts is None or target.quant_block is None:
        return
    tensor, expert = launch.size("--tp-size"), launch.size("--ep-size")
    share, block = target.experts.width // max(tensor // expert, 1), target.quant_block[0]
    if share % block:
        reason = (
            f"experts of width {target.experts.width} over {tensor // expert} ranks are {share} wide each, which is no "
            f"multiple of the block of {block}; the server ends at once"
        )
        source = f"{target.source} and sglang 0.5.23 fp8; post: roadmap"
        yield Finding(
            "expert-split", "error", "--ep-size", reason, source, f"--ep-size {tensor}: whole experts on a rank"
        )


def _fraction(launch: Launch) -> float:
    """Of the memory that weights and cache may take; 1 where SGLang chooses it."""
    try:
        given = float(launch.text(FRACTION) or 1.0)
    except ValueError:  # said by the rule about values
        return 1.0
    return given if 0 < given <= 1 else 1.0


def _enough(total_gib: float, room_gib: float, ranks: int) -> int:
    while total_gib / ranks > room_gib:
        ranks *= 2
    return ranks


RULES = (weights_fit, gpus_there, experts_divide)
