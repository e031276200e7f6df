"""The page holds what the records hold, all digits of it, shows what came to nothing, and lets nothing in."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from analysis.__main__ import main
from analysis.dossier import studies
from analysis.report import svg
from analysis.report.markup import tag
from analysis.report.page import page
from analysis.report.plots import plots
from experiments.claim import claimed
from tests.analysis.made import BASE, BROKEN, CAMPAIGN, CELLS, DECISIONS, ENVIRONMENT, LOAD, cell, decision, gate, write
from tests.attacks import ATTACKS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return write(tmp_path / "out", *CELLS, *DECISIONS, campaign=CAMPAIGN)


def of(directory: Path) -> str:
    return page(studies(directory))


def figures(text: str) -> dict[str, float]:
    """What the page says each figure is, all digits."""
    return {name: float(value) for value, name in re.findall(r'<data value="([^"]+)" data-of="([^"]+)">', text)}


class Words(HTMLParser):
    """The page's text, and whether every element that was opened was closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + " "


def test_every_figure_is_the_records_to_the_last_digit(campaign: Path) -> None:
    shown = figures(of(campaign))
    for record in CELLS:
        if record["metrics"]:
            for key in ("accept_length", "mean_tpot_ms", "median_tpot_ms", "step_ms", "output_tok_s"):
                assert shown[f"{record['name']}/{key}"] == record["metrics"][key]
            assert shown[f"{record['name']}/accuracy"] == record["task"]["accuracy"]
    assert not [name for name in shown if name.startswith("broken/")]


def test_a_ratio_is_shown_with_its_interval_and_kept_as_the_logarithm_on_record(campaign: Path) -> None:
    text = of(campaign)
    card = text[text.index('data-decision="overlap"') :]
    assert figures(card[: card.index("</article>")])["step_time"] == -0.12
    assert "-11.3% [-12.2%, -10.4%]</data> (decides)" in card


def test_a_gate_that_binds_nothing_has_not_failed(tmp_path: Path) -> None:
    """And a reason is said once, a ratio says to which baseline, a cell has the verdict that was decided about it."""
    differs = gate("fail") | {"required": False}
    gates = {"byte_parity": differs, "logit_digest": gate("fail"), "accept_drift": gate("pass"), "p": gate("not_run")}
    change = {"class": "rounding", "parts": ["kernels.x", "declared: why"], "declared": "declared", "reason": "why"}
    kept = decision("told", -0.1, "keep", "faster", change=change, gates=gates)
    cells = BASE, cell("told", 2.0, gates=gates), cell("next", 1.0, baseline="told")
    text = of(write(tmp_path, *cells, kept))
    words = re.sub(r"\s+", " ", Words(text).text)
    assert words.count("1 passed, byte_parity differs (reported only), logit_digest FAILED, p NOT RUN") == 2
    assert "class rounding, rounding declared against" in words
    assert "faster : as the interval says" in words
    assert '<td data-heading="against">told</td>' in text
    heading = text[text.index('data-details="told"') :]
    assert heading[: heading.index("</summary>")].endswith('class="badge keep">keep</span>')


def test_what_came_to_nothing_has_its_place(campaign: Path) -> None:
    words = Words(of(campaign)).text
    assert "Not kept: pinned (reject), loud (inconclusive), broken (invalid)." in words
    for wanted in ("pinned saves a launch", "slower : as the interval says", "overlap has it already"):
        assert wanted in words
    assert "launch (launch): exit code 7" in words
    assert "no <memory> & no hope" in words, "the log's end"
    assert "gains 9.4% less among the others" in words
    assert "Kept, in this order: overlap." in words


def test_a_cells_verdict_is_that_of_the_decision_about_it(campaign: Path) -> None:
    text = of(campaign)
    verdicts = dict(
        re.findall(r'data-heading="cell">(\w+)</td><td data-heading="verdict"><span class="badge (\w+)"', text)
    )
    assert verdicts == {
        "base": "baseline", "overlap": "keep", "pinned": "reject", "loud": "inconclusive", "broken": "invalid",
    }  # fmt: skip


