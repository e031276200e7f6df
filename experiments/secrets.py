"""Secrets: found by the names that they stand under, hidden by their values wherever they turn up.

A name is a key of the configuration, an environment variable, a flag, a header, or the place of a password in a URL.
What was found there once is masked in all that this program writes, whoever repeats it: a server's log, a model's
answer, an error message. The surprise: this module keeps state, the one thing of a process that everything it writes
has to know; it only ever grows.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, quote_plus, unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

T = TypeVar("T")

MASK = "***"
SHORTEST = 6
"""Characters; what is shorter would be found in every other word of a record."""

NOUNS = {"token", "tokens", "secret", "secrets", "password", "passwords", "passwd", "passphrase", "authorization"}
NOUNS |= {"credential", "credentials", "apikey", "apikeys", "cookie", "cookies", "auth", "bearer"}
KEYS = {"api", "access", "private", "secret", "signing", "encryption", "account", "auth", "master", "service"}
"""A key with one of these before it is one, and any other (`--kernel-key`) is not."""
POINTERS = {"file", "path", "dir", "env", "name", "type", "id", "ids", "url", "ttl", "size", "count", "limit", "mode"}
"""A name that ends so says where a secret is, or something about it."""
VOCABULARY = {"bos", "eos", "pad", "unk", "stop", "mask", "draft", "special", "image"}
"""Tokens of a tokenizer."""
OWN = {"baseline", "candidate", "change", "reject", "inconclusive", "invalid", "unfinished", "finished", "failed"}
OWN |= {"bearer", "basic", "token", "static", "strict", "float32", "bfloat16", "infrastructure", "default"}
"""Words of records and of the configuration; whoever chose one as a password has none."""
FREE_TEXT = ("reason", "hypothesis")
"""Keys whose value is a sentence, where a colon means nothing."""

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
NUMBER = re.compile(r"[\d.,+-]+")
USERINFO = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^\s/?#@'\"]*)@")
QUERY = re.compile(r"[?&;]([\w.-]+)=([^&;#\s'\"]+)")
BEARER = re.compile(r"(?i)\b(?:bearer|basic)\s+([^\s'\",\]}]+)")
ASSIGNED = re.compile(r"(?<![\w.])(?=([A-Za-z][\w.-]*)['\"]?(?:\s*[=:]\s*|,\s*|\s+)(['\"]?)([^\s'\",;&\[\]{})]+)\2)")
"""`NAME=VALUE`, `name: value`, `--flag value`, `[--flag,value]`, `?name=value&`, also one inside the other."""
WHOLE = re.compile(r"([A-Za-z][\w.-]*)=(.+)", re.DOTALL)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BYTE, SEXTET = 8, 6
"""Bits: of what base64 takes, and of each character that it makes."""
LONE_USER = 16
"""Characters from which a user without a password is a token, as Git hosts take them."""

_names: dict[str, str] = {}
"""By secret: an environment variable that has it, or could have it."""


def learn(value: Any, name: str = "") -> None:
    """All secrets of a configuration, a list of arguments or a text; `name`: what it stands under."""
    match value:
        case dict():
            for key, one in value.items():
                learn(one, str(key) if not name or is_secret(str(key)) else _under(name, str(key)))
        case list() | tuple():
            for before, one in zip(("", *value), value, strict=False):
                flag = str(before).lstrip("-") if str(before).startswith("--") and "=" not in str(before) else ""
                learn(one, flag if is_secret(flag) else name)
        case str():
            _learn_text(value, name)


def learn_environment(environment: Mapping[str, str] | None = None) -> None:
    """Of this process, unless another is given."""
    for name, value in (os.environ if environment is None else environment).items():
        _keep(value, name) if is_secret(name) else _learn_url(value)


def is_secret(name: str) -> bool:
    """Does a name say that its value is one?"""
    words = [word.lower() for word in WORD.findall(name)]
    if not words or words[-1] in POINTERS:
        return False
    pairs = zip(("", *words), words, strict=False)
    return any(
        (word in NOUNS and before not in VOCABULARY)
        or word.endswith(("password", "passwd"))
        or (word in ("key", "keys") and before in KEYS)
        for before, word in pairs
    )


def masked(text: str) -> str:
    return _pattern(len(_names)).sub(MASK, text) if _names else text


def masked_tree(value: T) -> T:
    """A copy in which every text is masked; keys are names and stay."""
    match value:
        case str():
            return masked(value)  # type: ignore[return-value]
        case dict():
            return {key: masked_tree(one) for key, one in value.items()}  # type: ignore[return-value]
        case list() | tuple():
            return type(value)(map(masked_tree, value))
        case _:
            return value


def quoted(text: str) -> str:
    """For a shell: what is secret as a reference to a variable, so that the line works where that is set."""
    if not (_names and any(secret in text for secret in _names)):
        return shlex.quote(masked(text))
    longest_first = sorted(_names, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    return "".join(f'"${_names[part]}"' if part in _names else shlex.quote(masked(part)) for part in parts if part)


def forms() -> list[str]:
    """Each secret in every spelling in which it may turn up, the longest first; for filters in other processes."""
    return sorted({form for secret in _names for form in _spelled(secret)}, key=lambda form: (-len(form), form))


def forget() -> None:
    """For tests: nothing is known any more."""
    _names.clear()
    _pattern.cache_clear()


@cache
def _pattern(known: int) -> re.Pattern[str]:
    assert known == len(_names)
    return re.compile("|".join(map(re.escape, forms())))


def _under(name: str, key: str) -> str:
    """What stands below a secret's name is secret, under its own name where it has one."""
    return key if is_secret(key) or not is_secret(name) else name


