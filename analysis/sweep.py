"""The cells of a depth sweep, from records or from a table somebody printed, in a form that can be drawn again.

Each draw is one more sweep that might have been measured. The surprise: batches of consecutive requests are resampled,
the same in every cell, since all were asked the same prompts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from analysis.economics import Acceptance, Point, by_position
from analysis.printed import from_table
from analysis.records import PATTERN, RecordError, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Draw = np.random.Generator | None


class Cell(Protocol):
    """A measured depth."""

    @property
    def name(self) -> str: ...
    @property
    def depth(self) -> int: ...
    def point(self, draw: Draw) -> Point: ...
    def acceptance(self, draw: Draw) -> Acceptance | None: ...


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Requests in the order in which they were asked: [R] each."""

    name: str
    algorithm: str
    depth: int
    decode_s: Floats
    steps: Floats
    tokens: Floats
    """Without first tokens."""
    committed: Floats | None
    """[R, W] steps by the number of tokens they committed; None where the stream did not come step by step."""

    def point(self, draw: Draw) -> Point:
        weights = self._weights(draw)
        seconds, steps, tokens = (float(weights @ values) for values in (self.decode_s, self.steps, self.tokens))
        return Point(
            depth=self.depth,
            forwards=forwards(self.algorithm, self.depth),
            step_ms=1e3 * seconds / steps,
            accept=tokens / steps,
        )

    def acceptance(self, draw: Draw) -> Acceptance | None:
        return None if self.committed is None else by_position(self._weights(draw) @ self.committed)

    def _weights(self, draw: Draw) -> Floats:
        count = len(self.steps)
        if draw is None:
            return np.ones(count)
        batch = np.arange(count) // max(isqrt(count), 1)
        batches = int(batch[-1]) + 1
        weights: Floats = draw.multinomial(batches, np.full(batches, 1 / batches))[batch].astype(float)
        return weights


def forwards(algorithm: str, depth: int) -> int:
    """NEXTN needs one forward less than drafts, and the extend; a block drafter one, whatever the depth."""
    return 1 if algorithm == "dspark" else depth


def read_sweep(path: Path, study: str | None = None) -> dict[str, list[Cell]]:
    """By algorithm, by depth: of a directory the valid records, of a .csv or .json its rows. Raises RecordError."""
    cells: list[tuple[str, Cell]] = []
    cells += from_records(path, study) if path.is_dir() else ((cell.algorithm, cell) for cell in from_table(path))
    by_algorithm: dict[str, list[Cell]] = {}
    for algorithm, cell in sorted(cells, key=lambda pair: pair[1].depth):
        others = by_algorithm.setdefault(algorithm, [])
        if others and others[-1].depth == cell.depth:
            raise RecordError(f"{path}: {others[-1].name} and {cell.name} are one depth; a sweep varies nothing else")
        others.append(cell)
    return by_algorithm


def from_records(directory: Path, study: str | None) -> Iterable[tuple[str, Recorded]]:
    """Of each cell its last attempt, if that is valid."""
    last: dict[tuple[str, str], tuple[int, Path]] = {}
    for path in sorted(directory.rglob(PATTERN)):
        record = read(path)
        key = record["study"], record["name"]
        if study in (None, record["study"]) and record["attempt"] > last.get(key, (0, path))[0]:
            last[key] = record["attempt"], path
    for _, path in last.values():
        record = read(path)
        if record["status"] == "valid":
            yield measured(record["name"], path.parent)
    if not last:
        raise RecordError(f"no record.json under {directory}")


def measured(name: str, attempt: Path) -> tuple[str, Recorded]:
    """A valid cell with its algorithm, from the files of its attempt. Raises RecordError."""
    try:
        spec: Any = OmegaConf.load(attempt / "spec.yaml")
        rows = [json.loads(line) for line in (attempt / "requests.jsonl").read_text().splitlines()]
        rows.sort(key=lambda row: int(row["index"]))
        return spec.speculation.algorithm, recorded(name, spec.speculation, rows)
    except (OSError, ValueError, LookupError, TypeError, OmegaConfBaseException, YAMLError) as error:
        raise RecordError(
            f"{attempt}: spec.yaml and requests.jsonl are not those of a measured cell "
            f"({type(error).__name__}: {' '.join(str(error).split())})"
        ) from error


def recorded(name: str, spec: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Recorded:
    """`spec`: the speculation part of a cell's spec; `rows`: its requests.jsonl."""
    depth = {"none": 0, "nextn": spec.get("num_steps"), "dspark": spec.get("block_size")}[spec["algorithm"]]
    assert isinstance(depth, int)
    tokens = np.array([row["completion_tokens"] - 1 for row in rows], dtype=float)
    return Recorded(
        name=name,
        algorithm=spec["algorithm"],
        depth=depth,
        decode_s=np.array([row["latency_s"] - row["ttft_s"] for row in rows]),
        steps=np.array([row["spec_verify_ct"] for row in rows], dtype=float) if depth else tokens,
        tokens=tokens,
        committed=committed(rows, depth + 1) if depth else None,
    )


def committed(rows: Sequence[Mapping[str, Any]], window: int) -> Floats | None:
    """[R, W] from the stream's cumulative counts; the last step of an answer is cut by its length and left out."""
    counts = []
    for row in rows:
        per_step = np.diff([tokens for _, tokens in row["stamps"]])
        if len(per_step) != row["spec_verify_ct"] or per_step.max() > window:
            return None
        counts.append(np.bincount(per_step[:-1], minlength=window + 1)[1:].astype(float))
    return np.stack(counts)
