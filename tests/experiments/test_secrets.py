"""What is a secret, and that its value is found in whatever spelling it turns up."""

from __future__ import annotations

import base64
import html
import io
import json
import subprocess
from typing import TYPE_CHECKING, TextIO, cast
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import secrets
from experiments.command import Command
from experiments.record import write_json, write_lines, write_text
from experiments.terminal import Masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

AWKWARD = "p'l\"a n$t(e)d\\<&>%é"


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    secrets.forget()
    yield
    secrets.forget()


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "GITHUB_TOKEN", "hf-token", "API_KEY", "OPENAI_API_KEY", "apiKey", "engine.flags.admin-api-key"),
        *("Authorization", "DB_PASSWORD", "PGPASSWD", "client_secret", "AWS_SECRET_ACCESS_KEY", "aws_credentials"),
        *("SSH_PRIVATE_KEY", "MLFLOW_TRACKING_TOKEN", "ssl-key-password", "BASIC_AUTH"),
    ],
)
def test_these_names_have_secrets(name: str) -> None:
    assert secrets.is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "tokenizer_path", "skip-tokenizer-init", "api_key_env", "SSL_KEYFILE", "eos_token"),
        *("HF_TOKEN_PATH", "token_id", "kernel", "key", "monkey", "PWD", "authors", "passes", "secretary_desk", "keys"),
    ],
)
def test_these_have_none(name: str) -> None:
    assert not secrets.is_secret(name)


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        ({"env": {"HF_TOKEN": "planted-1"}}, "planted-1"),
        ({"engine": {"flags": {"api-key": "planted-1"}}}, "planted-1"),
        ({"credentials": {"user": "planted-1"}}, "planted-1"),
        ({"engine": {"extra_args": ["--api-key", "planted-1"]}}, "planted-1"),
        ({"engine": {"extra_args": ("--admin-api-key=planted-1",)}}, "planted-1"),
        ({"engine": {"command": ["env", "HF_TOKEN=planted-1", "python"]}}, "planted-1"),
        ({"sweep": {"grid": {"+env.HF_TOKEN": ["planted-0", "planted-1"]}}}, "planted-1"),
        ({"ab": {"candidate": ['+env.HF_TOKEN="planted-1"']}}, "planted-1"),
        ({"campaign": {"changes": [{"overrides": ["engine.extra_args=[--api-key,'planted-1']"]}]}}, "planted-1"),
        (["+env.HF_TOKEN=planted-0,planted-1", "-m"], "planted-1"),
        (["+engine.flags={api-key: planted-1}"], "planted-1"),
        ("curl -H 'Authorization: Bearer planted-1'", "planted-1"),
        ({"engine": {"url": "http://user:planted-1@host:1/v1"}}, "planted-1"),
        ({"engine": {"url": "https://host/v1?token=planted-1&x=y"}}, "planted-1"),
        ({"tracking": {"uri": "postgresql://mlflow:planted%2D1@host/db"}}, "planted-1"),
        ({"engine": {"url": "https://ghp_planted0123456789@host/x"}}, "ghp_planted0123456789"),
    ],
)
def test_a_secret_is_found_where_it_stands(value: object, secret: str) -> None:
    secrets.learn(value)
    assert secrets.masked(f"<{secret}>") == "<***>"


def test_an_environment_is_searched_by_name_and_by_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHATEVER", "planted-3")
    secrets.learn_environment(
        {"HF_TOKEN": "planted-1", "HTTPS_PROXY": "http://me:planted-2@proxy:1", "HOME": "/home/x"}
    )
    secrets.learn({"engine": {"api_key_env": "WHATEVER"}})
    assert secrets.masked("planted-1 planted-2 planted-3 /home/x WHATEVER") == "*** *** *** /home/x WHATEVER"


@pytest.mark.parametrize(
    "value",
    [
        {"env": {"HF_TOKEN": "short"}},
        {"env": {"HF_TOKEN": "12345678"}},
        {"env": {"HF_TOKEN": "baseline"}},
        {"env": {"HF_TOKEN": "${oc.env:HF_TOKEN}"}},
        {"env": {"AWS_CREDENTIALS": "/usr/bin"}},
        {"workload": {"max_new_tokens": 262144, "name": "problems"}},
        {"ab": {"hypothesis": "one token: better than before", "reason": "token=reasons"}},
        ["ab.hypothesis=one token saves launches"],
        {"postgres": "postgresql://mlflow@host/db"},
    ],
)
def test_what_would_wreck_a_record_is_none(value: object) -> None:
    secrets.learn(value)
    assert secrets.forms() == []


