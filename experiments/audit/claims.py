"""What is said about a cell, held against what can be true of it: published figures, floors, and the text it is asked.

These rules need no SGLang and no launch; they speak of any engine's cells. The surprise: a claim is a key of the study
that nothing else reads. It changes no measurement and no identity; it only lets the audit say where a figure cannot be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.finding import Finding
from experiments.audit.model import model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.model import Model
    from experiments.spec import CellSpec, ClaimSpec

HARNESS = "few_shot_gsm8k"
"""Whose prompts and marking task=gsm8k has."""
SAME = 0.02
"""Relative distance within which two figures are one."""
MOST_ROWS = 64


def audit_claims(cell: CellSpec, claims: ClaimSpec) -> Iterator[Finding]:
    target, draft = model(cell.model.path), model(cell.speculation.draft_path)
    window, ranks = cell.speculation.window, cell.engine.tp_size or 1
    if cell.speculation.algorithm != "none":  # claims speak of a study's speculative cells, not of their baseline
        yield from accept_length(claims, window, draft)
        yield from expert_bytes(claims, window, ranks, target)
    yield from floor(cell, target)
    yield from tiled_prompts(cell)


def accept_length(claims: ClaimSpec, window: int, draft: Model | None) -> Iterator[Finding]:
    claimed = claims.accept_length
    if claimed is None or claimed <= window:
        return
    trained = f"; {draft.name} has blocks of {draft.block_size}" if draft and draft.block_size else ""
    reason = f"{claimed:g} tokens a step cannot come out of a window of {window} rows{trained}"
    needed = -int(-claimed // 1) - 1
    remedy = f"a draft of {needed} tokens and more, or at most {window}"
    source = "an accept length counts the bonus token; post: its 9.95 came from blocks of 16"
    yield Finding("accept-length-impossible", "error", "claims.accept_length", reason, source, remedy)


def expert_bytes(claims: ClaimSpec, window: int, ranks: int, target: Model | None) -> Iterator[Finding]:
    """The more rows a step verifies, the more experts it reads."""
    claimed = claims.expert_mb
    if claimed is None or target is None or target.experts is None:
        return
    most, expected = (f(window, ranks) for f in (target.experts.most_mb, target.experts.expected_mb))
    if expected * (1 - SAME) <= claimed <= most * (1 + SAME):
        return
    rows = next((n for n in range(1, MOST_ROWS) if abs(target.experts.most_mb(n, ranks) / claimed - 1) < SAME), None)
    theirs = f"{claimed:g} MB is the figure of {rows} rows" if rows else f"{claimed:g} MB is the figure of no row count"
    reason = f"{theirs}; {window} rows read {expected:.0f} MB expected and {most:.0f} MB at most, a layer and rank"
    remedy = f"a cost model of {window} rows: claims.expert_mb={expected:.0f}"
    source = f"{target.source}: experts a token, width and dtype; post: two kinds of empty time"
    yield Finding("expert-bytes", "warning", "claims.expert_mb", reason, source, remedy)


def floor(cell: CellSpec, target: Model | None) -> Iterator[Finding]:
    published = target.scores.get(HARNESS) if target else None
    if cell.task.name != "gsm8k" or cell.task.floor is None or published is None or cell.task.floor <= published:
        return
    reason = (
        f"the published score of {target.name if target else ''} is {published:g} under the same prompts: it would fail"
    )
    remedy = f"task.floor below {published:g}, or null: questions are paired with the baseline's anyway"
    source = "post: GSM8K 0.889; figures of other harnesses do not compare"
    yield Finding("floor-above-published", "warning", "task.floor", reason, source, remedy)


def tiled_prompts(cell: CellSpec) -> Iterator[Finding]:
    if cell.workload.dataset_name == "random":
        reason = (
            "random repeats the tokens of one prompt up to the length asked for: periodic text, which is easy to draft "
            "and flatters accept length"
        )
        source = "sglang 0.5.23 bench_serving: dataset random"
        remedy = "dataset_name=sharegpt for real text, random-ids for no text at all; report both beside it"
        yield Finding("random-tiles", "warning", "workload.dataset_name", reason, source, remedy)
