"""`python -m analysis breakeven`: the report on a sweep's depths, for people or for programs.

The surprise: predictions beyond the deepest measured depth are marked and still compete, for an optimum at the edge of
a sweep is the usual sign that the sweep was too short.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from analysis.breakeven import BASE_FACTORS, breakeven
from analysis.economics import Routing
from analysis.records import RecordError
from analysis.sweep import read_sweep
from experiments.errors import ConfigError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from analysis.breakeven import Report
    from analysis.economics import Point
    from analysis.sweep import Cell

PLAIN = "none"


def answer(options: argparse.Namespace) -> str:
    """Raises RecordError and ConfigError."""
    check(options)
    sweep = read_sweep(options.path, options.study)
    plain = sweep.pop(PLAIN, None)
    algorithm = chosen(sweep, options.algorithm)
    report = breakeven(
        sweep[algorithm],
        algorithm=algorithm,
        plain=plain[0] if plain else None,
        routing=Routing(options.experts, options.top_k) if options.experts else None,
        factors=options.factor or BASE_FACTORS,
    )
    return (
        json.dumps(report.to_json(), indent=2) + "\n" if options.format == "json" else "\n".join(lines(report)) + "\n"
    )


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError."""
    if options.experts is not None and options.experts < 1:
        raise ConfigError("--experts", f"{options.experts} is too small; allowed: 1 and more")
    if options.experts and not 1 <= options.top_k <= options.experts:
        raise ConfigError("--top-k", f"{options.top_k} of {options.experts} experts; allowed: 1 to {options.experts}")
    for factor in options.factor or ():
        if not (math.isfinite(factor) and factor > 0):
            raise ConfigError("--factor", f"{factor:g} is no share of the base; allowed: above 0")


def chosen(sweep: Mapping[str, list[Cell]], asked: str | None) -> str:
    able = [algorithm for algorithm, cells in sweep.items() if len(cells) > 1]
    if asked and asked not in able:
        raise RecordError(f"--algorithm {asked}: the sweep has two depths or more of {', '.join(able) or 'nothing'}")
    if not asked and len(able) != 1:
        raise RecordError(
            f"--algorithm: two depths or more of {', '.join(able)}; say which"
            if able
            else "the sweep has two depths or more of no algorithm, and one depth alone has no cost of a draft"
        )
    return asked or able[0]


def lines(report: Report) -> Iterator[str]:
    yield from points(report)
    yield ""
    yield "added draft   accept         needed to pay   step time   pays"
    for step in report.added:
        yield (
            f"to depth {step.depth:<4d} {step.gain:+.3f} ({step.gain_share:+.1%})  {step.needed:+.3f}"
            f"          {step.cost_share:+.1%}       {'yes' if step.pays else 'no'}"
        )
    yield ""
    yield from models(report)
    yield from optimum(report)


def points(report: Report) -> Iterator[str]:
    yield f"{report.algorithm}: depth   accept   step ms   TPOT ms   tok/s    predicted: accept   step ms   TPOT ms"
    measured = {point.depth: point for point in report.measured}
    expected = {point.depth: point for point in report.predicted}
    deepest = report.measured[-1].depth
    for depth in sorted(measured | expected):
        ours, theirs = measured.get(depth), expected.get(depth)
        left = f"{figures(ours)}  {1e3 / ours.tpot_ms:6.1f}" if ours else " " * 34
        note = "  not measured" if depth > deepest else ""
        yield f"{depth:{len(report.algorithm) + 7}d}   {left}               {figures(theirs) if theirs else ''}{note}"
    if report.plain:
        fastest = min(report.measured, key=lambda point: point.tpot_ms)
        yield (
            f"plain decoding: {report.plain.tpot_ms:.3f} ms a token; depth {fastest.depth} is "
            f"{report.plain.tpot_ms / fastest.tpot_ms:.2f}x as fast and pays from accept length "
            f"{fastest.step_ms / report.plain.step_ms:.2f} on"
        )


def figures(point: Point) -> str:
    return f"{point.accept:6.3f}   {point.step_ms:7.3f}   {point.tpot_ms:7.3f}"


def models(report: Report) -> Iterator[str]:
    cost = report.cost
    parts = []
    for name, value, interval in zip(("base", *cost.columns), cost.values_ms, cost.intervals_ms, strict=True):
        ends = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else " (no interval: no point to spare)"
        parts.append(f"{name} {value:.3f}{ends}")
    yield f"step ms = {' + '.join(parts)}"
    if len(cost.columns) == 1:
        yield f"  ({cost.columns[0]} and draft forwards grow together here: the coefficient stands for both)"
    if cost.routing:
        distinct = ", ".join(f"{point.depth}: {cost.routing.distinct(point.rows):.1f}" for point in report.predicted)
        yield f"  expected distinct experts of a layer by depth: {distinct}"
    gains = ", ".join(f"{gain:.3f}" for gain in report.acceptance.gains)
    start = report.acceptance
    yield f"accept length at depth {start.start}: {start.accept:.3f}; each further draft adds {gains}"


def optimum(report: Report) -> Iterator[str]:
    found = report.optimum
    shares = ", ".join(f"{depth}: {share:.0%}" for depth, share in found.shares.items())
    yield f"predicted optimum: depth {found.depth} [{found.low}, {found.high}] (best in {shares} of draws)"
    agreed = "within one draft" if report.agrees else "NOT within one draft"
    yield f"of the measured depths: {report.measured_optimum} was best, {report.expected_optimum} expected; {agreed}"
    if found.high > report.measured[-1].depth:
        yield f"the sweep ends at depth {report.measured[-1].depth}, perhaps before the optimum"
    for move in report.moved:
        yield (
            f"with {move.factor:g} of the base: depth {move.smaller_base}; "
            f"with {move.factor:g} of every added cost: depth {move.cheaper_draft}"
        )