def spellings(secret: str) -> list[str]:
    return [
        secret,
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        json.dumps({"error": json.dumps(secret)}) if '"' not in secret and "\\" not in secret else "",
        repr(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        html.escape(secret),
        base64.b64encode(secret.encode()).decode(),
        f"Authorization: Bearer {secret}",
    ]


@pytest.mark.parametrize("secret", ["planted-1", "sk-" + "a1" * 20, AWKWARD, "a/b+c=d e-f"])
def test_every_spelling_is_masked(secret: str) -> None:
    secrets.learn({"env": {"HF_TOKEN": secret}})
    for text in filter(None, spellings(secret)):
        assert secrets.masked(f"x {text} y") != f"x {text} y", text
        assert secret not in secrets.masked(text)


@pytest.mark.parametrize("secret", ["planted-1", AWKWARD, "planted?>~~?>", "sk-" + "a1" * 20])
@pytest.mark.parametrize("before", ["", "a", "ab", "Bearer ", "user:"])
@pytest.mark.parametrize("after", ["", "x", "yz"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_base64_of_a_longer_text_hides_it_at_every_alignment(
    secret: str, before: str, after: str, encode: Callable[[bytes], bytes]
) -> None:
    secrets.learn({"HF_TOKEN": secret})
    text = encode((before + secret + after).encode()).decode()
    for spelled in (text, text.rstrip("=")):
        left = secrets.masked(spelled)
        assert secrets.MASK in left
        assert len(left.replace(secrets.MASK, "")) <= len(encode((before + after).encode())) + 4, "edges at most"


@pytest.mark.parametrize(
    "value",
    [
        {"engine": {"api_key_env": "sk-live-planted"}},
        ["engine.api_key_env=sk-live-planted"],
        ["engine.api_key_env=THEIR_KEY,'sk-live-planted'"],
        "engine.api_key_env=[THEIR_KEY,sk-live-planted]",
    ],
)
def test_a_key_where_the_name_of_its_variable_belongs_is_a_secret(value: object) -> None:
    secrets.learn(value)
    assert secrets.masked("sk-live-planted THEIR_KEY") == "*** THEIR_KEY"
    assert secrets.masked("THEIR_KEY,x") == "THEIR_KEY,x"


def test_a_secret_of_several_lines_is_masked_line_by_line() -> None:
    key = "-----BEGIN KEY-----\nplanted-line-one\nplanted-line-two\n-----END KEY-----\n"
    secrets.learn({"env": {"SSH_PRIVATE_KEY": key}})
    assert "planted" not in secrets.masked(f"first planted-line-one\nthen\nplanted-line-two{json.dumps(key)}")


def test_the_password_of_a_url_is_masked_as_a_header_too() -> None:
    secrets.learn({"engine": {"url": "http://me:planted-1@host"}})
    header = base64.b64encode(b"me:planted-1").decode()
    assert secrets.masked(f"Basic {header}") == "Basic ***"


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=6, max_size=20))
def test_a_masked_tree_holds_no_secret_and_is_json_still(secret: str) -> None:
    secrets.forget()
    secrets.learn({"HF_TOKEN": secret})
    if not secrets.forms():
        return
    tree = {"status": "valid", "rows": [{"text": f"a {secret} b", "n": 1}, (secret, None, 2.5)]}
    masked = json.loads(json.dumps(secrets.masked_tree(tree)))
    assert secret not in masked["rows"][0]["text"].replace("***", "")
    assert masked["rows"][1][1:] == [None, 2.5]


def test_all_writers_of_records_mask(tmp_path: Path) -> None:
    secrets.learn({"HF_TOKEN": AWKWARD})
    write_json(tmp_path / "a", {"message": f"HTTP 401 {AWKWARD}"})
    write_lines(tmp_path / "b", [{"text": json.dumps({"key": AWKWARD})}])
    write_text(tmp_path / "c", f"env HF_TOKEN='{AWKWARD}'\n")
    assert json.loads((tmp_path / "a").read_text()) == {"message": "HTTP 401 ***"}
    assert json.loads((tmp_path / "b").read_text()) == {"text": '{"key": "***"}'}
    assert (tmp_path / "c").read_text() == "env HF_TOKEN='***'\n"


@pytest.mark.process
@pytest.mark.parametrize("secret", ["planted-1", AWKWARD])
def test_a_line_to_paste_works_where_the_variable_is_set(secret: str) -> None:
    secrets.learn({"env": {"HF_TOKEN": secret}, "extra_args": ["--api-key", "planted-flag"]})
    argv = ("printf", "%s|", "--api-key", "planted-flag", f"http://me:{secret}@host/'x'", "a b")
    line = Command(argv, {"HF_TOKEN": secret}).shell()
    assert secret not in line
    assert "planted-flag" not in line
    done = subprocess.run(
        ["bash", "-c", line],
        env={"HF_TOKEN": secret, "API_KEY": "planted-flag", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("|")[:-1] == [*argv[2:]]


def test_the_terminal_repeats_none() -> None:
    screen = io.StringIO()
    stream = cast("TextIO", Masked(screen))
    secrets.learn({"HF_TOKEN": "planted-1"})
    print("says planted-1", file=stream)
    stream.writelines(["planted-1\n"])
    assert screen.getvalue() == "says ***\n***\n"
    assert stream.isatty() is False
