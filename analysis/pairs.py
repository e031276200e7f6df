"""Answers of two arms, paired: the same prompt, in the same block, by both.

A block is four slots, ABBA or BAAB, each with the same prompts. The surprise: every figure that is compared is a ratio
of two sums (seconds over steps, tokens over steps, TPOT over requests), so a cell of the table keeps sums and never a
ratio, and each cell's pull on the log-ratio of the whole is a sum of four shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

Arm = Literal["baseline", "candidate"]
Figure = Literal["step_time", "tpot", "accept"]
ARMS: tuple[Arm, ...] = get_args(Arm)
FIGURES: tuple[Figure, ...] = get_args(Figure)


class PairingError(ValueError):
    """An answer without its counterpart, or one that cannot be timed; the message names block and prompt."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One request of one arm. `tokens` counts the first one, which comes from prefill; `decode_s` = latency - ttft."""

    arm: Arm
    block: int
    prompt: str
    tokens: int
    steps: int
    decode_s: float


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """N cells, each one prompt in one block; the sums are [2, N], the baseline's first."""

    block: Ints
    """[N] in 0..blocks-1, in order of time."""
    prompt: Ints
    """[N] in 0..prompts-1; a prompt that several blocks share has one number."""
    requests: Floats
    decode_s: Floats
    steps: Floats
    tokens: Floats
    """Without first tokens, which no step made."""
    tpot_s: Floats
    """Sum over requests of decode time per token."""

    @property
    def blocks(self) -> int:
        return int(self.block.max()) + 1

    def ratio(self, figure: Figure) -> tuple[Floats, Floats]:
        """Numerators and denominators, [2, N] each, of which the figure is the ratio of sums."""
        match figure:
            case "step_time":
                return self.decode_s, self.steps
            case "tpot":
                return self.tpot_s, self.requests
            case "accept":
                return self.tokens, self.steps

    def first(self, blocks: int) -> Pairs:
        """The pairs of the first blocks alone."""
        kept = self.block < blocks
        sums = {name: getattr(self, name)[:, kept] for name in ("requests", "decode_s", "steps", "tokens", "tpot_s")}
        _, prompt = np.unique(self.prompt[kept], return_inverse=True)
        return Pairs(block=self.block[kept], prompt=prompt, **sums)


def pair(answers: Iterable[Answer]) -> Pairs:
    """Raises PairingError. Blocks are numbered anew in their order."""
    sums: dict[tuple[int, str], Floats] = {}
    for answer in answers:
        if answer.tokens < 2 or answer.steps < 1 or answer.decode_s <= 0:
            raise PairingError(f"{_place(answer.block, answer.prompt)}: nothing to time in {answer}")
        cell = sums.setdefault((answer.block, answer.prompt), np.zeros((5, 2)))
        decoded = answer.tokens - 1
        row = (1, answer.decode_s, answer.steps, decoded, answer.decode_s / decoded)
        cell[:, ARMS.index(answer.arm)] += row
    if not sums:
        raise PairingError("no answers to pair")
    cells = sorted(sums)
    for place in cells:
        for arm, requests in zip(ARMS, sums[place][0], strict=True):
            if not requests:
                raise PairingError(f"{_place(*place)}: no answer of the {arm}")
    table = np.stack([sums[place] for place in cells], axis=-1)
    return Pairs(
        block=_numbers([block for block, _ in cells]), prompt=_numbers([prompt for _, prompt in cells]), **_named(table)
    )


def log_ratio(numerators: Floats, denominators: Floats) -> Floats:
    """[..., 2] sums by arm -> [...] log(candidate / baseline)."""
    logs: Floats = np.log(numerators / denominators)
    return logs[..., 1] - logs[..., 0]


def contrasts(pairs: Pairs, figure: Figure) -> Floats:
    """[blocks] The log-ratio of each block by itself."""
    numerators, denominators = pairs.ratio(figure)
    return log_ratio(totals(numerators, pairs.block), totals(denominators, pairs.block))


def totals(values: Floats, cluster: Ints) -> Floats:
    """[2, N] -> [clusters, 2]."""
    return np.stack([np.bincount(cluster, weights=arm) for arm in values], axis=-1)


def _numbers(labels: list[int] | list[str]) -> Ints:
    return np.unique(np.asarray(labels), return_inverse=True)[1].astype(np.int64)


def _named(table: Floats) -> dict[str, Floats]:
    return dict(zip(("requests", "decode_s", "steps", "tokens", "tpot_s"), table, strict=True))


def _place(block: int, prompt: str) -> str:
    return f"block {block}, prompt {prompt}"
