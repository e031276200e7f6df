"""Notes in MLflow are Markdown of ours around text of others, and none of that becomes markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from markdown_it import MarkdownIt

from analysis.dossier import studies
from experiments import notes
from tests.analysis.made import BASE, BROKEN, cell, decision, write
from tests.attacks import ATTACKS

if TYPE_CHECKING:
    from pathlib import Path

LINKS = {"record": "#/experiments/1/runs/2/artifacts/record.json"}


class Rendered(HTMLParser):
    """Tags and places, and the text between."""

    def __init__(self, markdown: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.places: list[str | None] = []
        self.text = ""
        self.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.places += [value for name, value in attrs if name in ("href", "src")]
        assert {name for name, _ in attrs} <= {"href"}

    def handle_data(self, data: str) -> None:
        self.text += data


def spaced(text: str) -> str:
    return " ".join(text.replace("\x00", "\ufffd").split())


@pytest.mark.parametrize("evil", [attack for attack in ATTACKS if "&" not in attack])
def test_an_attack_is_shown_as_it_was_written(evil: str, tmp_path: Path) -> None:
    failed = BROKEN | {"failure": BROKEN["failure"] | {"message": evil}}
    for record in (
        cell("c", 2.0, reason=evil),
        decision("c", -0.1, "keep", "faster", reason=evil, hypothesis=evil),
        failed,
    ):
        seen = Rendered(notes.of_record(record, LINKS))
        assert {*seen.tags} <= {"p", "strong", "a"}
        assert seen.places == [*LINKS.values()]
        assert spaced(evil) in spaced(seen.text)
    ours, tame = (of_call(tmp_path / name, text) for name, text in (("evil", evil), ("tame", "words")))
    assert ours.tags == tame.tags, "no row, column or element of its own"
    assert ours.places == [*LINKS.values()]


def of_call(directory: Path, text: str) -> Rendered:
    failed = BROKEN | {"failure": BROKEN["failure"] | {"message": text}}
    told = decision("c", -0.1, "keep", "faster", reason=text, hypothesis=text)
    (study,) = studies(write(directory, BASE, failed, cell("c", 2.0, reason=text), told))
    return Rendered(notes.of_call(study, LINKS))


@pytest.mark.parametrize("evil", [attack for attack in ATTACKS if "&" in attack])
def test_an_entity_is_text_at_most(evil: str) -> None:
    seen = Rendered(notes.of_record(cell("c", 2.0, reason=evil), LINKS))
    assert {*seen.tags} <= {"p", "strong", "a"}
    assert re.search("alert\\(1\\)", seen.text)
