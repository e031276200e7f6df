"""The page in a real browser: its numbers are the records', it fits a phone, and it asks the network for nothing."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING

import pytest

from analysis.dossier import studies
from analysis.report.page import page
from tests import browser
from tests.analysis.made import BROKEN, CAMPAIGN, CELLS, DECISIONS, cell, write
from tests.browser import dom

if TYPE_CHECKING:
    from pathlib import Path

PHONE = 390
WIDER = (999, 1000, 1400)
pytestmark = [pytest.mark.process, browser.needed]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """With the longest names, commands and lines that a record may bring."""
    long = "kernels.router=" + "x" * 300
    wide = cell("wide", 2.0, reason=long, axes={long: long}, flags=[long])
    broken = BROKEN | {"failure": BROKEN["failure"] | {"log_tail": f"{long}\n" * 3}}
    cells = [*CELLS[:-1], wide, broken]
    return page(studies(write(tmp_path_factory.mktemp("out"), *cells, *DECISIONS, campaign=CAMPAIGN)))


def shown(directory: Path, content: str) -> str:
    (directory / "page.html").write_text(content)
    return dom((directory / "page.html").as_uri(), directory / "profile")


def test_numbers_read_off_the_page_are_the_records(text: str, tmp_path: Path) -> None:
    found = dict(re.findall(r'data-of="([^"]+)">([^<]+)</data>', shown(tmp_path, text)))
    for record in CELLS[:-1]:
        measured, name = record["metrics"], record["name"]
        assert found[f"{name}/mean_tpot_ms"] == f"{measured['mean_tpot_ms']:.3f}"
        assert found[f"{name}/step_ms"] == f"{measured['step_ms']:.3f}"
        assert found[f"{name}/accept_length"] == f"{measured['accept_length']:.2f}"
        assert found[f"{name}/accuracy"] == f"{record['task']['accuracy']:.3f}"


def test_nothing_is_wider_than_a_phone_or_any_screen_and_a_script_would_not_run(text: str, tmp_path: Path) -> None:
    """The page lies in a frame as wide as a phone; with it one that is too wide, to see that the ruler works."""
    hostile = text.replace("</body>", "<script>document.title = 'ran'</script></body>")
    hostile = hostile.replace("<details", "<details open")
    control = f"<!doctype html><body style='margin:0'><div style='width:{PHONE + 100}px'>wide</div>"
    frames = "".join(
        f'<iframe style="border:0;width:{PHONE}px;height:844px" srcdoc="{html.escape(content)}"></iframe>'
        for content in (hostile, control)
    )
    frames += "".join(
        f'<iframe style="border:0;width:{width}px;height:844px" srcdoc="{html.escape(hostile)}"></iframe>'
        for width in WIDER
    )
    script = (
        "onload = () => document.body.append(JSON.stringify([...document.querySelectorAll('iframe')].map(f => "
        "[f.contentDocument.documentElement.scrollWidth, f.contentDocument.title,"
        " getComputedStyle(f.contentDocument.querySelector('thead') || f).display])))"
    )
    seen = shown(tmp_path, f"<!doctype html><body>{frames}<script>{script}</script>")
    (page_width, title, head), (control_width, *_), *wider = json.loads(seen[seen.rindex("[[") : seen.rindex("]]") + 2])
    assert (page_width, control_width) == (PHONE, PHONE + 100)
    assert title == "Report: tuning"
    assert head == "none", "rows are cards there"
    assert [width for width, *_ in wider] == [*WIDER]
    assert [head for *_, head in wider] == ["none", "table-header-group", "table-header-group"]
