"""A conversation as one prompt: the checkpoint's Jinja chat template, rendered in a sandbox.

The surprise: a template is code from the checkpoint, so it runs in Jinja's immutable sandbox, and it brings its own
special tokens: the rendered text is encoded without adding any.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ling_runtime.config import ConfigError
from ling_runtime.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = _tojson
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ConfigError(f"chat template: {error}") from error
        self._special_tokens = dict(special_tokens)

    @classmethod
    def find(cls, directory: Path, settings: Mapping[str, Any], override: Path | None) -> ChatTemplate | None:
        """The template of `override`, of chat_template.jinja or of tokenizer_config.json, in this order."""
        own = directory / "chat_template.jinja"
        file = override if override is not None else own if own.is_file() else None
        source = settings.get("chat_template") if file is None else _read(file)
        return None if source is None else cls(source, _special_tokens(settings))

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The prompt that the assistant's answer continues; Refusal when the template cannot take what it was given."""
        own = {**self._special_tokens, "messages": messages, "add_generation_prompt": True}
        try:
            return self._template.render({**options, **own})
        except Exception as error:  # its code meets the client's values: any error is theirs, none ours
            raise Refusal(f"messages: the chat template says: {error}", param="messages") from error


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    found = {name: settings.get(name) for name in names}
    return {n: t["content"] if isinstance(t, dict) else t for n, t in found.items() if t is not None}


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise ConfigError(f"--chat-template {str(file)!r}: {error.strerror}") from error


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: object, indent: int | None = None) -> str:
    """Jinja's own filter escapes HTML, which is wrong inside a prompt."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
