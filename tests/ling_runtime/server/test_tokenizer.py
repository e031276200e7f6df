"""What a checkpoint directory gives: ids that end, special tokens, bytes, the chat template; and what is refused."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders

from ling_runtime.config import ConfigError
from ling_runtime.refusal import Refusal
from ling_runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return shutil.copytree(checkpoint, tmp_path / "copy")


def test_every_file_adds_its_end_of_sequence_ids(tokenizer: Tokenizer, copy: Path) -> None:
    assert tokenizer.eos_ids == {0, 1}  # generation_config.json, and <|eos|> of tokenizer_config.json
    (copy / "generation_config.json").unlink()
    (copy / "config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert Tokenizer.from_pretrained(copy).eos_ids == {0, 9}


def test_special_tokens_are_told_from_added_ones(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {0, 1, 2, 3}
    assert tokenizer.special_id("<|separator|>") == 3
    assert tokenizer.special_id("plain added") is None
    (added,) = tokenizer.encode("plain added")
    assert tokenizer.token_bytes(added) == b"plain added"


def test_bytes_of_tokens_spell_the_text(tokenizer: Tokenizer) -> None:
    text = "añb 日本 \x00\n 😀"
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_ids_beyond_the_vocabulary_borrow_a_text_when_told_to(copy: Path) -> None:
    tokenizer = Tokenizer.from_pretrained(copy)
    size = Backend.from_file(str(copy / "tokenizer.json")).get_vocab_size()
    (token,) = tokenizer.encode("x")
    assert tokenizer.token_bytes(size + token) == b""
    lending = Tokenizer.from_pretrained(copy)
    lending.borrow()
    assert lending.token_bytes(size + token) == lending.token_bytes(token) == b"x"


def test_a_tokenizer_that_is_not_byte_level_is_refused(copy: Path) -> None:
    backend = Backend.from_file(str(copy / "tokenizer.json"))
    backend.decoder = decoders.Metaspace()
    backend.save(str(copy / "tokenizer.json"))
    with pytest.raises(ConfigError, match="decoder Metaspace not supported; allowed: ByteLevel"):
        Tokenizer.from_pretrained(copy)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_a_broken_file_is_named(copy: Path, name: str, content: bytes) -> None:
    (copy / name).write_bytes(content)
    with pytest.raises(ConfigError, match=name):
        Tokenizer.from_pretrained(copy)


def test_a_directory_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        Tokenizer.from_pretrained(tmp_path)


def test_the_chat_template_can_be_replaced(copy: Path, tmp_path: Path) -> None:
    own = Tokenizer.from_pretrained(copy).chat_template
    assert own is not None
    assert own.render(MESSAGES, {}) == "<|user|>Hi<|assistant|>"
    file = tmp_path / "other.jinja"
    file.write_text("{{ eos_token }}{{ messages[0].content | tojson }}{{ thinking }}")
    other = Tokenizer.from_pretrained(copy, file).chat_template
    assert other is not None
    assert other.render(MESSAGES, {"thinking": "!"}) == '<|eos|>"Hi"!'


def test_a_template_can_refuse_messages_and_a_broken_one_is_found_at_start(copy: Path) -> None:
    (copy / "chat_template.jinja").write_text("{{ raise_exception('no system role') }}")
    template = Tokenizer.from_pretrained(copy).chat_template
    assert template is not None
    with pytest.raises(Refusal, match="no system role"):
        template.render(MESSAGES, {})
    (copy / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(ConfigError, match="chat template"):
        Tokenizer.from_pretrained(copy)
    with pytest.raises(ConfigError, match="--chat-template 'nowhere'"):
        Tokenizer.from_pretrained(copy, copy.parent.joinpath("nowhere").relative_to(copy.parent))
