"""Do earlier requests change later answers: greedy; a load of sampled requests; greedy; flush; greedy; all equal.

The first greedy run is the probe of the other gates. The surprise: the three runs classify the fault. If only the
second differs, state or a cache leaks between requests; if the third differs too, the leak outlives a flush or the
server is not deterministic at all.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gates.byte_parity import describe, divergence
from gates.evidence import GateResult, Pollution
from gates.probe import answer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from experiments.clients.generate import GenerateClient
    from gates.evidence import Output, Probe

NAME = "state_pollution"
LOAD_TOKENS = 64


def collect(client: GenerateClient, probe: Probe, *, requests: int) -> Pollution:
    """Runs on the server that just answered `probe`. Raises ProtocolError."""
    run_load(client, probe, requests)
    after_load = _greedy(client, probe)
    client.flush_cache()
    after_flush = _greedy(client, probe)
    return Pollution(load_requests=requests, before=probe.outputs, after_load=after_load, after_flush=after_flush)


def run_load(client: GenerateClient, probe: Probe, requests: int) -> None:
    """Sampled requests, all at once, of different lengths: they fill slots and leave them at different times."""

    def sampled(index: int) -> None:
        prompt = probe.prompts[index % len(probe.prompts)]
        client.generate(
            text=prompt.text,
            max_new_tokens=LOAD_TOKENS // 2 + 8 * (index % 5),
            temperature=1.0,
            top_p=0.95,
            ignore_eos=True,
            seed=index,
        )

    with ThreadPoolExecutor(max_workers=max(1, requests)) as pool:
        list(pool.map(sampled, range(requests)))


def compare(pollution: Pollution, *, required: bool) -> GateResult:
    if not pollution.load_requests or not pollution.before or not all(output.ids for output in pollution.before):
        reason = "no load, no prompts or no tokens"
        return GateResult(name=NAME, status="not_run", required=required, reason=reason)
    loaded = _differences(pollution.before, pollution.after_load)
    flushed = _differences(pollution.before, pollution.after_flush)
    evidence = {"load_requests": pollution.load_requests, "after_load": loaded, "after_flush": flushed}
    if not loaded and not flushed:
        reason = f"{len(pollution.before)} prompts equal before load, after it and after a flush"
        return GateResult(name=NAME, status="pass", required=required, reason=reason, evidence=evidence)
    reason = f"{_kind(loaded, flushed)}: {describe((loaded or flushed)[0])}"
    return GateResult(name=NAME, status="fail", required=required, reason=reason, evidence=evidence)


def _kind(loaded: Sequence[dict[str, Any]], flushed: Sequence[dict[str, Any]]) -> str:
    if not flushed:
        return "state leaks from earlier requests until a flush"
    return "a leak outlives the flush, or greedy is not deterministic" if loaded else "greedy is not deterministic"


def _greedy(client: GenerateClient, probe: Probe) -> tuple[Output, ...]:
    return tuple(answer(client, prompt, max_new_tokens=probe.max_new_tokens) for prompt in probe.prompts)


def _differences(before: Sequence[Output], after: Sequence[Output]) -> list[dict[str, Any]]:
    pairs = zip(before, after, strict=True)
    return [difference for ours, theirs in pairs if (difference := divergence(ours, theirs))]
