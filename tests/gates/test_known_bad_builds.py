"""Every planted fault is caught on a real server by the gate that is meant for it, for the right reason.

The baseline is the clean build of the same cell, so that every fault counts as a change that promised the same bits.
"""

from __future__ import annotations

import re
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
from builds import SHORT, Gated, gate_and_stop, gate_build, started

from experiments.spec import GateSpec
from gates import byte_parity

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Case:
    fault: str
    gate: str
    words: str
    """Found in the gate's reason, as a pattern."""
    alone: bool = False
    """No other gate may fail: only this one can see it."""
    slow: bool = False
    """In the full run only."""


CASES = (
    Case("wrong_row", "byte_parity", "prompts differ"),
    Case("conv_not_rolled_back", "byte_parity", "prompts differ"),
    Case("always_accepted", "byte_parity", "prompts differ"),
    Case("swapped_tokens=20", "byte_parity", "prompts differ", alone=True),
    Case("late_stop", "byte_parity", "end -> "),
    Case("stale_extend", "accept_drift", "> 0.05", alone=True),
    Case("one_bit", "logit_digest", r"\(bits\)", alone=True),
    Case("chunk_boundary", "logit_digest", "few-shot-0 at 0"),
    Case("slot_not_cleared", "state_pollution", "earlier requests|outlives the flush"),
    Case("leaked_seed", "state_pollution", "outlives the flush", alone=True),
    Case("shared_page", "state_pollution", "neighbours in a batch", alone=True),
    Case("jitter=1e-6", "state_pollution", "not deterministic", slow=True),
)


@pytest.fixture(scope="module", params=[SHORT, pytest.param(GateSpec(), marks=pytest.mark.slow)], ids=["short", "full"])
def gates(request) -> GateSpec:
    """What is asked; in full it is what run.py asks."""
    return request.param


@pytest.fixture(scope="module")
def clean(gates, tmp_path_factory) -> Gated:
    return gate_build("none", tmp_path_factory.mktemp("clean") / "log", gates=gates)


@pytest.fixture(scope="module")
def found(request, gates, clean, tmp_path_factory) -> dict[str, Future[Gated]]:
    """Verdicts on the builds that selected tests ask for. No gate here measures time, so builds overlap."""
    logs = tmp_path_factory.mktemp("logs")
    here = "[short" if gates is SHORT else "[full"
    selected = "".join(item.name for item in request.session.items if here in item.name)
    pending: dict[str, Future[Gated]] = {}
    with ThreadPoolExecutor(2) as pool:
        for fault in (case.fault for case in CASES if case.fault in selected):
            server = started(fault, logs / fault, gates)
            pending[fault] = pool.submit(gate_and_stop, server, fault, clean.evidence, gates)
    return pending


def test_the_clean_build_passes_alone(clean):
    assert clean.verdict.verdict == "baseline"
    assert clean.gates["state_pollution"].status == "pass"


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.fault, marks=[pytest.mark.slow] if case.slow else []) for case in CASES],
)
def test_a_planted_fault_is_rejected_by_its_gate(found, case):
    build = found[case.fault].result()
    assert build.verdict.verdict == "reject"
    assert case.gate in build.failed
    assert build.gates[case.gate].required
    assert re.search(case.words, build.gates[case.gate].reason)
    if case.alone:
        assert build.failed == {case.gate}
        assert build.verdict.rule == f"gate:{case.gate}"


def test_the_digest_sees_one_bit_that_no_token_shows(clean, found):
    """Canaries included: not one token of the build with one_bit differs, and bits do in every prompt."""
    build = found["one_bit"].result()
    assert build.gates["byte_parity"].status == "pass"
    differing = {difference["prompt"] for difference in build.gates["logit_digest"].evidence["differences"]}
    assert differing == {prompt.name for prompt in clean.evidence.probe.prompts}


@pytest.mark.parametrize("gates", [SHORT], indirect=True, ids=["short"])
def test_canaries_show_a_rounding_that_other_prompts_hide(gates, clean, tmp_path):
    """A build that rounds as coarsely as lies between the two kinds of prompts' narrowest margins."""
    probe = clean.evidence.probe
    narrowest = {output.prompt: min(output.margins) for output in probe.outputs}
    canary = min(narrowest[prompt.name] for prompt in probe.prompts if prompt.canary)
    other = min(narrowest[prompt.name] for prompt in probe.prompts if not prompt.canary)
    assert canary < other
    build = gate_build(f"near_ties_flip={(canary * other) ** 0.5}", tmp_path / "log", clean.evidence, gates)
    parity = build.gates["byte_parity"]
    assert parity.status == "fail"
    assert {difference["prompt"] for difference in parity.evidence["divergences"]} <= canaries(clean)
    assert without_canaries(clean, build).status == "pass"


def canaries(clean: Gated) -> set[str]:
    return {prompt.name for prompt in clean.evidence.probe.prompts if prompt.canary}


def without_canaries(*builds: Gated):
    probes = [build.evidence.probe for build in builds]
    kept = [
        replace(
            probe,
            prompts=tuple(prompt for prompt in probe.prompts if not prompt.canary),
            outputs=tuple(
                output for prompt, output in zip(probe.prompts, probe.outputs, strict=True) if not prompt.canary
            ),
        )
        for probe in probes
    ]
    return byte_parity.compare(*kept, required=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("gates", [SHORT], indirect=True, ids=["short"])
def test_the_clean_build_passes_twenty_times_in_a_row(gates, clean, tmp_path):
    for _ in range(20):
        build = gate_build("none", tmp_path / "log", clean.evidence, gates)
        assert (build.failed, build.verdict.verdict) == (set(), "inconclusive")
        assert {build.gates[name].status for name in ("byte_parity", "logit_digest", "accept_drift")} == {"pass"}
