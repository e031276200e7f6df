"""Any text survives the tokenizer, and a prompt is cut as it would be inside the longer text."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ling_runtime.training.documents import plain, question
from ling_runtime.training.problems.generate import generate
from ling_runtime.training.tokenizer import EOS_ID, PAD_ID, SPECIALS, VOCAB_SIZE, train

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.whole

SCRIPTS = (
    "The quick brown fox, 1234 times!",
    "Съешь ещё этих мягких булок",
    "γρήγορη αλεπού",
    "敏捷的棕色狐狸跳过懒狗",
    "素早い茶色の狐がカタカナも",
    "빠른 갈색 여우",
    "الثعلب البني السريع ٣٤٥",
    "השועל החום המהיר",
    "तेज़ भूरी लोमड़ी १२३",
    "สุนัขจิ้งจอกสีน้ำตาล",
    "🎉👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u202e",
    "tabs\tand\r\nbreaks\n\n\n   spaces  \u00a0\x00\x7f",
)


@pytest.fixture(scope="module")
def tokenizer(tiny_directory: Path) -> Tokenizer:
    return Tokenizer.from_file(str(tiny_directory / "tokenizer.json"))


@pytest.mark.parametrize("text", SCRIPTS)
def test_scripts_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_any_text_round_trips(tokenizer: Tokenizer) -> None:
    @given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

    check()


def test_every_digit_and_the_space_before_it_stand_alone(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("has 14 + 250").tokens[-8:] == ["\u0120", "1", "4", "\u0120+", "\u0120", "2", "5", "0"]


def test_prompt_is_a_prefix_of_the_whole_text(tokenizer: Tokenizer) -> None:
    for problem in generate(5, 100):
        before = plain(problem)
        prompt, whole = before + question(problem), before + plain(problem)
        ids = tokenizer.encode(prompt).ids
        assert tokenizer.encode(whole).ids[: len(ids)] == ids
        assert tokenizer.encode(before).ids + tokenizer.encode(question(problem)).ids == ids


def test_specials_end_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    assert [tokenizer.id_to_token(VOCAB_SIZE - 5 + i) for i in range(5)] == list(SPECIALS)
    assert (tokenizer.id_to_token(PAD_ID), tokenizer.id_to_token(EOS_ID)) == ("<|endoftext|>", "<|role_end|>")


def test_shipped_file_is_what_the_recipe_builds(tokenizer: Tokenizer) -> None:
    rebuilt = train(plain(problem) for problem in generate(0, 20000))
    assert rebuilt.get_vocab() == tokenizer.get_vocab()


@pytest.mark.process
def test_transformers_loads_the_directory_offline(tiny_directory: Path) -> None:
    program = f"""
from transformers import AutoTokenizer
t = AutoTokenizer.from_pretrained({str(tiny_directory)!r})
chat = t.apply_chat_template([{{"role": "user", "content": "Hi 7"}}], tokenize=False, add_generation_prompt=True)
print(t.eos_token_id, t.pad_token_id, chat, t("Answer: 12").input_ids)
"""
    offline = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=offline, capture_output=True, text=True, check=True)
    ids = Tokenizer.from_file(str(tiny_directory / "tokenizer.json")).encode("Answer: 12").ids
    assert done.stdout.strip() == f"1023 1020 <role>HUMAN</role>Hi 7<|role_end|><role>ASSISTANT</role> {ids}"