def _learn_text(text: str, name: str) -> None:
    last = name.rpartition(".")[2]
    _learn_named(text, last)
    _learn_url(text)
    found = WHOLE.search(text)
    whole = found[1].rpartition(".")[2] if found else ""
    if {last, whole} & {*FREE_TEXT}:
        return
    if found:
        for part in (found[2], *found[2].split(",")):
            _learn_named(part.strip("'\""), whole)
    for key, _, value in ASSIGNED.findall(text):
        _learn_named(value, key.rpartition(".")[2])
    for value in BEARER.findall(text):
        _keep(value, "AUTHORIZATION")


def _learn_named(value: str, name: str) -> None:
    """What stands under a secret's name; under `..._env` the name of a variable that has it, or by mistake the key."""
    if is_secret(name):
        _keep(value, name)
    elif name.lower().endswith("_env"):
        for one in (part.strip("'\" ") for part in value.strip("[]").split(",")):
            _keep(os.environ.get(one, ""), one)
            if is_secret(name[: -len("_env")]) and not VARIABLE.fullmatch(one):
                _keep(one, name[: -len("_env")])


def _learn_url(text: str) -> None:
    """Passwords of URLs, and values that their queries have under a secret's name."""
    for user in USERINFO.findall(text):
        login, colon, password = user.partition(":")
        if colon:
            for one in (password, unquote(password)):
                _keep(one, "URL_PASSWORD")
            if _is_value(password):
                _keep(_encoded(unquote(user)), "AUTHORIZATION")
        elif len(login) >= LONE_USER:
            _keep(login, "URL_TOKEN")
    for key, value in QUERY.findall(text):
        if is_secret(key):
            for one in (value, unquote(value)):
                _keep(one, key)


def _keep(value: str, name: str) -> None:
    """And each line of a longer one, since logs are read line by line."""
    variable = re.sub(r"\W", "_", name).strip("_").upper()
    for secret in (value, *(line for line in value.splitlines() if len(line) > 2 * SHORTEST)):
        if _is_value(secret):
            held = next((key for key, known in os.environ.items() if known == secret), variable)
            _names.setdefault(secret, held)
    if value.lower().startswith(("bearer ", "basic ")):
        _keep(value.partition(" ")[2], name)


def _is_value(text: str) -> bool:
    """No number, no word of our own, no reference to a variable, no path of this machine, and long enough."""
    if len(text) < SHORTEST or NUMBER.fullmatch(text) or text.lower() in OWN or text.startswith("$"):
        return False
    return not (text.startswith("/") and os.path.exists(text))  # noqa: PTH110 - a text that may be too long for a path


def _spelled(secret: str) -> Iterator[str]:
    """Also what was spelled so and then written into a file of JSON, or printed."""
    for once in (
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        *_escaped(secret),
        *_in_base64(secret.encode()),
    ):
        yield once
        yield from _escaped(once)


def _escaped(text: str) -> Iterator[str]:
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
    yield html.escape(text)
    yield shlex.quote(text).strip("'")


def _in_base64(secret: bytes) -> Iterator[str]:
    """By itself, and the characters that are its own wherever it stands in a longer text (`user:SECRET`)."""
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        alone = encode(secret).decode()
        yield alone
        yield alone.rstrip("=")
        for before in range(3):
            first, end = -(-before * BYTE // SEXTET), (before + len(secret)) * BYTE // SEXTET
            yield encode(bytes(before) + secret).decode()[first:end]


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
