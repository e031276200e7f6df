"""Any server by its address: record its greedy answers, or hold it against a record.

The surprise: no benchmark runs here, so accept length is that of the gate's own answers. It is compared with the golden
record's, which was taken the same way, and never with a benchmark's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gates import accept_drift, arm, probe
from gates.evidence import Missing
from gates.run import judge_all
from gates.verdict import decide

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.clients.generate import GenerateClient
    from experiments.spec import CellSpec
    from gates.arm import Arm
    from gates.change import Change
    from gates.evidence import CellEvidence, GateResult, Probe
    from gates.verdict import Verdict

    Checked = tuple[Verdict, tuple[GateResult, ...], CellEvidence]


def record(spec: CellSpec, client: GenerateClient, dataset: Path | None = None) -> Checked:
    """The evidence of a server, and whether it passes what can be asked of it alone."""
    theirs = _live(spec, client, lambda: arm.ask(spec.gate, client, None, dataset))
    gates = judge_all(spec, None, None, theirs)
    return decide(None, gates), gates, theirs.evidence()


def check(
    spec: CellSpec,
    change: Change,
    client: GenerateClient,
    golden: CellEvidence,
    baseline_client: GenerateClient | None = None,
) -> Checked:
    """The golden record's own prompts again, whatever the built-in set is today."""
    reference = golden.probe
    assert reference is not None, "a golden record has a probe"
    ask = partial(
        probe.collect,
        client,
        reference.prompts,
        max_new_tokens=reference.max_new_tokens,
        digest_positions=probe.digest_positions(reference),
    )
    theirs = _live(spec, client, ask)
    gates = judge_all(spec, change, golden, theirs, baseline_client)
    return decide(change, gates), gates, theirs.evidence()


def _live(spec: CellSpec, client: GenerateClient, ask: Callable[[], Probe]) -> Arm:
    asked = arm.attempt(ask)
    accept = arm.then(asked, lambda found: accept_drift.of_probe(found, speculative=_speculative(client)))
    return arm.live(
        client,
        asked,
        requests=spec.gate.pollution_requests,
        accept=arm.given(accept, "speculation without verify counts"),
        task=Missing("a server by its address has no task"),
    )


def _speculative(client: GenerateClient) -> bool:
    return client.server_info().get("speculative_algorithm") is not None
