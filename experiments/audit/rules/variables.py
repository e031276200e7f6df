"""Is every SGLANG_* variable one that the installed SGLang reads, and does its value mean what it seems to.

The surprise: nothing in SGLang ever complains of a name that it does not know. A misspelt variable is a perfect A/A
test that looks like a result.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from experiments.audit.finding import Finding
from experiments.audit.launch import RAGGED, RAGGED_MODES
from experiments.audit.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.launch import Launch

OURS = re.compile(r"SGL(ANG)?_")
BOOLEAN = ("true", "1", "yes", "y", "false", "0", "no", "n")
NUMBERS = {"EnvInt": int, "EnvIntWithAlias": int, "EnvFloat": float}
IN_POST = ("SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH",)
"""No-ops that the post's launch command carries."""


def known(launch: Launch) -> Iterator[Finding]:
    if launch.installed is None:
        return
    table = launch.installed.variables
    for name in filter(OURS.match, launch.env):
        modern = re.sub("^SGL_", "SGLANG_", name)
        if {name, modern} & ({*table} | launch.installed.mentioned):
            continue
        near = nearest(name, (one.name for one in table.values() if one.deprecated is None))
        reason = "nothing in this version reads it: a no-op, started without a word"
        source = f"{launch.installed.source} environ" + ("; post: launch command" if name in IN_POST else "")
        remedy = f"leave it out; the nearest real name is {near}" if near else "leave it out; no name is like it"
        yield Finding("variable-unknown", "error", name, reason, source, remedy)


def deprecated(launch: Launch) -> Iterator[Finding]:
    if launch.installed is None:
        return
    source = f"{launch.installed.source} environ"
    for name in launch.env:
        one = launch.installed.variables.get(name)
        if one and one.deprecated is not None:
            yield Finding("variable-deprecated", "warning", name, one.deprecated, source, "use what replaces it")
        elif name.startswith("SGL_"):
            reason = "an old prefix, rewritten when the server starts"
            yield Finding("variable-deprecated", "warning", name, reason, source, f"write SGLANG_{name[4:]}")


def well_formed(launch: Launch) -> Iterator[Finding]:
    for name, value in launch.env.items():
        one = launch.installed and launch.installed.variables.get(name)
        if launch.installed is None or not one:
            continue
        if problem := _malformed(one.kind, value):
            reason = f"{problem}; the server warns and takes the default"
            remedy = "write 1 or 0" if "Bool" in one.kind else "write a number"
            yield Finding("variable-value", "error", name, reason, f"{launch.installed.source} environ", remedy)


def ragged_mode(launch: Launch) -> Iterator[Finding]:
    if launch.ragged not in RAGGED_MODES:
        reason = f"{launch.ragged!r} is no mode; the server ends at once"
        remedy = f"one of {', '.join(RAGGED_MODES)}"
        yield Finding("variable-value", "error", RAGGED, reason, "sglang 0.5.23 ragged_verify", remedy)


def inherited(launch: Launch) -> Iterator[Finding]:
    for name in filter(OURS.match, launch.inherited):
        if name not in launch.env:
            reason = "set in the shell that runs this program; the server inherits it, and no record says so"
            remedy = f"unset {name}, or make it part of the cell: +env.{name}=..."
            yield Finding("variable-inherited", "warning", name, reason, "environment of this program", remedy)


def _malformed(kind: str, value: str) -> str | None:
    if "Bool" in kind and value.lower() not in BOOLEAN:
        return f"{value!r} is none of {', '.join(BOOLEAN)}"
    if number := NUMBERS.get(kind):
        try:
            number(value)
        except ValueError:
            return f"{value!r} is no {'whole ' if number is int else ''}number"
    return None


RULES = (known, deprecated, well_formed, ragged_mode, inherited)
