"""Is the fused all-reduce there that was asked for.

The surprise: it is the flag's presence alone that decides. Nothing that turns it off takes the flag back, so that a
command line goes on naming what no longer happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.launch import Launch

FUSION = "--flashinfer-allreduce-fusion-backend"
TURNED_OFF = {
    "--enable-deterministic-inference": "_deterministic_allreduce_fusion_disable",
    "--enforce-disable-flashinfer-allreduce-fusion": "_enforce_disable_allreduce_fusion",
}
"""Flags beside which it is off, and the functions that see to it."""


def fused_all_reduce(launch: Launch) -> Iterator[Finding]:
    if not launch.has(FUSION):
        return
    if launch.size("--tp-size") == 1:
        reason = "without effect: one rank has nothing to reduce"
        yield Finding("flag-without-effect", "warning", FUSION, reason, "sglang 0.5.23 fields", "leave it out")
    for flag, function in TURNED_OFF.items():
        if launch.has(flag) and launch.overridden("flashinfer_allreduce_fusion_backend", by=function):
            reason = f"turned off by {flag}"
            source = f"sglang 0.5.23 overrides: {function}"
            yield Finding("flag-overridden", "warning", FUSION, reason, source, "leave out one of the two")


RULES = (fused_all_reduce,)
