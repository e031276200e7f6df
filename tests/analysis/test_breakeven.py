"""Depth economics: the post's own arithmetic from its published sweep, and models whose truth is known."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.__main__ import main
from analysis.breakeven import breakeven
from analysis.breakeven_text import lines
from analysis.economics import Acceptance, Point, Routing, added, best, between, by_position, fit_cost, predict
from analysis.printed import Printed
from analysis.records import RecordError
from analysis.sweep import Recorded, committed, read_sweep, recorded

if TYPE_CHECKING:
    from pathlib import Path

POST = "steps,tokens,accept,tpot\n3,4,3.11,1.51\n4,5,3.37,1.45\n5,6,3.45,1.55\n"
"""Steps, draft tokens, mean accept length, mean TPOT in ms, as published."""


@pytest.fixture
def post(tmp_path: Path) -> Path:
    path = tmp_path / "post.csv"
    path.write_text(POST)
    return path


def test_the_posts_table_is_reproduced(post: Path) -> None:
    report = breakeven(read_sweep(post)["nextn"])
    assert [round(point.step_ms, 2) for point in report.measured] == [4.70, 4.89, 5.35]
    assert [round(1e3 / point.tpot_ms) for point in report.measured] == [662, 690, 645]
    four, five = report.added
    assert (round(four.gain, 2), round(five.gain, 2)) == (0.26, 0.08)
    assert (round(four.cost_share, 2), round(five.cost_share, 2)) == (0.04, 0.09)
    assert (four.pays, five.pays) == (True, False)
    assert report.measured_optimum == report.optimum.depth == 4


def test_the_posts_rule_of_thumb_is_the_mean_added_share(post: Path) -> None:
    """It says: break-even is roughly an added accept length of 0.05 times the accept length."""
    report = breakeven(read_sweep(post)["nextn"])
    per_draft = report.cost.values_ms[1] / np.mean([point.step_ms for point in report.measured])
    assert 0.04 < report.added[0].cost_share < 0.05 < per_draft < report.added[1].cost_share < 0.1


def test_the_last_digits_of_the_post_do_not_decide_its_optimum(post: Path) -> None:
    optimum = breakeven(read_sweep(post)["nextn"]).optimum
    assert (optimum.low, optimum.high) == (4, 4)
    assert optimum.shares[4] > 0.99


def test_a_smaller_base_makes_depth_less_attractive_and_a_cheaper_draft_more(post: Path) -> None:
    report = breakeven(read_sweep(post)["nextn"], factors=(0.5, 0.25))
    assert [move.smaller_base for move in report.moved] == [3, 3]
    assert [move.cheaper_draft for move in report.moved] == [4, 5]


@pytest.mark.parametrize(("rows", "experts"), [(1, 8.00), (4, 31.26), (6, 46.16), (9, 67.66), (17, 120.26)])
def test_distinct_experts_of_ling_3_flash(rows: int, experts: float) -> None:
    assert Routing(512, 8).distinct(rows) == pytest.approx(experts, abs=0.005)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 20))
def test_distinct_experts_grow_and_stay_within_what_there_is(experts: int, top_k: int, rows: int) -> None:
    routing = Routing(experts, min(top_k, experts))
    few, many = routing.distinct(rows), routing.distinct(rows + 1)
    assert min(top_k, experts) - 1e-9 <= few <= many + 1e-9
    assert many <= min(experts, (rows + 1) * routing.top_k) + 1e-9


def sweep(base: float, slope: float, reach: float, depths: range) -> list[Point]:
    accept = Acceptance(start=0, accept=1.0, gains=tuple(reach**i for i in range(1, 13)))
    return [Point(depth=d, forwards=d, step_ms=base + slope * d, accept=accept.at(d)) for d in depths]


@given(st.floats(1, 10), st.floats(0.01, 1), st.floats(0.3, 0.95))
def test_a_known_model_is_found_again_and_its_optimum_with_it(base: float, slope: float, reach: float) -> None:
    points = sweep(base, slope, reach, range(1, 7))
    cost = fit_cost(points)
    assert cost.columns == ("rows",)
    assert cost.values_ms == pytest.approx((base - slope, slope), abs=1e-6)
    found = best(predict(cost, between(points), {point.depth: point.forwards for point in points}))
    assert found.tpot_ms == pytest.approx(best(points).tpot_ms, abs=1e-6)


def test_rows_and_forwards_are_told_apart_where_they_differ() -> None:
    shapes = [(1, 1), (2, 2), (4, 4), (4, 1), (8, 1), (12, 1)]
    points = [Point(depth=d, forwards=f, step_ms=5 + 0.2 * (d + 1) + 0.3 * f, accept=1.0) for d, f in shapes]
    cost = fit_cost(points)
    assert cost.columns == ("rows", "forwards")
    assert cost.values_ms == pytest.approx((5, 0.2, 0.3))
    assert all(interval and interval[0] <= interval[1] for interval in cost.intervals_ms)


def test_the_interval_of_a_cost_covers() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(400):
        noisy = [
            Point(depth=d, forwards=d, step_ms=4 + 0.3 * d + generator.normal(0, 0.05), accept=1.0) for d in range(1, 7)
        ]
        low, high = fit_cost(noisy).intervals_ms[1] or (0.0, 0.0)
        hits += low <= 0.3 <= high
    assert hits / 400 == pytest.approx(0.95, abs=0.035)


def test_one_depth_has_no_cost() -> None:
    with pytest.raises(ValueError, match="two depths"):
        fit_cost(sweep(5, 0.2, 0.8, range(3, 4)))


def test_acceptance_by_position_and_between_depths_agree() -> None:
    committed_steps = np.array([20.0, 30.0, 10.0, 40.0])
    positions = by_position(committed_steps)
    assert positions.gains == pytest.approx((0.8, 0.5, 0.4))
    assert positions.at(3) == pytest.approx((committed_steps @ [1, 2, 3, 4]) / 100)
    points = [Point(depth=d, forwards=d, step_ms=1.0, accept=positions.at(d)) for d in range(1, 4)]
    assert between(points).gains == pytest.approx(positions.gains[1:])


def test_beyond_the_deepest_gains_fall_by_their_last_ratio() -> None:
    known = Acceptance(start=3, accept=3.0, gains=(0.4, 0.2))
    assert known.at(7) == pytest.approx(3.6 + 0.1 + 0.05)


@given(st.floats(1, 10), st.floats(1.01, 8), st.floats(0.01, 2), st.floats(0.001, 1))
def test_a_draft_pays_exactly_if_time_per_token_falls(step: float, accept: float, cost: float, gain: float) -> None:
    before = Point(depth=3, forwards=3, step_ms=step, accept=accept)
    after = Point(depth=4, forwards=4, step_ms=step + cost, accept=accept + gain)
    found = added(before, after)
    if abs(found.gain_share - found.cost_share) > 1e-9:
        assert found.pays == (after.tpot_ms < before.tpot_ms)
        assert found.pays == (gain > found.needed)


def request(stamps: list[int], steps: int | None) -> dict[str, object]:
    return {
        "completion_tokens": stamps[-1],
        "spec_verify_ct": steps,
        "ttft_s": 0.1,
        "latency_s": 0.1 + 0.01 * (len(stamps) - 1),
        "stamps": [[0.1 + 0.01 * i, tokens] for i, tokens in enumerate(stamps)],
    }


def test_requests_become_a_depth() -> None:
    rows = [request([1, 3, 4, 7, 8], 4), request([1, 4, 8], 2)]
    cell = recorded("nextn-3-4", {"algorithm": "nextn", "num_steps": 3}, rows)
    assert cell.committed is not None
    assert cell.committed.tolist() == [[1, 1, 1, 0], [0, 0, 1, 0]]
    point = cell.point(None)
    assert (point.rows, point.accept, point.step_ms) == (4, 14 / 6, pytest.approx(10.0))
    assert recorded("none", {"algorithm": "none"}, [request([1, 2, 3], None)]).point(None).accept == 1.0


def test_a_stream_that_does_not_come_step_by_step_has_no_positions() -> None:
    assert committed([request([1, 8, 9], 4)], 4) is None
    assert committed([request([1, 8, 9], 2)], 4) is None


def noisy_cell(depth: int, generator: np.random.Generator, requests: int = 64) -> Recorded:
    """A miniature of its own: base 8 ms, 0.4 ms a draft, drafts accepted with probability 0.8 each."""
    drafts = generator.random((requests, 40, depth)) < 0.8
    lengths = 1 + drafts.cumprod(axis=2).sum(axis=2)
    steps = np.full(requests, 40.0)
    return Recorded(
        name=f"nextn-{depth}",
        algorithm="nextn",
        depth=depth,
        decode_s=steps * (8 + 0.4 * depth) * 1e-3 * np.exp(generator.normal(0, 0.03, requests)),
        steps=steps,
        tokens=lengths.sum(axis=1).astype(float),
        committed=np.stack([np.bincount(row, minlength=depth + 2)[1:] for row in lengths]).astype(float),
    )


def test_the_interval_of_the_optimum_holds_the_true_one() -> None:
    truth = best(sweep(8, 0.4, 0.8, range(1, 13))).depth
    hits = 0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        optimum = breakeven([noisy_cell(depth, generator) for depth in (1, 2, 4, 6)], draws=60).optimum
        hits += optimum.low <= truth <= optimum.high
    assert hits >= 17


def test_an_optimum_beyond_the_sweep_is_said_to_lie_there() -> None:
    generator = np.random.default_rng(1)
    report = breakeven([noisy_cell(depth, generator) for depth in (1, 2)], draws=20)
    assert report.optimum.depth > 2
    assert (report.expected_optimum, report.agrees) == (2, True)
    assert "the sweep ends at depth 2" in "\n".join(lines(report))


def test_a_printed_figure_stands_for_what_rounds_to_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"steps": 3, "tokens": 4, "accept": 3.110, "tpot": 1.5}]')
    (cell,) = read_sweep(path)["nextn"]
    assert cell == Printed(depth=3, accept=(3.11, 0.0005), tpot_ms=(1.5, 0.05))
    path.write_text('[{"steps": 0, "tokens": 1, "accept": 1, "tpot": "3e1"}]')
    (plain,) = read_sweep(path)["none"]
    assert plain == Printed(depth=0, accept=(1.0, 0.5), tpot_ms=(30.0, 5.0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("steps,tokens,accept\n3,4,3.1\n", "row 1: lacks tpot"),
        ("steps,tokens,accept,tpot\n3,5,3.1,1.5\n", "5 tokens are not 3 steps and one"),
        ("steps,tokens,accept,tpot\n3,4,3.1,1.5\n3,4,3.2,1.5\n", "are one depth"),
        ("steps,tokens,accept,tpot\n3,4,abc,1.5\n", "row 1: accept=abc is no number"),
        ("steps,tokens,accept,tpot\n3,4,nan,1.5\n", "row 1: accept=nan is no number"),
        ("steps,tokens,accept,tpot\n3,4,4.2,1.5\n", "cannot come out of a window of 4"),
        ("steps,tokens,accept,tpot\n3,4,3.2,-2\n", "row 1: tpot=-2 is no time"),
        ("steps,tokens,accept,tpot\n-1,0,1,2\n", "row 1: steps=-1 is no number of tokens"),
        ("[1, 2]", "no list of objects"),
        ('{"steps": 3}', "no list of objects"),
        ("[1, ", "no JSON"),
    ],
)
def test_a_table_that_is_no_sweep_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / ("bad.csv" if text.startswith("steps") else "bad.json")
    path.write_text(text)
    with pytest.raises(RecordError, match=re.escape(why)):
        read_sweep(path)


def test_a_file_that_holds_no_text_or_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("noise.csv", "absent.csv"):
        with pytest.raises(RecordError, match="no table that can be read"):
            read_sweep(tmp_path / name)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("requests.jsonl", None),
        ("requests.jsonl", b""),
        ("requests.jsonl", b'{"index": 0'),
        ("requests.jsonl", b"[1]"),
        ("requests.jsonl", b"\xff\xfe"),
        ("spec.yaml", None),
        ("spec.yaml", b"null"),
        ("spec.yaml", b"[1]"),
        ("spec.yaml", b"a: [1"),
        ("record.json", b"null"),
        ("record.json", b"\xff"),
    ],
)
def test_a_record_whose_files_are_damaged_is_named(tmp_path: Path, file: str, content: bytes | None) -> None:
    attempt = tmp_path / "study/nextn-3-4/attempt-1"
    attempt.mkdir(parents=True)
    record = {"schema": 1, "study": "study", "name": "nextn-3-4", "attempt": 1, "status": "valid"}
    (attempt / "record.json").write_text(json.dumps(record))
    (attempt / "spec.yaml").write_text("speculation: {algorithm: nextn, num_steps: 3}")
    (attempt / "requests.jsonl").write_text(json.dumps(request([1, 3, 4, 7, 8], 4) | {"index": 0}))
    assert read_sweep(tmp_path)["nextn"][0].depth == 3
    if content is None:
        (attempt / file).unlink()
    else:
        (attempt / file).write_bytes(content)
    with pytest.raises(RecordError, match="nextn-3-4/attempt-1"):
        read_sweep(tmp_path)


def test_the_command_prints_the_posts_sweep(post: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["breakeven", str(post), "--experts", "512", "--top-k", "8", "--factor", "0.5"]) == 0
    text = capsys.readouterr().out
    assert "predicted optimum: depth 4 [4, 4]" in text
    assert "3: 31.3, 4: 38.8, 5: 46.2" in text
    assert main(["breakeven", str(post), "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["agrees"] is True
    assert report["added"][1]["pays"] is False


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--experts", "0"], "--experts: 0 is too small"),
        (["--experts", "4"], "--top-k: 8 of 4 experts"),
        (["--factor", "-1"], "--factor: -1 is no share"),
        (["--algorithm", "dspark"], "--algorithm dspark: the sweep has two depths or more of nextn"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(
    post: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    assert main(["breakeven", str(post), *words]) == 2
    assert why in capsys.readouterr().err


def test_the_command_refuses_a_single_depth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.csv"
    path.write_text("".join(POST.splitlines(keepends=True)[:2]))
    assert main(["breakeven", str(path)]) == 2
    assert "two depths or more" in capsys.readouterr().err
