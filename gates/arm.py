"""One side of a comparison: each kind of evidence, or the reason why it is missing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from experiments.clients.generate import ProtocolError
from gates import canary, probe, state_pollution
from gates.evidence import CellEvidence, Missing
from gates.prompts import canary_pool, gate_prompts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.engines.interface import EngineClient
    from experiments.spec import GateSpec
    from gates.evidence import Accept, Pollution, Probe, TaskAnswers

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Arm:
    probe: Probe | Missing
    pollution: Pollution | Missing
    accept: Accept | Missing
    task: TaskAnswers | Missing | None
    """None: there are no answers to compare with, and only a floor binds."""

    def evidence(self) -> CellEvidence:
        return CellEvidence(
            probe=found(self.probe),
            pollution=found(self.pollution),
            accept=found(self.accept),
            task=found(self.task),
        )


def stored(evidence: CellEvidence) -> Arm:
    return Arm(
        probe=given(evidence.probe, "the baseline has no probe"),
        pollution=given(evidence.pollution, "the baseline has no pollution run"),
        accept=given(evidence.accept, "the baseline has no accept length"),
        task=given(evidence.task, "the baseline answered no task"),
    )


def live(
    client: EngineClient,
    asked: Probe | Missing,
    *,
    requests: int,
    accept: Accept | Missing,
    task: TaskAnswers | Missing,
) -> Arm:
    """The server that just answered `asked`, after a load of `requests` sampled ones."""
    polluted = then(asked, partial(state_pollution.collect, client, requests=requests))
    return Arm(probe=asked, pollution=polluted, accept=accept, task=task)


def ask(gate: GateSpec, client: EngineClient, known: Probe | None, dataset: Path | None) -> Probe | Missing:
    """`known` is the baseline's probe, which is asked again if it asked as much as the gate wants to be asked.

    Raises ProtocolError.
    """
    if known is None:
        canaries = canary.scan(client, canary_pool(), max_new_tokens=gate.parity_tokens)
        prompts = (*gate_prompts(gate.parity_prompts, dataset), *canaries)
        return probe.collect(client, prompts, max_new_tokens=gate.parity_tokens)
    asked = sum(not prompt.canary for prompt in known.prompts)
    if asked < gate.parity_prompts or known.max_new_tokens < gate.parity_tokens:
        return Missing(
            f"the gate asks for {gate.parity_prompts} prompts of {gate.parity_tokens} tokens, "
            f"the baseline was asked {asked} of {known.max_new_tokens}"
        )
    return probe.again(client, known)


def attempt(collect: Callable[[], T | Missing]) -> T | Missing:
    """The one place where a failing server is caught: it becomes evidence that is missing, with the reason."""
    try:
        return collect()
    except ProtocolError as error:
        return Missing(str(error))


def then(first: T | Missing, collect: Callable[[T], S]) -> S | Missing:
    return first if isinstance(first, Missing) else attempt(lambda: collect(first))


def given(value: T | None, reason: str) -> T | Missing:
    return Missing(reason) if value is None else value


def found(value: T | Missing | None) -> T | None:
    return None if isinstance(value, Missing) else value
