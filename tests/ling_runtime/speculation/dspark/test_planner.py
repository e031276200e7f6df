"""How many rows: against brute force, without a bias, and never none."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ling_runtime.speculation.dspark.cost import FLAT, AdditiveTable, CostTable, Curve, StepTable
from ling_runtime.speculation.dspark.planner import (
    CausalPlanner,
    GlobalPlanner,
    Planner,
    VerifyAll,
    allocate,
    best_count,
    causal_count,
    planner_for,
    survival,
    with_free_rows,
)
from ling_runtime.speculation.dspark.rejection import Chain, chain_rejection
from ling_runtime.speculation.dspark.times import Times, convex_floor
from tests.ling_runtime.speculation.exact import SUSPICIOUS, p_value

# Eighths and small costs, so that ties are real; a step with more rows is never cheaper.
confidence = st.integers(0, 8).map(lambda x: x / 8)
batches = st.integers(1, 3).flatmap(
    lambda drafts: st.lists(st.lists(confidence, min_size=drafts, max_size=drafts), min_size=1, max_size=3)
)
step_tables = (
    st.lists(st.integers(1, 9), min_size=1, max_size=12)
    .map(sorted)
    .map(lambda times: StepTable(tuple(range(1, len(times) + 1)), tuple(1 / t for t in times), len(times)))
)
additive_tables = st.tuples(st.integers(1, 9), st.integers(0, 4)).map(
    lambda bias_slope: AdditiveTable(bias_slope[0], Curve((1,), (0.0,)), Curve((1, 12), (0.0, 11.0 * bias_slope[1])))
)
costs = st.one_of(step_tables, additive_tables)


def every_choice(rows: list[list[float]], cost: CostTable) -> dict[tuple[int, ...], float]:
    """Tokens per second of every way to give each request 1..g + 1 rows."""
    choices = {}
    for lengths in itertools.product(range(1, len(rows[0]) + 2), repeat=len(rows)):
        tokens = sum(1.0 + sum(row[: length - 1]) for row, length in zip(rows, lengths, strict=True))
        choices[lengths] = tokens / cost.step_time(len(rows), sum(lengths))
    return choices


@given(batches, costs)
@settings(deadline=None)
def test_the_global_form_is_the_best_of_all_choices(confident: list[list[float]], cost: CostTable) -> None:
    rows = survival(confident)
    lengths = allocate(rows, best_count(rows, Times(cost).of(len(rows), len(rows[0])).real))
    choices = every_choice(rows, cost)
    assert choices[lengths] == pytest.approx(max(choices.values()), rel=1e-9)


@given(batches, costs)
@settings(deadline=None)
def test_the_causal_form_is_the_first_peak_over_the_number_of_rows(
    confident: list[list[float]], cost: CostTable
) -> None:
    rows = survival(confident)
    choices = every_choice(rows, cost)
    most = len(rows) * (len(rows[0]) + 1)
    peak = [max(rate for one, rate in choices.items() if sum(one) == n) for n in range(len(rows), most + 1)]
    first = next((i for i in range(len(peak) - 1) if peak[i + 1] <= peak[i] * (1 + 1e-12)), len(peak) - 1)
    count = causal_count(rows, Times(cost).of(len(rows), len(rows[0])).real)
    assert count == first
    tokens = len(rows) + sum(sorted((alive for row in rows for alive in row), reverse=True)[:count])
    assert tokens / cost.step_time(len(rows), len(rows) + count) == pytest.approx(peak[first], rel=1e-9)


@given(batches, st.integers(0, 12))
def test_rows_go_to_the_best_by_rank(confident: list[list[float]], count: int) -> None:
    """The rank of a row is the number of rows strictly before it; counted pairwise here."""
    rows = survival(confident)
    every = [(r, k) for r in range(len(rows)) for k in range(len(rows[0]))]

    def before(one: tuple[int, int], other: tuple[int, int]) -> bool:
        a, b = rows[one[0]][one[1]], rows[other[0]][other[1]]
        return a > b or (a == b and (one[1], one[0]) < (other[1], other[0]))

    expected = [1] * len(rows)
    for r, k in every:
        rank = sum(before(other, (r, k)) for other in every)
        expected[r] += rank < count and rows[r][k] >= 1e-6
    assert list(allocate(rows, count)) == expected
    keyed = torch.tensor(rows, dtype=torch.float64).t().flatten()
    stable = torch.sort(keyed, descending=True, stable=True).indices[:count] % len(rows)
    counted = torch.bincount(
        stable[keyed.sort(descending=True, stable=True).values[:count] >= 1e-6], minlength=len(rows)
    )
    assert [1 + int(n) for n in counted] == expected


@given(batches, costs, st.sampled_from([CausalPlanner, GlobalPlanner]))
@settings(deadline=None)
def test_every_request_has_at_least_one_row(confident: list[list[float]], cost: CostTable, kind: type) -> None:
    planner: Planner = kind(cost)
    slots = range(len(confident))
    for _ in range(3):
        lengths = planner.lengths(slots, confident)
        assert len(lengths) == len(confident)
        assert all(1 <= n <= len(confident[0]) + 1 for n in lengths)


@pytest.mark.parametrize("scheduler", ["causal", "global"])
def test_where_rows_are_free_all_are_verified(scheduler: str) -> None:
    for cost in (FLAT, AdditiveTable(2.0, Curve((1, 8), (0.0, 1.0)), Curve((1, 72), (0.5, 0.5)))):
        planner = planner_for(scheduler, cost)  # type: ignore[arg-type]
        assert isinstance(planner, VerifyAll)
        assert planner.lengths([1, 2], [[0.0, 0.0], [1e-30, 0.5]]) == (3, 3)


def test_one_request_follows_the_marginal_rule() -> None:
    """Another row pays while its survival over the tokens so far exceeds the relative rise of the step."""
    cost = AdditiveTable(1.0, Curve((1,), (0.0,)), Curve((1, 11), (0.0, 1.0)))
    rows = [0.8**k for k in range(1, 11)]
    tokens, expected = 1.0, 1
    for alive in rows:
        if alive / tokens <= 0.1 / cost.step_time(1, expected):
            break
        tokens, expected = tokens + alive, expected + 1
    assert 1 < expected < 11
    assert 1 + causal_count([rows], Times(cost).of(1, len(rows)).real) == expected


def test_a_stair_is_neither_the_end_nor_left_before_its_end() -> None:
    """Tiles of four rows: the fifth row does not pay by itself, five to eight do; and on a stair all rows are free."""
    tiles = StepTable((1, 5, 9, 13), (1.0, 0.7, 0.4, 0.25), 16)
    sure = [[0.95] * 15]
    rows = survival(sure)
    assert causal_count(rows, Times(tiles).of(len(rows), len(rows[0])).real) + 1 == 4
    assert CausalPlanner(tiles).lengths([1], sure) == (8,)
    assert GlobalPlanner(tiles).lengths([1], sure) == (8,), "the best of all"
    assert CausalPlanner(tiles).lengths([1], [[0.5] * 15]) == (4,), "not worth another stair"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12).map(sorted))
def test_the_floor_is_the_largest_convex_curve_below(values: list[int]) -> None:
    floor = convex_floor(values)
    assert len(floor) == len(values)
    assert all(low <= high + 1e-9 for low, high in zip(floor, values, strict=True))
    slopes = [b - a for a, b in itertools.pairwise(floor)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(slopes))
    for x in range(len(values)):
        chords = [
            values[a] + (values[b] - values[a]) * (x - a) / (b - a) for a in range(x) for b in range(x + 1, len(values))
        ]
        assert floor[x] == pytest.approx(min([values[x], *chords]))


def test_free_rows_end_where_time_rises() -> None:
    times = [1.0, 1.0, 1.001, 1.004, 1.006, 2.0]
    assert [with_free_rows(count, times) for count in range(6)] == [3, 3, 4, 4, 4, 5]


@given(batches, costs, st.data())
@settings(deadline=None)
def test_the_causal_planner_never_looks_at_what_a_draft_has_shaped(
    confident: list[list[float]], cost: CostTable, data: st.DataObject
) -> None:
    """Confidences behind a row may be anything: whether the row is verified stays what it was."""
    planner = CausalPlanner(cost)
    request = data.draw(st.integers(0, len(confident) - 1))
    row = data.draw(st.integers(0, len(confident[0]) - 1))
    other = [list(one) for one in confident]
    other[request][row + 1 :] = [data.draw(confidence) for _ in other[request][row + 1 :]]
    slots = range(len(confident))
    before, after = (planner.lengths(slots, one)[request] for one in (confident, other))
    assert (before > row + 1) == (after > row + 1)


def test_the_global_count_is_the_last_steps() -> None:
    """What a request was confident of before decides how many rows there are; now decides only whose."""
    planner = GlobalPlanner(AdditiveTable(1.0, Curve((1,), (0.0,)), Curve((1, 11), (0.0, 4.0))))
    sure, unsure = [1.0, 1.0], [0.0, 0.0]
    assert planner.lengths([1, 2], [sure, unsure]) == (3, 1), "new requests count as certain, but nothing is wasted"
    assert planner.lengths([1, 2], [unsure, sure]) == (1, 3), "two rows from before go to whoever deserves them now"
    assert planner.lengths([1, 2], [unsure, unsure]) == (1, 1)
    assert planner.lengths([1, 2], [sure, sure]) == (1, 1), "none from before"
    planner.forget(2)
    assert planner.lengths([1, 2], [unsure, sure]) == (1, 3)


# The paper's counterexample -------------------------------------------------------------------------------------------
#
# The first token's target is 0.7 / 0.3 and its draft is drawn evenly. A second draft is promising behind the first
# token only. One row more than the anchor does not pay by itself, two do if the second is promising.

TARGET = torch.tensor([0.7, 0.3], dtype=torch.float64)
COST = StepTable((1, 2, 3), (1.0, 0.5, 0.45), 3)
FIRST = 0.8
"""sum of min(p, q)"""
SECOND = {0: 1.0, 1: 0.2}


def unstopped(rows: list[list[float]]) -> int:
    """Early stop removed, confidences of this very step."""
    return allocate(rows, best_count(rows, Times(COST).of(len(rows), len(rows[0])).real))[0]


def stopped(rows: list[list[float]]) -> int:
    return 1 + causal_count(rows, Times(COST).of(len(rows), len(rows[0])).real)


def first_tokens(plan: object, samples: int = 40000) -> torch.Tensor:
    noise = torch.Generator().manual_seed(2)
    draft = torch.randint(2, (samples, 1), generator=noise)
    lengths = [plan(survival([[FIRST, SECOND[token]]])) for token in draft.flatten().tolist()]  # type: ignore[operator]
    second = torch.tensor([0.5, 0.5], dtype=torch.float64)
    chain = Chain(
        p=torch.stack([TARGET, second, second]).expand(samples, -1, -1),
        q=torch.full((samples, 2, 2), 0.5, dtype=torch.float64),
        drafts=torch.cat([draft, torch.randint(2, (samples, 1), generator=noise)], dim=1),
        uniforms=torch.rand(samples, 2, generator=noise, dtype=torch.float64),
        bonus_uniform=torch.rand(samples, generator=noise, dtype=torch.float64),
        lengths=torch.tensor(lengths),
    )
    return torch.bincount(chain_rejection(chain).tokens[:, 0], minlength=2)


def test_looking_past_the_first_drop_shifts_the_output() -> None:
    shifted = first_tokens(unstopped).numpy()
    assert p_value(shifted, np.array([0.85, 0.15])) > SUSPICIOUS, "the paper's figures"
    assert p_value(shifted, TARGET.numpy()) < SUSPICIOUS
    assert p_value(first_tokens(stopped).numpy(), TARGET.numpy()) > SUSPICIOUS