def test_commands_are_there_to_paste_and_evidence_to_follow(campaign: Path) -> None:
    text = of(campaign)
    assert "<pre>env NAME=&#39;a b&#39; python -m server --cell overlap</pre>" in text
    places = re.findall(r'href="([^"#][^"]*)"', text)
    assert "tuning/decisions/overlap/attempt-1/decision.json" in places
    assert all((campaign / place).exists() for place in places)


def test_nothing_is_loaded_or_run_and_all_is_closed(campaign: Path) -> None:
    text = of(campaign)
    assert Words(text).open == []
    assert "default-src &#39;none&#39;" in text
    assert not re.findall(r"<script|<link|<img|<iframe|\ssrc=|@import|url\(|\son\w+=", text)
    outside = set(re.findall(r"https?://[^\"\s<]+", text))
    assert outside <= {svg.NAMESPACE}


def test_what_others_wrote_stays_text(tmp_path: Path) -> None:
    evil = "</pre></title></style><script>alert(1)</script>\" onload='x"
    broken = BROKEN | {"failure": BROKEN["failure"] | {"message": evil, "log_tail": evil}}
    told = decision("told", -0.1, "keep", "faster", hypothesis=evil, reason=evil)
    asked = cell("told", 2.0, reason=evil, axes={"x": evil}, flags=[evil])
    text = of(write(tmp_path, BASE, broken, asked, told))
    assert "<script" not in text
    assert Words(text).text.count("alert(1)") >= 7
    assert Words(text).open == []


@pytest.mark.parametrize("evil", ATTACKS)
def test_no_attack_becomes_an_element_or_an_attribute(evil: str, tmp_path: Path) -> None:
    """Wherever text of others stands in a record; the page has the elements of one that holds harmless text there."""
    pages = [of(write(tmp_path / name, *hostile(text))) for name, text in (("evil", evil), ("tame", "words"))]
    (ours, texts), (tame, _) = map(Elements.of, pages)
    assert ours == tame
    assert re.sub(r"\s+", " ", evil).strip() in texts


def hostile(text: str) -> list[Any]:
    """Records whose every text comes from somewhere else."""
    gates = {"byte_parity": gate("fail", text) | {"evidence": {"baseline": text, "candidate": text, text: 1}}}
    broken = BROKEN | {"failure": {"class": "launch", "phase": "launch", "message": text, "log_tail": text}}
    change = {"class": "rounding", "parts": [text], "declared": "declared", "reason": text}
    said = {"reason": text, "change": change, "gates": gates, "flags": [text]}
    told = decision("told", -0.1, "keep", "faster", hypothesis=text, overrides=[text], effect=text, **said)
    asked = cell("told", 2.0, axes={"x": text}, environment=ENVIRONMENT | {"cpu": text, "load": LOAD}, **said)
    return [BASE, broken, asked, told]


class Elements(HTMLParser):
    """Elements with the names of their attributes, places that they lead to, and the page's text."""

    @classmethod
    def of(cls, page: str) -> tuple[list[Any], str]:
        parser = cls(convert_charrefs=True)
        parser.found, parser.text = [], ""
        parser.feed(page)
        return parser.found, re.sub(r"\s+", " ", parser.text)

    found: list[Any]
    text: str

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs], [value for name, value in attrs if name == "href"]))

    def handle_comment(self, data: str) -> None:
        self.found.append(("comment", data))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_same_records_make_the_same_page(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(campaign)]) == 0
    assert capsys.readouterr().out.strip() == str(campaign / "report.html")
    first = (campaign / "report.html").read_bytes()
    assert main(["report", str(campaign), "--out", str(campaign / "again.html")]) == 0
    assert (campaign / "again.html").read_bytes() == first


def test_a_campaign_has_all_plots_and_each_is_xml(campaign: Path) -> None:
    (study,) = studies(campaign)
    drawn = plots(study)
    assert [*drawn] == [
        "paired_ratios.svg", "trajectory_mean_tpot_ms.svg", "trajectory_output_tok_s.svg",
        "trajectory_accept_length.svg", "accept_by_position.svg", "step_by_rows.svg",
    ]  # fmt: skip
    for plot in drawn.values():
        root = ET.fromstring(svg.alone(plot))
        assert root.get("width") == "720"
        assert {float(x) <= svg.WIDTH for node in root.iter() for x in [node.get("x", "0").rstrip("%")]} == {True}


