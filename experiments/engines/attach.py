"""A server that somebody else runs, known by its URL: measured as it is, neither started nor stopped.

What it serves and how it speculates is the server's own word (gates/attached.py), and becomes the cell. The surprise:
so it is asked before anything is measured, even in a dry run, and it has to say the same after the load; a server that
was restarted with other arguments in between makes the cell invalid.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from experiments.clients.generate import GenerateClient, ProtocolError
from experiments.engines import ling_activation
from experiments.engines.interface import Engine
from experiments.errors import ConfigError
from experiments.plan import label
from experiments.spec import EngineSpec
from gates import attached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from experiments.command import Command
    from experiments.spec import CellSpec

SERVED = "served"
"""The model, or the speculation, that the server has."""
ANSWER_S = 10.0
OWN = ("name", "url", "api_key_env", "ready_timeout_s")
NOTE = "the server was not launched here; its cache was flushed before the load and by the gates"


class Attach(Engine):
    name = "attach"
    algorithms: ClassVar = ("served", "none", "nextn", "dspark", "eagle3", "standalone", "ngram")
    keys = ("url", "api_key_env")
    started = False
    hub = True

    def completed(self, cell: CellSpec, asked: CellSpec) -> CellSpec:
        _refuse(asked)
        engine = asked.engine
        url = _address(engine.url)
        try:
            with GenerateClient(url, ANSWER_S, api_key_env=engine.api_key_env) as client:
                found = attached.described(client, cell, "attach")
        except ProtocolError as error:
            raise ConfigError("engine.url", f"{url} does not answer as SGLang's server does: {error}") from error
        _agree(asked, cell, found)
        told = _without_key(found.engine.reported, engine.api_key_env)
        own: dict[str, Any] = {"url": url, **{key: getattr(engine, key) for key in OWN[2:]}}
        own |= dict.fromkeys(("num_threads", "max_running_requests", "random_seed"))  # not ours to say
        name = found.model.name if asked.model.name == SERVED else asked.model.name
        model = replace(found.model, name=name, tokenizer_path=_tokenizer(cell, found))
        return replace(found, engine=replace(found.engine, reported=told, **own), model=model)

    def check(self, cell: CellSpec) -> None:
        context = cell.engine.reported.get("context_length", "")
        wanted = (cell.workload.input_len or 0) + cell.workload.output_len
        if context.isdecimal() and wanted > int(context):
            raise ConfigError("workload", f"input_len + output_len = {wanted} exceeds the context of {context} tokens")

    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        raise AssertionError("nothing is started")

    def client(self, cell: CellSpec, url: str, *, timeout_s: float = 600.0) -> GenerateClient:
        return GenerateClient(url, timeout_s, api_key_env=cell.engine.api_key_env)

    def expected(self, cell: CellSpec) -> dict[str, Any]:
        return {
            "speculation.algorithm": cell.speculation.algorithm,
            "speculation.window": cell.speculation.window,
            "engine.dtype": cell.engine.dtype,
            "engine.arguments": _digest(cell.engine.reported),
            **{f"kernels.{operator}": variant for operator, variant in sorted(cell.kernels.items())},
        }

    def observed(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
        speculation = attached.speculation(info)
        ran = ling_activation.observed(cell, info)
        return {
            "speculation.algorithm": speculation.algorithm,
            "speculation.window": speculation.window,
            "engine.dtype": str(info.get("dtype", "auto")),
            "engine.arguments": _digest(_without_key(attached.reported(info), cell.engine.api_key_env)),
            **{f"kernels.{operator}": ran[f"kernels.{operator}"] for operator in sorted(cell.kernels)},
        }

    def remarks(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> Iterator[str]:
        yield NOTE
        before, after = cell.engine.reported, _without_key(attached.reported(info), cell.engine.api_key_env)
        for key in sorted(before | after):
            if before.get(key) != after.get(key):
                yield f"the server's {key} was {before.get(key)} and is {after.get(key)}"


def _refuse(cell: CellSpec) -> None:
    """What only a server of ours could be given. Raises ConfigError."""
    default = EngineSpec()
    for field in fields(EngineSpec):
        if field.name not in OWN and getattr(cell.engine, field.name) != getattr(default, field.name):
            raise ConfigError(
                f"engine.{field.name}", "the server runs already; allowed: engine.url, engine.api_key_env"
            )
    for group, given in {"env": cell.env, "kernels": cell.kernels}.items():
        if given:
            raise ConfigError(f"{group}.{next(iter(given))}", "a server that runs already cannot be given any")
    if cell.calibrates:
        raise ConfigError("calibration", "starts programs of its own; allowed with engine=ling")
    name = cell.engine.api_key_env
    if name and not os.environ.get(name):
        raise ConfigError("engine.api_key_env", f"the environment has no {name}; it names the variable with the key")


def _address(url: str | None) -> str:
    """Without anything that nobody may read: it goes to records. Raises ConfigError."""
    parts = urlsplit(url or "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("engine.url", f"{url!r} is no address of a server; expected http://HOST:PORT")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("engine.url", "holds more than an address; a key is given by engine.api_key_env")
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


def _agree(asked: CellSpec, cell: CellSpec, found: CellSpec) -> None:
    """Whoever names model or speculation is told where the server has another. Raises ConfigError."""
    if asked.model.path not in (SERVED, found.model.path) and cell.model.path != found.model.path:
        raise ConfigError("model.path", f"the server serves {found.model.path}; allowed: that, or model=served")
    wanted, runs = cell.speculation, found.speculation
    if wanted.algorithm != SERVED and (wanted.algorithm, wanted.window) != (runs.algorithm, runs.window):
        raise ConfigError("speculation", f"the server runs {label(runs)}; allowed: that, or speculation=served")


def _tokenizer(cell: CellSpec, found: CellSpec) -> str:
    """On this machine, for the load client. Raises ConfigError."""
    told = [path for path in (found.model.tokenizer_path, found.model.path) if path]
    for path in [cell.model.tokenizer_path] if cell.model.tokenizer_path else told:
        if (Path(path) / "tokenizer.json").is_file():
            return str(Path(path).absolute())
    why = f"the server's {found.model.path} has no tokenizer.json on this machine; name a directory that has it"
    raise ConfigError("model.tokenizer_path", why)


def _without_key(reported: Mapping[str, str], api_key_env: str | None) -> dict[str, str]:
    """Some servers say with which key they were started."""
    key = os.environ.get(api_key_env or "")
    return {name: value for name, value in reported.items() if not key or key not in value}


def _digest(reported: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(reported, sort_keys=True).encode()).hexdigest()[:16]
