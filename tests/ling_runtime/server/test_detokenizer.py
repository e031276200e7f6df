"""Text in pieces: whole characters, nothing past or inside a stop string, and together exactly the decoded sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ling_runtime.detokenizer import Detokenizer, StopScanner

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

    from ling_runtime.tokenizer import Tokenizer

SCRIPTS = [
    "plain words, then 12 + 30 = 42.",
    "日本語のテキスト、漢字とかな",
    "नमस्ते दुनिया",
    "العربية والعبرية עברית",
    "emoji 😀👍🏽👩‍👩‍👧 end",
    "Ελληνικά, кириллица, ไทย, 한국어",
    "mixed\u0301 accents e\u0301 and \U0001f1e9\U0001f1ea flags",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_any_script_comes_in_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token)[0] for token in tokenizer.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert "".join(pieces) + detokenizer.close() == text
    assert len([piece for piece in pieces if piece]) > 1, "the text should arrive in pieces"


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_pieces_of_any_ids_equal_the_library(tokenizer: Tokenizer, backend: Backend, data: st.DataObject) -> None:
    """Random ids are mostly broken UTF-8, special tokens and added tokens in any order."""
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=40))
    skip = data.draw(st.booleans())
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    text = "".join(detokenizer.push(token)[0] for token in ids) + detokenizer.close()
    assert text == backend.decode(ids, skip_special_tokens=skip)


def test_an_unfinished_character_waits_and_ends_as_replacement(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("é")  # two bytes, no merge for it in the vocabulary
    assert len(tokens) == 2
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(tokens[0]) == ("", None)
    assert detokenizer.close() == "\ufffd"


def test_ids_without_a_token_have_no_text(tokenizer: Tokenizer) -> None:
    assert Detokenizer(tokenizer).push(511) == ("", None)


def test_a_partial_stop_string_is_held_back() -> None:
    scanner = StopScanner(("Question:",))
    assert scanner.push("42. Ques") == ("42. ", None)
    assert scanner.push("tion") == ("", None)
    assert scanner.push("s remain") == ("Questions remain", None)
    assert scanner.push(" Question") == (" ", None)
    assert scanner.push(": next") == ("", "Question:")


def test_held_text_is_given_at_the_end() -> None:
    scanner = StopScanner(("####",))
    assert scanner.push("a ##") == ("a ", None)
    assert scanner.close() == "##"
    assert scanner.close() == ""


def test_the_stop_string_can_be_kept() -> None:
    scanner = StopScanner(("end",), keep_stop=True)
    assert scanner.push("the end of it") == ("the end", "end")


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
    cuts=st.lists(st.integers(1, 4), min_size=30, max_size=30),
)
def test_scanning_in_pieces_equals_searching_the_whole(text: str, stops: list[str], cuts: list[int]) -> None:
    """The first stop to be completed ends the text; of those completed by one piece, the earliest wins."""
    scanner = StopScanner(tuple(stops))
    shown, start, matched = "", 0, None
    for cut in cuts:
        piece, start = text[start : start + cut], start + cut
        given_out, matched = scanner.push(piece)
        shown += given_out
        if matched or start >= len(text):
            break
    if matched is None:
        assert not any(stop in text for stop in stops)
        assert shown + scanner.close() == text
    else:
        assert shown == text[: min(at for stop in stops if (at := text[:start].find(stop)) >= 0)]
        assert text.startswith(shown + matched)
