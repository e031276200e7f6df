"""Do other requests change an answer: greedy; greedy beside and after a load of sampled ones; flush; greedy; all equal.

The first greedy run is the probe of the other gates. The surprise: no two runs ask alike, since a leak between equal
runs looks equal. After the load the order is reversed, so that every prompt follows another one than before, and after
the flush prompts are asked as users ask, without logprobs. Which runs differ classifies the fault.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from experiments.threads import asking
from gates import logit_digest
from gates.byte_parity import describe, divergence
from gates.evidence import GateResult, Pollution
from gates.probe import answer, digest_positions, plain_answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.engines.interface import EngineClient
    from gates.evidence import Output, Probe, Prompt

    Difference = dict[str, Any]

NAME = "state_pollution"
LOAD_TOKENS = 64


def collect(client: EngineClient, probe: Probe, *, requests: int) -> Pollution:
    """Runs on the server that just answered `probe`. Raises ProtocolError."""
    during_load = run_load(client, probe, requests)
    after_load = [_again(client, probe, prompt, probe.max_new_tokens) for prompt in reversed(probe.prompts)]
    client.flush_cache()
    return Pollution(
        load_requests=requests,
        before=probe.outputs,
        during_load=during_load,
        after_load=tuple(reversed(after_load)),
        after_flush=tuple(plain_answer(client, p, max_new_tokens=probe.max_new_tokens) for p in probe.prompts),
    )


def run_load(client: EngineClient, probe: Probe, requests: int) -> tuple[Output, ...]:
    """Sampled requests of different lengths and as many greedy ones, all at once.

    They fill slots and leave them at different times. Returns the answers to the greedy ones.
    """

    def sampled(index: int) -> None:
        client.generate(
            text=probe.prompts[index % len(probe.prompts)].text,
            max_new_tokens=LOAD_TOKENS // 2 + 8 * (index % 5),
            temperature=1.0,
            top_p=0.95,
            ignore_eos=True,
            seed=index,
        )

    beside = probe.prompts[-requests:]
    with asking(2 * max(1, requests)) as pool:
        load = [pool.submit(sampled, index) for index in range(requests)]
        greedy = [pool.submit(_again, client, probe, prompt, LOAD_TOKENS) for prompt in beside]
        for request in load:
            request.result()
        return tuple(request.result() for request in greedy)


def compare(pollution: Pollution, *, exact: bool, required: bool) -> GateResult:
    """`exact`: the engine promises that a row's bits depend on its context alone, so bits and neighbours count too."""
    if not pollution.load_requests or not pollution.before or not all(output.ids for output in pollution.before):
        reason = "no load, no prompts or no tokens"
        return GateResult(name=NAME, status="not_run", required=required, reason=reason)
    found = {
        "during_load": _beginnings(pollution.before, pollution.during_load),
        "after_load": _differences(pollution.before, pollution.after_load, bits=exact),
        "after_flush": _differences(pollution.before, pollution.after_flush, bits=False),
    }
    counted = [run for run, differences in found.items() if differences and (exact or run != "during_load")]
    if not counted:
        reason = f"{len(pollution.before)} prompts equal before load, beside it, after it and after a flush"
    else:
        first = found[counted[0]][0]
        reason = f"{_kind(counted, tokens='tokens' in first)}: {_describe(first)}"
    return GateResult(
        name=NAME,
        status="fail" if counted else "pass",
        required=required,
        reason=reason,
        evidence={"load_requests": pollution.load_requests, **found},
    )


def _kind(runs: Sequence[str], *, tokens: bool) -> str:
    """`tokens` False: only bits differ, and the plain run after the flush shows none."""
    match runs:
        case ["during_load"]:
            return "requests change the answers of their neighbours in a batch"
        case _ if not tokens:
            return "earlier requests change the logits, or these are not deterministic"
        case ["after_load"] | ["during_load", "after_load"]:
            return "state leaks from earlier requests until a flush"
        case ["after_flush"]:
            return "greedy answers differ without logprobs, or are not deterministic"
        case _:
            return "a leak outlives the flush, or greedy is not deterministic"


def _again(client: EngineClient, probe: Probe, prompt: Prompt, max_new_tokens: int) -> Output:
    positions = digest_positions(probe)[prompt.name]
    return answer(client, prompt, max_new_tokens=min(max_new_tokens, probe.max_new_tokens), positions=positions)


def _differences(before: Sequence[Output], after: Sequence[Output], *, bits: bool) -> list[Difference]:
    pairs = list(zip(before, after, strict=True))
    tokens = [difference for ours, theirs in pairs if (difference := divergence(ours, theirs))]
    if tokens or not bits:
        return tokens
    return [difference for ours, theirs in pairs if (difference := logit_digest.first_difference(ours, theirs))]


def _beginnings(before: Sequence[Output], beside: Sequence[Output]) -> list[Difference]:
    """Answers beside the load are shorter: each is compared with as much of the one before."""
    whole = {output.prompt: output for output in before}
    pairs = [(_beginning(whole[theirs.prompt], theirs), theirs) for theirs in beside]
    return list(chain.from_iterable(_differences([ours], [theirs], bits=True) for ours, theirs in pairs))


def _beginning(ours: Output, theirs: Output) -> Output:
    """`ours` up to the limit of the load; one that ended before it has to end alike."""
    if len(ours.ids) <= LOAD_TOKENS:
        return ours
    return replace(
        ours,
        ids=ours.ids[:LOAD_TOKENS],
        text=theirs.text,
        finish_reason="length",
        matched=None,
        digest=tuple(row for row in ours.digest if row.position < LOAD_TOKENS),
    )


def _describe(difference: Difference) -> str:
    if "tokens" in difference:
        return describe(difference)
    return f"{difference['prompt']} at {difference['position']}: logit {difference['what']}"
