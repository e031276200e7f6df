"""Greedy answers of a live server, each prompt cold: the raw material of parity, digest, pollution and lossless.

The surprise: the positions whose logits are recorded are chosen by the first server asked, at its own narrowest
margins, and every later server is asked for the same ones. That is where a changed bit first becomes a changed token.
"""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.clients.generate import ProtocolError
from gates.evidence import Digest, Output, Probe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from experiments.clients.generate import Alternatives, Generation
    from experiments.engines.interface import EngineClient
    from gates.evidence import Prompt

TOP = 5
NARROWEST = 4


def collect(
    client: EngineClient,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    digest_positions: Mapping[str, Sequence[int]] | None = None,
) -> Probe:
    """`digest_positions` by prompt name; without them the server's own near-ties choose. Raises ProtocolError."""
    outputs = []
    for prompt in prompts:
        client.flush_cache()
        positions = None if digest_positions is None else digest_positions.get(prompt.name)
        outputs.append(answer(client, prompt, max_new_tokens=max_new_tokens, positions=positions))
    return Probe(prompts=tuple(prompts), max_new_tokens=max_new_tokens, outputs=tuple(outputs))


def again(client: EngineClient, known: Probe) -> Probe:
    """What a probe asked, asked of another server: the same prompts, lengths and positions. Raises ProtocolError."""
    return collect(client, known.prompts, max_new_tokens=known.max_new_tokens, digest_positions=digest_positions(known))


def answer(
    client: EngineClient, prompt: Prompt, *, max_new_tokens: int, positions: Sequence[int] | None = None
) -> Output:
    """One greedy answer, cold or warm as the server stands. `positions` None: its own near-ties choose."""
    generation = _greedy(client, prompt, max_new_tokens, return_logprob=True, top_logprobs_num=TOP)
    alternatives = _checked(prompt, generation.output_top_logprobs, len(generation.output_ids))
    margins = tuple(top2_margin(row) for row in alternatives)
    recorded = digest_grid(margins) if positions is None else [row for row in positions if row < len(alternatives)]
    return replace(
        _output(prompt, generation),
        margins=margins,
        digest=tuple(_digest(position, alternatives[position]) for position in recorded),
    )


def plain_answer(client: EngineClient, prompt: Prompt, *, max_new_tokens: int) -> Output:
    """The same asked as users ask: streamed, and without logprobs, for which an engine may have a path of its own."""
    return _output(prompt, _greedy(client, prompt, max_new_tokens, stream=True))


def digest_grid(margins: Sequence[float]) -> tuple[int, ...]:
    """Positions 0, 1, 2, 4, 8, ..., the last one, and the near-ties."""
    if not margins:
        return ()
    powers = {1 << k for k in range(len(margins).bit_length()) if 1 << k < len(margins)}
    return tuple(sorted({0, len(margins) - 1} | powers | set(near_ties(margins, NARROWEST))))


def near_ties(margins: Sequence[float], count: int) -> tuple[int, ...]:
    """The `count` positions with the narrowest top-2 margins, narrowest first."""
    return tuple(sorted(range(len(margins)), key=lambda position: (margins[position], position))[:count])


def digest_positions(probe: Probe) -> dict[str, tuple[int, ...]]:
    return {output.prompt: tuple(row.position for row in output.digest) for output in probe.outputs}


def top2_margin(row: Sequence[tuple[float, int]]) -> float:
    """Differences of logprobs within a row are differences of logits: the normaliser cancels."""
    return row[0][0] - row[1][0]


def float32_bits(value: float) -> int:
    """The float32 bits of a JSON number; servers print float32 logprobs with enough digits to give them back."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def _greedy(client: EngineClient, prompt: Prompt, max_new_tokens: int, **how: Any) -> Generation:
    generation = client.generate(
        text=prompt.text,
        max_new_tokens=min(max_new_tokens, prompt.max_new_tokens or max_new_tokens),
        temperature=0.0,
        stop=prompt.stop,
        ignore_eos=prompt.ignore_eos,
        **how,
    )
    if generation.finish_reason == "abort":
        raise ProtocolError(f"gate prompt {prompt.name}: the server aborted the request")
    return generation


def _output(prompt: Prompt, generation: Generation) -> Output:
    return Output(
        prompt=prompt.name,
        ids=generation.output_ids,
        text=generation.text,
        finish_reason=generation.finish_reason,
        matched=generation.matched,
        spec_verify_ct=generation.spec_verify_ct,
    )


def _checked(prompt: Prompt, alternatives: Alternatives | None, length: int) -> Alternatives:
    if alternatives is None or len(alternatives) != length or any(len(row) < 2 for row in alternatives):
        raise ProtocolError(f"gate prompt {prompt.name}: asked for {TOP} alternatives at each of {length} positions")
    if not all(math.isfinite(logprob) for row in alternatives for logprob, _ in row[:2]):
        raise ProtocolError(f"gate prompt {prompt.name}: a logprob is not finite")
    return alternatives


def _digest(position: int, row: Sequence[tuple[float, int]]) -> Digest:
    return Digest(
        position=position, ids=tuple(token for _, token in row), bits=tuple(float32_bits(value) for value, _ in row)
    )