def test_the_path_joins_what_was_kept_and_the_rest_hangs_beside(campaign: Path) -> None:
    (study,) = studies(campaign)
    root = ET.fromstring(plots(study)["trajectory_mean_tpot_ms.svg"])
    circles = root.findall(f"{{{svg.NAMESPACE}}}circle")
    assert [circle.get("fill") == "none" for circle in circles] == [False, False, True, True]
    (path,) = root.findall(f"{{{svg.NAMESPACE}}}polyline")
    assert len((path.get("points") or "").split()) == 2, "base and the one that was kept"


def test_an_interval_without_an_end_runs_off_the_plot(tmp_path: Path) -> None:
    open_ended = decision("few", 0.2, "inconclusive", "interval")
    open_ended["comparison"]["step_time"]["always_valid"] |= {"low": None, "high": None}
    (study,) = studies(write(tmp_path, BASE, cell("few", 2.0), open_ended))
    assert plots(study)["paired_ratios.svg"].count("\N{BLACK LEFT-POINTING TRIANGLE}") == 1
    assert "[?, ?]" in of(tmp_path)


def test_a_sweep_without_decisions_has_neither_path_nor_ratios(tmp_path: Path) -> None:
    (study,) = studies(write(tmp_path, BASE, cell("deeper", 2.0, rows=6.0)))
    assert [*plots(study)] == ["accept_by_position.svg", "step_by_rows.svg"]


def test_what_differs_between_records_is_said(tmp_path: Path) -> None:
    other = cell("other", 2.0, environment=ENVIRONMENT | {"git_commit": "decade", "git_dirty": True, "load": LOAD})
    words = Words(of(write(tmp_path, BASE, other))).text
    assert "c0ffee (1x); decade with changes (1x)" in words


def test_gpus_and_strangers_stand_beside_the_cell(tmp_path: Path) -> None:
    seen = {
        "gpus": [
            {
                "index": "0",
                "samples": 40,
                "figures": {"SM clock MHz": {"min": 1200.0, "mean": 1900.25, "max": 1980.0}},
                "throttled": ["power cap in 3 of 40 samples"],
            }
        ],
        "foreign": [{"pid": "77", "used_mib": "900", "name": "python <train>", "known_here": True}],
    }
    busy = cell("busy", 2.0, environment=ENVIRONMENT | {"load": LOAD | {"telemetry": seen}})
    words = Words(of(write(tmp_path, BASE, busy))).text
    assert "GPU 0, 40 samples SM clock MHz 1200 to 1980 (mean 1900); power cap in 3 of 40 samples" in words
    assert "foreign GPU processes python <train> (pid 77, 900 MiB)" in words


def test_only_the_last_attempt_counts_and_what_is_being_measured_is_not_there_yet(campaign: Path) -> None:
    write(campaign, cell("loud", 9.0, attempt=2), cell("late", 1.0))
    with claimed(campaign / "tuning/late/attempt-1"):
        text = of(campaign)
    assert figures(text)["loud/mean_tpot_ms"] == 9.0
    assert "late/mean_tpot_ms" not in figures(text)
    assert "Being measured right now: late." in text
    assert "1 earlier attempts were replaced" in text


def test_a_directory_with_no_records_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "no record.json" in capsys.readouterr().err


def test_markup_escapes_text_and_attributes_and_leaves_elements_alone() -> None:
    assert tag("p", "a < b", tag("b", "&"), None, title='"') == '<p title="&#34;">a &lt; b<b>&amp;</b></p>'


@pytest.mark.parametrize("values", [(0.0,), (3.0, 3.0), (1e-9, 2e-9), (-5.0, 1e6), (0.1, 0.2)])
def test_scales_hold_what_they_are_made_for(values: tuple[float, ...]) -> None:
    scale = svg.covering(values, 0, 100)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in values)
    marks = svg.ticks(scale)
    assert 2 <= len(marks) <= 12
    assert json.loads(json.dumps(marks)) == sorted(marks)
