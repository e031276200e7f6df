"""`meta_info`, SGLang's account of one answer: how it ended, what it counted, and what speculation did for it.

The surprise: SGLang's accept length counts the first token, which came from the prompt's last chunk and not from a
decode step. It is reported under SGLang's name with SGLang's meaning; who wants the other one has the counts beside
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ling_runtime.request import Request, Speculation, Update


def meta_info(request: Request, last: Update, completion_tokens: int, weight_version: str) -> dict[str, object]:
    """After the update `last`, with `completion_tokens` emitted so far."""
    meta: dict[str, object] = {
        "id": request.id,
        "finish_reason": None if last.finish is None else last.finish.to_json(),
        "prompt_tokens": len(request.prompt),
        "completion_tokens": completion_tokens,
        "cached_tokens": 0,
        "weight_version": weight_version,
    }
    if last.finish is not None:
        meta["e2e_latency"] = last.latency_s
    if last.speculation is not None:
        meta |= _speculation(last.speculation, completion_tokens)
    return meta


def _speculation(counts: Speculation, completion_tokens: int) -> dict[str, object]:
    """An answer that ended before its first decode step has counts of zero and no ratios."""
    meta: dict[str, object] = {
        "spec_num_correct_drafts": counts.correct_drafts,
        "spec_num_proposed_drafts": counts.proposed_drafts,
        "spec_verify_ct": counts.verify_steps,
        "spec_correct_drafts_histogram": list(counts.histogram),
    }
    if counts.proposed_drafts:
        meta["spec_accept_rate"] = counts.correct_drafts / counts.proposed_drafts
    if counts.verify_steps:
        meta["spec_accept_length"] = completion_tokens / counts.verify_steps
    return meta
