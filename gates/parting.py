"""Where two servers' answers part, in words: the first token that differs, or the first bits where no token does.

A reviewer has neither server at hand, so the place is shown with the text before it. The surprise: it names ids where
the tokenizer is not on this machine, because text cut by characters could show a place that is not the one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from gates import byte_parity, logit_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from experiments.spec import ModelSpec
    from gates.evidence import Digest, Output, Probe

    Spell = Callable[[Sequence[int]], str]

CONTEXT = 24
"""Tokens shown before the place."""
END = "(end)"


@dataclass(frozen=True, kw_only=True)
class Parting:
    gate: str
    """The gate that sees it."""
    prompt: str
    position: int | None
    """In the answer's tokens; None: all ids are equal, and something else is not."""
    what: str
    question: str
    """The prompt's end."""
    context: str
    """The answer up to there, which both servers gave."""
    recorded: str
    """What the record has there and what the server gave, as it would be quoted."""
    live: str
    margin: float | None
    """By which the record's token led there, in logits."""


def partings(known: Probe, live: Probe, model: ModelSpec) -> tuple[Parting, ...]:
    """The first of each kind: of answers, and of logits."""
    spell = speller(model)
    found = next(answers(known, live, spell), None), next(logits(known, live, spell), None)
    return tuple(one for one in found if one)


def answers(known: Probe, live: Probe, spell: Spell) -> Iterator[Parting]:
    for prompt, ours, theirs in zip(known.prompts, known.outputs, live.outputs, strict=True):
        if different := byte_parity.divergence(ours, theirs):
            position = different["position"]
            tokens = [END if token is None else spell([token]) for token in different["tokens"]]
            texts = different["texts"] if position is None else tokens
            yield Parting(
                gate="byte_parity",
                prompt=ours.prompt,
                position=position,
                what="another token" if position is not None else f"same ids, other {', '.join(different['what'])}",
                question=prompt.text,
                context=before(ours, position, spell),
                recorded=repr(texts[0]),
                live=repr(texts[1]),
                margin=different["margin"],
            )


def logits(known: Probe, live: Probe, spell: Spell) -> Iterator[Parting]:
    for prompt, ours, theirs in zip(known.prompts, known.outputs, live.outputs, strict=True):
        if different := logit_digest.first_difference(ours, theirs):
            position = different["position"]
            yield Parting(
                gate="logit_digest",
                prompt=ours.prompt,
                position=position,
                what=f"logits of the five best tokens: other {different['what']}{apart(ours, theirs, position)}",
                question=prompt.text,
                context=before(ours, position, spell),
                recorded=row(ours, position, spell),
                live=row(theirs, position, spell),
                margin=ours.margins[position] if position < len(ours.margins) else None,
            )


def before(output: Output, position: int | None, spell: Spell) -> str:
    return spell(output.ids[max(0, position - CONTEXT) : position]) if position else ""


def row(output: Output, position: int, spell: Spell) -> str:
    """Best first: each token with its logprob, to the last bit."""
    found = digest_at(output, position)
    if found is None:
        return "nothing"
    return ", ".join(f"{spell([token])!r} {value:.9g}" for token, value in zip(found.ids, logprobs(found), strict=True))


def apart(ours: Output, theirs: Output, position: int) -> str:
    """How far, where both name the same tokens."""
    pair = digest_at(ours, position), digest_at(theirs, position)
    if pair[0] is None or pair[1] is None or pair[0].ids != pair[1].ids:
        return ""
    differences = map(float.__sub__, logprobs(pair[0]), logprobs(pair[1]))
    return f", by up to {max(map(abs, differences)):.2g}"


def digest_at(output: Output, position: int) -> Digest | None:
    return next((digest for digest in output.digest if digest.position == position), None)


def logprobs(digest: Digest) -> tuple[float, ...]:
    """From their float32 bits."""
    return struct.unpack(f"<{len(digest.bits)}f", struct.pack(f"<{len(digest.bits)}I", *digest.bits))


def speller(model: ModelSpec) -> Spell:
    file = Path(model.tokenizer_path or model.path) / "tokenizer.json"
    if not file.is_file():
        return lambda ids: " ".join(map(str, ids))
    tokenizer = Tokenizer.from_file(str(file))
    return lambda ids: tokenizer.decode([*ids], skip_special_tokens=False)
