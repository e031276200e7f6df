"""The client of a block: the recorded generate client, asking what SGLang's load client would ask.

A block is seconds long and SGLang's client needs ten to start, once per process, so four of them per block would spend
nine tenths of the budget on imports and heat the client's core beside the measured one. The cells of a comparison are
measured by SGLang's client as ever; its blocks go through clients/generate.py, with the same body (text or ids,
temperature 0, ignore_eos, streamed) and the same two stamps (first text, last chunk). The surprise: which client it was
is part of the harness hash, so that a block's figure is never set beside a cell's as if one ruler had made both.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from analysis.pairs import Answer
from experiments.child import ROOT
from experiments.errors import MeasurementError
from experiments.metrics import Sample, with_steps
from experiments.ruler import digest, harness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from analysis.pairs import Arm
    from experiments.clients.generate import Generation
    from experiments.comparison.requests import Request
    from experiments.engines.interface import EngineClient
    from experiments.spec import CellSpec

OWN = tuple(f"experiments/comparison/{name}.py" for name in ("arms", "load", "requests", "timing"))


def ask(client: EngineClient, spec: CellSpec, asked: Sequence[Request], *, arm: Arm, block: int) -> list[Answer]:
    """One slot: every request once, `max_concurrency` at a time. Raises ProtocolError, MeasurementError."""

    def one(request: Request) -> Answer:
        return answer(request, generate(client, spec, request), spec, arm=arm, block=block)

    if spec.workload.max_concurrency == 1:
        return [one(request) for request in asked]
    with ThreadPoolExecutor(spec.workload.max_concurrency) as pool:
        return [*pool.map(one, asked)]


def generate(client: EngineClient, spec: CellSpec, request: Request) -> Generation:
    return client.generate(
        text=request.text,
        input_ids=request.input_ids,
        max_new_tokens=spec.workload.output_len,
        ignore_eos=True,
        stream=True,
    )


def answer(request: Request, got: Generation, spec: CellSpec, *, arm: Arm, block: int) -> Answer:
    """The counts are the engine's and are checked as those of a cell are."""
    if got.completion_tokens != spec.workload.output_len or got.ttft_s is None:
        raise MeasurementError(
            f"{arm}, block {block}, prompt {request.name}: asked for {spec.workload.output_len} tokens, "
            f"the engine counted {got.completion_tokens}" + ("" if got.ttft_s else " and sent no text")
        )
    sample = Sample(tokens=got.completion_tokens, steps=got.spec_verify_ct, ttft_s=got.ttft_s, latency_s=got.latency_s)
    counted = with_steps(sample, spec.speculation.window)
    assert counted.steps is not None
    return Answer(
        arm=arm, block=block, prompt=request.name, tokens=counted.tokens, steps=counted.steps, decode_s=counted.decode_s
    )


def block_harness() -> str:
    """What times blocks, down to the source; with that of the cells, from which the gates' evidence comes."""
    return f"{harness()}+blocks-{digest([ROOT / name for name in OWN])}"
