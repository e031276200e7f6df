"""Greedy outputs must be the same bytes: ids, text, length and finish reason, over the full length.

Each of the four catches what the others miss: equal ids with another text is a changed tokenizer, and an answer that is
a strict prefix of the other is no match. The surprise: no tokens at all is no equality either, but a gate not run.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from gates.evidence import GateResult

if TYPE_CHECKING:
    from gates.evidence import Output, Probe

NAME = "byte_parity"
CONTEXT_IDS = 8
CONTEXT_CHARS = 40


def compare(baseline: Probe, candidate: Probe, *, required: bool) -> GateResult:
    problem = comparable(baseline, candidate)
    if problem:
        return GateResult(name=NAME, status="not_run", required=required, reason=problem)
    pairs = list(zip(baseline.outputs, candidate.outputs, strict=True))
    found = [difference for ours, theirs in pairs if (difference := divergence(ours, theirs))]
    tokens = sum(len(output.ids) for output in baseline.outputs)
    if found:
        reason = f"{len(found)} of {len(pairs)} prompts differ; first: {describe(found[0])}"
    else:
        reason = f"{len(pairs)} prompts, {tokens} tokens equal"
    evidence = {"prompts": len(pairs), "tokens": tokens, "divergences": found}
    return GateResult(
        name=NAME, status="fail" if found else "pass", required=required, reason=reason, evidence=evidence
    )


def comparable(baseline: Probe, candidate: Probe) -> str | None:
    """Why two probes cannot be compared, or None."""
    if not baseline.prompts:
        return "no prompts"
    if baseline.prompts != candidate.prompts or baseline.max_new_tokens != candidate.max_new_tokens:
        return "the gate prompts differ from the baseline's"
    empty = [output.prompt for output in (*baseline.outputs, *candidate.outputs) if not output.ids]
    return f"no tokens for prompt {empty[0]}" if empty else None


def divergence(baseline: Output, candidate: Output) -> dict[str, Any] | None:
    """Where and how two answers to one prompt part; None if they are equal in all four respects."""
    fields = ("ids", "text", "finish_reason", "matched")
    what = [name for name in fields if getattr(baseline, name) != getattr(candidate, name)]
    if not what:
        return None
    position = first_difference(baseline, candidate)
    return {
        "prompt": baseline.prompt,
        "what": what,
        "position": position,
        "lengths": [len(baseline.ids), len(candidate.ids)],
        "finish_reasons": [baseline.finish_reason, candidate.finish_reason],
        "tokens": [_token_at(output, position) for output in (baseline, candidate)],
        "context_ids": [] if position is None else list(baseline.ids[max(0, position - CONTEXT_IDS) : position]),
        "texts": _texts(baseline.text, candidate.text),
        "margin": _margin_at(baseline, position),
    }


def first_difference(baseline: Output, candidate: Output) -> int | None:
    """First position whose ids differ, the end of the shorter answer included; None if the ids are equal."""
    pairs = enumerate(zip_longest(baseline.ids, candidate.ids))
    return next((position for position, (ours, theirs) in pairs if ours != theirs), None)


def describe(found: dict[str, Any]) -> str:
    if found["position"] is None:
        return f"{found['prompt']}: same ids, other {', '.join(found['what'])}"
    ours, theirs = ("end" if token is None else token for token in found["tokens"])
    margin = "" if found["margin"] is None else f", top-2 margin {found['margin']:.2g}"
    return f"{found['prompt']} at {found['position']}: {ours} -> {theirs}{margin}"


def _token_at(output: Output, position: int | None) -> int | None:
    return output.ids[position] if position is not None and position < len(output.ids) else None


def _margin_at(output: Output, position: int | None) -> float | None:
    return output.margins[position] if position is not None and position < len(output.margins) else None


def _texts(baseline: str, candidate: str) -> list[str]:
    """Both texts around their first different character."""
    pairs = enumerate(zip_longest(baseline, candidate))
    start = next((index for index, (ours, theirs) in pairs if ours != theirs), len(baseline))
    window = slice(max(0, start - CONTEXT_CHARS), start + CONTEXT_CHARS)
    return [baseline[window], candidate[window]]
