"""Text with the tokenizer that ships, which learned English arithmetic: every other script falls apart into bytes."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedExecutor
from tokenizers import Tokenizer as Backend

from ling_runtime.detokenizer import Detokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from ling_runtime.tokenizer import Tokenizer

SCRIPTS = {
    "latin": "Ça coûte 30 €, größer als Łódź; tiếng Việt",
    "greek": "Δώδεκα μήλα και τριάντα αχλάδια",
    "cyrillic": "Двенадцать яблок и тридцать груш",
    "hebrew": "שנים עשר תפוחים",
    "arabic": "اثنتا عشرة تفاحة وثلاثون",
    "devanagari": "बारह सेब और तीस नाशपाती",
    "tamil": "பன்னிரண்டு ஆப்பிள்கள்",
    "thai": "แอปเปิ้ลสิบสองลูก",
    "han": "十二个苹果、三十个梨。𠮷野家",
    "kana": "りんごが十二個、ナシが三十個",
    "hangul": "사과 열두 개와 배 서른 개",
    "emoji": "🍎🍐 👍🏽 👩‍👩‍👧‍👦 🇩🇪 ❤️‍🔥 1️⃣",
    "combining": "e\u0301 a\u0308\u0323 \u1112\u1161\u11ab Z\u0351\u036b\u0343\u032a",
}


def chunks(url: str, tokens: int, prompt: int = 0, **sampling: Any) -> list[dict[str, Any]]:
    """What a streaming client gets, chunk by chunk."""
    params = {"max_new_tokens": tokens, "temperature": 0, **sampling}
    body = {"input_ids": [prompt], "stream": True, "sampling_params": params}
    lines = httpx.post(f"{url}/generate", json=body, timeout=20).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.whole), 4])
def test_every_script_streams_in_whole_characters(listening: Any, shipped_tokenizer: Tokenizer, window: int) -> None:
    answers = [shipped_tokenizer.encode(text) for text in SCRIPTS.values()]
    url = listening(ScriptedExecutor(lambda p: answers[p[0]], window=window, step_s=0.002), shipped_tokenizer)
    for index, text in enumerate(SCRIPTS.values()):
        received = chunks(url, len(answers[index]), prompt=index)
        assert len(answers[index]) > len(text) / 2, "the script is known to the tokenizer, so it tests nothing"
        assert received[-1]["text"] == text
        assert received[-1]["output_ids"] == answers[index]
        assert all(after["text"].startswith(before["text"]) for before, after in pairwise(received))
        assert not any("\ufffd" in chunk["text"] for chunk in received)
        assert len({chunk["text"] for chunk in received}) > 3


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stop_string_is_found_wherever_tokens_part(shipped_tokenizer: Tokenizer, script: str) -> None:
    """Every piece of the text is a stop string once: those within a token, across two, across ten."""
    text = SCRIPTS[script]
    tokens = shipped_tokenizer.encode(text)
    for start in range(len(text)):
        for length in (1, 2, 3, 7):
            stop = text[start : start + length]
            shown, matched = "", None
            detokenizer = Detokenizer(shipped_tokenizer, (stop, "never there"))
            for token in tokens:
                piece, matched = detokenizer.push(token)
                shown += piece
                assert stop not in shown
                if matched:
                    break
            assert (shown, matched) == (text[: text.index(stop)], stop)


@pytest.mark.parametrize("window", [1, 2, 4])
def test_stop_strings_across_tokens_over_http(listening: Any, shipped_tokenizer: Tokenizer, window: int) -> None:
    answer = " She has 12 + 30 = 42 apples.\n#### 42\n\nQuestion: Tom has 5 pears."
    tokens = shipped_tokenizer.encode(answer)
    url = listening(ScriptedExecutor(lambda _: tokens, window=window, step_s=0.001), shipped_tokenizer)
    pieces = [shipped_tokenizer.token_bytes(token).decode() for token in tokens]
    for stop in ("\n\nQuestion:", "## 4", "pples.\n#", "2 + 3", "Question: Tom has 5 pears!", "T"):
        assert stop == "T" or not any(stop in piece for piece in pieces), "it should need several tokens"
        received = chunks(url, len(tokens), stop=["no such text", stop])
        found = answer.find(stop)
        assert received[-1]["text"] == (answer[:found] if found >= 0 else answer)
        assert all(received[-1]["text"].startswith(chunk["text"]) for chunk in received)
        reason = received[-1]["meta_info"]["finish_reason"]
        assert reason == (
            {"type": "stop", "matched": stop} if found >= 0 else {"type": "length", "length": len(tokens)}
        )


@given(ids=st.lists(st.integers(0, 1023), max_size=40), skip=st.booleans())
@settings(max_examples=200, deadline=None)
def test_pieces_of_any_ids_equal_the_library(
    shipped: Path, shipped_tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    backend = Backend.from_file(str(shipped / "tokenizer.json"))
    detokenizer = Detokenizer(shipped_tokenizer, skip_special_tokens=skip)
    text = "".join(detokenizer.push(token)[0] for token in ids) + detokenizer.close()
    assert text == backend.decode(ids, skip_special_tokens=skip)
