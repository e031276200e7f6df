"""Peak throughput with its phase band: what the busiest second holds, for every way of cutting time into seconds.

SGLang's client prints the busiest of the seconds counted from the start of the run. The surprise: that start decides. A
time to first token that is some milliseconds longer moves every later token across the cuts and the peak with it, while
no step became slower or faster; so peak is reported as a band, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

WINDOW_S = 1.0
PHASES = 1000


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One answer as it arrived: seconds since `start_s` with the tokens so far, first chunk first."""

    start_s: float
    stamps: tuple[tuple[float, int], ...]


@dataclass(frozen=True, kw_only=True)
class PhaseBand:
    """Tokens per second of the busiest window, over all phases of the cuts."""

    printed: float
    """Phase 0, the start of the run: what the client prints."""
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return dict(vars(self))


def streams(rows: Sequence[Mapping[str, Any]]) -> tuple[Stream, ...]:
    """Lines of requests.jsonl in prompt order. Rows without `start_s` are taken to follow each other without a gap."""
    out: list[Stream] = []
    clock = 0.0
    for row in rows:
        start = row.get("start_s", clock)
        out.append(Stream(start_s=start, stamps=tuple((at, tokens) for at, tokens in row["stamps"])))
        clock = start + row["latency_s"]
    return tuple(out)


def token_times(answers: Sequence[Stream]) -> Floats:
    """Sorted, from the first start on. The tokens of a chunk are spread over the gap before it, those of the first one
    count as one, as the client counts them."""
    begin = min(answer.start_s for answer in answers)
    times: list[Floats] = []
    for answer in answers:
        stamps = np.array(answer.stamps)
        ends = stamps[:, 0] + answer.start_s - begin
        new = np.diff(stamps[:, 1]).astype(int)
        gaps = np.diff(ends)
        steps = np.concatenate([np.arange(1, count + 1) / count for count in new]) if new.sum() else np.empty(0)
        times += [ends[:1], np.repeat(ends[:-1], new) + steps * np.repeat(gaps, new)]
    return np.sort(np.concatenate(times))


def phase_band(times: Floats, *, window_s: float = WINDOW_S, phases: int = PHASES) -> PhaseBand:
    """Over `phases` evenly spaced cuts of the window."""
    windows = int(times[-1] / window_s) + 2
    cuts = (np.arange(-phases, windows * phases) / phases) * window_s
    before = np.searchsorted(times, cuts)
    counts = (before[phases:] - before[:-phases]).reshape(-1, phases)
    busiest = counts.max(axis=0) / window_s
    return PhaseBand(printed=float(busiest[0]), low=float(busiest.min()), high=float(busiest.max()))


def first_tokens_later(answers: Sequence[Stream], delay_s: float) -> tuple[Stream, ...]:
    """The same run, one request after the other, had every first token come so much later and nothing else changed."""
    return tuple(
        replace(
            answer,
            start_s=answer.start_s + position * delay_s,
            stamps=tuple((at + delay_s, tokens) for at, tokens in answer.stamps),
        )
        for position, answer in enumerate(answers)
    )
