"""Speculation on an engine that rounds: the candidate's tokens against the baseline's argmax, at every position.

They are teacher-forced through the baseline, and each must be its argmax or within a near-tie of it. The surprise: the
size of the first divergence decides nothing, since damage can start as small as rounding does. What separates the two
is the rest of the answer, so the whole of it is forced.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from experiments.clients.generate import ProtocolError
from gates.byte_parity import comparable
from gates.evidence import GateResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.engines.interface import EngineClient
    from gates.evidence import Output, Probe, Prompt

NAME = "lossless"
NEAR_TIE = {"float32": 1e-3, "bfloat16": 0.25}  # logits; by the dtype of the engine


@dataclass(frozen=True, kw_only=True)
class Forced:
    """`gaps[i]`: how far the candidate's token i lies below the baseline's argmax, in logits; 0 is the argmax."""

    prompt: str
    gaps: tuple[float, ...]


def near_tie(dtype: str, configured: float | None) -> float | None:
    """None where neither `gate.near_tie` nor a default for the dtype says."""
    return NEAR_TIE.get(dtype) if configured is None else configured


def collect(baseline: EngineClient, candidate: Probe) -> tuple[Forced, ...]:
    """Raises ProtocolError."""
    baseline.flush_cache()
    pairs = zip(candidate.prompts, candidate.outputs, strict=True)
    return tuple(force(baseline, prompt, output) for prompt, output in pairs)


def force(baseline: EngineClient, prompt: Prompt, output: Output) -> Forced:
    """Two calls: the first learns the prompt's ids, the second scores prompt + answer. Length is that of the answer."""
    prompt_ids = _prompt_ids(baseline, prompt)
    generation = baseline.generate(
        input_ids=[*prompt_ids, *output.ids],
        max_new_tokens=1,
        return_logprob=True,
        top_logprobs_num=1,
        logprob_start_len=len(prompt_ids) - 1,
    )
    n = len(output.ids)
    chosen = (generation.input_token_logprobs or ())[-n:]
    best = (generation.input_top_logprobs or ())[-n:]
    if tuple(token for _, token in chosen) != output.ids or len(best) != n or not all(best):
        raise ProtocolError(f"gate prompt {prompt.name}: the server did not score the forced tokens")
    pairs = [(top, logprob) for (logprob, _), ((top, _), *_) in zip(chosen, best, strict=True) if logprob is not None]
    gaps = tuple(top - logprob for top, logprob in pairs)
    if len(gaps) != n or not all(map(math.isfinite, gaps)):
        raise ProtocolError(f"gate prompt {prompt.name}: a forced token has no finite logprob")
    return Forced(prompt=prompt.name, gaps=gaps)


def compare(
    baseline: Probe, candidate: Probe, forced: Sequence[Forced], near_tie: float, *, required: bool
) -> GateResult:
    problem = comparable(baseline, candidate)
    if problem:
        return GateResult(name=NAME, status="not_run", required=required, reason=problem)
    used = [(row.prompt, i, gap) for row in forced for i, gap in enumerate(row.gaps) if gap != 0]
    beyond = [position for position in used if position[2] > near_tie]
    pairs = zip(baseline.outputs, candidate.outputs, strict=True)
    cut = [ours.prompt for ours, theirs in pairs if _one_is_a_prefix(ours, theirs)]
    evidence = {
        "near_tie": near_tie,
        "near_ties": [position for position in used if position not in beyond],
        "beyond": beyond,
        "ended_elsewhere": cut,
        "forced": [asdict(row) for row in forced if any(row.gaps)],
    }
    tokens = sum(len(row.gaps) for row in forced)
    reason = f"{tokens} tokens forced, {len(used) - len(beyond)} near-ties within {near_tie:g}, {len(beyond)} beyond"
    if cut:
        reason += f"; ended elsewhere: {', '.join(cut)}"
    failed = bool(beyond or cut)
    return GateResult(
        name=NAME, status="fail" if failed else "pass", required=required, reason=reason, evidence=evidence
    )


def _prompt_ids(client: EngineClient, prompt: Prompt) -> list[int]:
    first = client.generate(text=prompt.text, max_new_tokens=1, return_logprob=True, logprob_start_len=0)
    ids = [token for _, token in first.input_token_logprobs or ()]
    if len(ids) != first.prompt_tokens:
        raise ProtocolError(f"gate prompt {prompt.name}: {len(ids)} input logprobs for {first.prompt_tokens} tokens")
    return ids


def _one_is_a_prefix(ours: Output, theirs: Output) -> bool:
    """Forcing cannot see a token that is missing at the end."""
    shorter = min(len(ours.ids), len(theirs.ids))
    return len(ours.ids) != len(theirs.ids) and ours.ids[:shorter] == theirs.ids[:shorter]
