"""Do the flags of speculation say what the server will do: the window, the draft, and what an algorithm has no use for.

The surprise: SGLang repairs most contradictions in a line of its log and starts, so that the window that is measured is
not the one that was asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.finding import Finding
from experiments.audit.launch import BLOCK_FAMILY, CHAIN_FAMILY, DEFAULT_STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.launch import Launch

HOOK = "sglang 0.5.23 speculative_hook"
TOKENS = "--speculative-num-draft-tokens"
ADAPTIVE = "--speculative-adaptive"
DRAFT = "--speculative-draft-model-path"
BLOCK = "--speculative-dspark-block-size"
TABLES = ("--speculative-dspark-sps-table-path", "--speculative-dspark-confidence-sts-path")
ALIGN = "--speculative-dspark-align-verify-tokens-to-graph-tier"


def chain_window(launch: Launch) -> Iterator[Finding]:
    """With one candidate a step there is nothing but the chain: steps + 1 rows."""
    if launch.algorithm not in CHAIN_FAMILY or launch.topk != 1 or launch.has(ADAPTIVE):
        return
    steps = launch.number("--speculative-num-steps")
    tokens = launch.number(TOKENS)
    rows = (steps or DEFAULT_STEPS) + 1
    if steps is None and tokens is not None:
        reason = "given without --speculative-num-steps; the server ends at once"
        yield Finding("chain-window", "error", TOKENS, reason, HOOK, f"add --speculative-num-steps {tokens - 1}")
    elif tokens is not None and tokens != rows:
        reason = f"top-k 1 drafts a chain: {steps} steps verify {rows} rows, and the server changes {tokens} to {rows}"
        yield Finding("chain-window", "warning", TOKENS, reason, HOOK, f"{TOKENS} {rows}, or leave it out")


def block_window(launch: Launch) -> Iterator[Finding]:
    tokens, gamma = launch.number(TOKENS), launch.gamma
    if launch.algorithm == "DSPARK" and tokens is not None and gamma is not None and tokens != gamma + 1:
        reason = f"DSPARK verifies the anchor and a block of {gamma}: {gamma + 1} rows, and the server refuses {tokens}"
        yield Finding("block-window", "error", TOKENS, reason, HOOK, f"leave it out; {BLOCK} sets the block")


def block_overrides(launch: Launch) -> Iterator[Finding]:
    if launch.algorithm not in BLOCK_FAMILY:
        return
    hook = f"_handle_{launch.algorithm.lower()}"
    for flag in ("--speculative-num-steps", "--speculative-eagle-topk"):
        overridden = launch.overridden(flag[2:].replace("-", "_"), by=hook)
        if (value := launch.number(flag)) not in (None, 1) and overridden:
            reason = f"{launch.algorithm} drafts a block in one step; the server changes {value} to 1"
            yield Finding("flag-overridden", "warning", flag, reason, HOOK, "leave it out; it belongs to NEXTN")


def trained_block(launch: Launch) -> Iterator[Finding]:
    asked, trained = launch.number(BLOCK), launch.draft and launch.draft.block_size
    if launch.algorithm == "DSPARK" and launch.draft and asked and trained and asked > trained:
        reason = f"{launch.draft.name} was trained on blocks of {trained}; rows {trained + 1} to {asked} are untrained"
        source = f"{launch.draft.source}: block_size"
        yield Finding(
            "draft-block", "warning", BLOCK, reason, source, f"{BLOCK} {trained}, or a draft trained on {asked}"
        )


def draft_given(launch: Launch) -> Iterator[Finding]:
    if launch.algorithm != "DSPARK" or launch.has(DRAFT) or launch.target is None or launch.target.bundles_dspark:
        return
    reason = f"{launch.target.name} brings no DSpark draft along, and the server refuses to start without one"
    yield Finding("draft-missing", "error", DRAFT, reason, HOOK, f"{DRAFT} PATH, or speculation.draft_path")


def own_draft_layers(launch: Launch) -> Iterator[Finding]:
    """NEXTN is the target's own draft layers; a checkpoint without any has nothing to draft with."""
    given = (launch.text("--speculative-algorithm") or "").upper()
    if given == "NEXTN" and launch.target and launch.target.nextn_layers == 0 and not launch.has(DRAFT):
        reason = f"{launch.target.name} has no draft layer (num_nextn_predict_layers is 0)"
        source = f"{launch.target.source}: num_nextn_predict_layers"
        yield Finding("draft-missing", "error", "--speculative-algorithm", reason, source, "another algorithm, or none")


def without_effect(launch: Launch) -> Iterator[Finding]:
    """Flags of one algorithm or mode, given where another one runs."""
    for flag, needed in _unused(launch):
        reason = f"without effect: only used with {needed}"
        yield Finding("flag-without-effect", "warning", flag, reason, HOOK, f"leave it out, or use {needed}")


def lossy(launch: Launch) -> Iterator[Finding]:
    for flag in ("--speculative-accept-threshold-single", "--speculative-accept-threshold-acc"):
        if (value := launch.text(flag)) not in (None, "1", "1.0"):
            reason = f"{value} accepts drafts that the target would not sample; answers to sampled requests change"
            yield Finding("acceptance-lossy", "warning", flag, reason, "sglang 0.5.23 eagle_utils", "leave it out")


def _unused(launch: Launch) -> Iterator[tuple[str, str]]:
    given = [flag for flag in launch.flags if flag.startswith("--speculative-")]
    if launch.algorithm is None:
        yield from ((flag, "--speculative-algorithm") for flag in given)
        return
    if launch.algorithm != "DSPARK":
        yield from ((flag, "DSPARK") for flag in given if flag.startswith("--speculative-dspark-"))
    elif launch.ragged == "static":
        yield from ((flag, "verify mode compact or cap-accept") for flag in TABLES if launch.has(flag))
    if launch.algorithm == "DSPARK" and launch.ragged != "compact" and launch.has(ALIGN):
        yield ALIGN, "verify mode compact"
    if launch.algorithm not in ("EAGLE", "EAGLE3"):
        unused = (ADAPTIVE, "--speculative-adaptive-config", "--speculative-use-rejection-sampling")
        yield from ((flag, "NEXTN, EAGLE or EAGLE3") for flag in unused if launch.has(flag))
    if launch.algorithm not in ("EAGLE", "EAGLE3", "DFLASH") and launch.has("--speculative-draft-window-size"):
        yield "--speculative-draft-window-size", "NEXTN, EAGLE, EAGLE3 or DFLASH"


RULES = (
    *(chain_window, block_window, block_overrides, trained_block, draft_given, own_draft_layers),
    *(without_effect, lossy),
)
