"""What SGLang proves to run: its resolved arguments in `/server_info`, and lines of its log. Pure.

The surprise: a variable that no source of that version reads is inactive, whatever its value. SGLang starts with it
without a word, and a cell that was to measure it would be a perfect A/A.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from experiments.engines.command_line import shown
from experiments.engines.sglang_flags import ADDED, RAGGED, environment, flags
from experiments.engines.sglang_versions import OFF, TESTED, nearest
from gates.flags import parse_flags

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from experiments.engines.sglang_versions import Version
    from experiments.spec import CellSpec

OURS = "SGLANG_"
STATIC = "static"
CHOSEN = "auto"
"""Asked to choose, SGLang may show what it chose."""


def expected(cell: CellSpec) -> dict[str, Any]:
    speculation = cell.speculation
    keys: dict[str, Any] = {f"--{flag}": value for flag, value in asked_flags(cell).items()}
    keys |= {f"env.{name}": value for name, value in asked_variables(cell).items()}
    keys["engine.device"] = cell.engine.device
    if speculation.algorithm == "none":
        return keys | {"speculation.algorithm": "none"}
    keys["speculation.num_draft_tokens"] = speculation.window
    if speculation.algorithm == "dspark":
        keys |= {
            "speculation.block_size": speculation.block_size,
            "speculation.verify_mode": speculation.verify_mode or STATIC,
        }
    return keys


def observed(cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
    version = nearest(info.get("version"))
    asked = asked_flags(cell)
    keys: dict[str, Any] = {f"--{name}": _flag(version, name, value, info, log) for name, value in asked.items()}
    keys |= {f"env.{name}": _variable(version, name, asked, log) for name, asked in asked_variables(cell).items()}
    keys["engine.device"] = info.get("device")
    keys["speculation.algorithm"] = info.get("speculative_algorithm") or "none"
    keys["speculation.num_draft_tokens"] = info.get("speculative_num_draft_tokens")
    for key in ("speculation.block_size", "speculation.verify_mode"):
        seen = version.log[key].read("", log)
        keys[key] = int(seen) if seen and seen.isdecimal() else seen
    return {key: keys[key] for key in expected(cell)}


def remarks(cell: CellSpec, info: Mapping[str, Any], log: str) -> Iterator[str]:
    running = info.get("version")
    version = nearest(running)
    if running != TESTED:
        yield f"SGLang {running} runs and {TESTED} was tested; what it shows is read as {version.name} shows it"
    for pattern in version.remarks:
        if found := re.search(pattern, log):
            yield f"SGLang says: {found.group().strip()}"
    for name, value in asked_variables(cell).items():
        sign = version.log.get(f"env.{name}")
        if name in version.environment and not (sign and sign.shows):
            yield f"env.{name}={value} leaves no line in the log; proved is only that SGLang {version.name} reads it"


def asked_flags(cell: CellSpec) -> dict[str, str]:
    """By name without dashes, as text; the empty text for a bare one. What this program adds is not asked for."""
    own = {name: value for name, value in flags(cell, port=0, served_name="").items() if name not in ADDED}
    said = {name: value for name, value in own.items() if value is not None and value is not False}
    given = {name: "" if value is True else str(value) for name, value in said.items()}
    return {name.removeprefix("--"): value for name, value in (given | parse_flags(cell.engine.extra_args)).items()}


def asked_variables(cell: CellSpec) -> dict[str, str]:
    return {name: value for name, value in environment(cell).items() if name.startswith(OURS) and name != RAGGED}


def _flag(version: Version, name: str, asked: str, info: Mapping[str, Any], log: str) -> str | None:
    field = version.field(name)
    if field not in info:
        return f"not in /server_info of SGLang {version.name}"
    seen = shown(info[field])
    wanted = version.becomes.get(name, {}).get(asked, asked)
    if not _same(wanted, seen):
        return seen
    sign = version.log.get(f"--{name}")
    return sign.read(asked, log) if sign else asked


def _variable(version: Version, name: str, asked: str, log: str) -> str | None:
    if name not in version.environment:
        return f"nothing: SGLang {version.name} reads no such variable"
    sign = version.log.get(f"env.{name}")
    if sign is None:
        return asked
    if asked.lower() in OFF:
        return "on: its line is in the log" if sign.shows and re.search(sign.shows, log) else asked
    return sign.read(asked, log) or "nothing: its line is not in the log"


def _same(wanted: str, seen: str | None) -> bool:
    if seen is None or wanted in (seen, CHOSEN):
        return seen is not None
    try:
        return float(wanted) == float(seen)
    except ValueError:
        return False
