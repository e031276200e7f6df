"""Text to ids and ids to bytes, straight from the checkpoint's tokenizer.json, without importing transformers.

The surprise: no method turns ids into text. A token of a byte-level tokenizer is a piece of UTF-8 that may end in the
middle of a character, so the server works with bytes (`token_bytes`) and lets the detokenizer find the characters.
Other kinds of tokenizer are refused at load.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import tokenizers

from ling_runtime.chat import ChatTemplate
from ling_runtime.config import ConfigError
from ling_runtime.refusal import Refusal

if TYPE_CHECKING:
    from pathlib import Path


class Tokenizer:
    """A byte-level BPE tokenizer with its special tokens, end-of-sequence ids and chat template."""

    def __init__(
        self, backend: tokenizers.Tokenizer, *, eos_ids: frozenset[int], chat_template: ChatTemplate | None = None
    ) -> None:
        self._backend = backend
        self._bytes: dict[int, bytes] = {}
        self._lent: int | None = None
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(token for token, content in added.items() if content.special)
        self.longest_token = max(map(len, backend.get_vocab()))
        """In characters of the byte alphabet: no token stands for more bytes of text."""
        self.eos_ids = eos_ids
        self.chat_template = chat_template

    @classmethod
    def from_pretrained(cls, directory: Path, chat_template_file: Path | None = None) -> Tokenizer:
        """Read a checkpoint directory; ConfigError when a file is missing or the tokenizer is not byte-level."""
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise ConfigError(f"tokenizer path {str(directory)!r}: no tokenizer.json there")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"{file}: not a tokenizer ({error})") from error
        if not isinstance(backend.decoder, tokenizers.decoders.ByteLevel):
            raise ConfigError(f"{file}: decoder {type(backend.decoder).__name__} not supported; allowed: ByteLevel")
        backend.no_truncation()
        backend.no_padding()
        settings = _json(directory / "tokenizer_config.json")
        template = ChatTemplate.find(directory, settings, chat_template_file)
        return cls(backend, eos_ids=_eos_ids(directory, settings, backend), chat_template=template)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Refusal for text that is no Unicode: JSON can spell half of a surrogate pair."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Refusal(f"the text holds a lone surrogate at {error.start}", param="text") from error
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def special_id(self, text: str) -> int | None:
        """The id of the special token spelled exactly like this, if there is one."""
        token = self._backend.token_to_id(text)
        return token if token in self.special_ids else None

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 of one token; empty for ids that the vocabulary leaves unused."""
        known = self._bytes.get(token)
        if known is None:
            spelled = self._backend.id_to_token(token % self._lent if self._lent else token)
            known = self._bytes[token] = _unmap(spelled or "")
        return known

    def borrow(self) -> None:
        """Ids beyond the vocabulary take the text of those in it, for a model that is larger than its tokenizer.

        Drawn weights need some text and no particular one: a client times a stream by the chunks that have text.
        """
        self._lent = self._backend.get_vocab_size()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte: itself where printable, else the next letter from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _unmap(token: str) -> bytes:
    """Bytes of a vocabulary entry; an added token with letters outside the alphabet stands for its own UTF-8."""
    if all(letter in _ALPHABET for letter in token):
        return bytes(_ALPHABET[letter] for letter in token)
    return token.encode()


def _eos_ids(directory: Path, settings: dict[str, Any], backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Ids of generation_config.json, config.json and the tokenizer's own eos_token together, as SGLang takes them."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _json(directory / name).get("eos_token_id")
        ids.update(value if isinstance(value, list) else [] if value is None else [value])
    own = settings.get("eos_token")
    token = backend.token_to_id(own["content"] if isinstance(own, dict) else own) if own else None
    return frozenset(ids if token is None else ids | {token})


def _json(file: Path) -> dict[str, Any]:
    """A JSON object, empty when there is no such file. Raises ConfigError."""
    if not file.is_file():
        return {}
    try:
        raw = json.loads(file.read_text())
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: not a JSON object")
    return raw
