"""The SGLang that a launch would start: where it lies, its version, and what it knows; never imported.

The surprise: it need not be this program's own. `engine.command` may name another interpreter, with another SGLang, and
the audit is of that one, unless it has none; asking it where its package lies is the only thing that ever runs there.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.audit import declared_flags, declared_variables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.audit.declared_flags import Flag
    from experiments.audit.declared_variables import Variable
    from experiments.command import Command

TESTED = "0.5.23"
PACKAGE = "sglang"
ALWAYS = "--model-path"
"""Whoever does not find this flag has not found the flags."""
ARGUMENTS = ("srt/server_args.py", "srt/arg_groups/**/*.py")
"""Where the server's flags are declared and resolved."""
ENVIRONMENT = "srt/environ.py"
OTHER_PROGRAMS = ("test", "multimodal_gen")
"""Parts of the package that no language model's server runs."""
TEXT = (".py", ".cu", ".cuh", ".cpp", ".h", ".hip")
COMPILED = (".so",)
WHERE = (
    "import importlib.util as u, json; s = u.find_spec('sglang'); "
    "print(json.dumps(list(s.submodule_search_locations or []) if s else []))"
)
TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Installed:
    version: str
    flags: Mapping[str, Flag]
    """By every spelling."""
    variables: Mapping[str, Variable]
    """Those that its environment module declares or warns of."""
    mentioned: frozenset[str]
    """Others that occur in its sources."""
    overrides: Mapping[str, frozenset[str]]
    """By field: the functions that may replace it."""

    @property
    def source(self) -> str:
        return f"sglang {self.version}"

    def flag(self, written: str) -> Flag | None:
        """By its name, an alias, or a beginning that fits no other, as argparse allows."""
        found = {flag.name: flag for flag in self.matching(written)}
        return next(iter(found.values())) if len(found) == 1 else None

    def matching(self, written: str) -> tuple[Flag, ...]:
        if written in self.flags:
            return (self.flags[written],)
        return tuple(dict.fromkeys(flag for spelling, flag in self.flags.items() if spelling.startswith(written)))


def installed(command: Command) -> Installed | None:
    """What `command` would start; None where there is no SGLang, or one whose flags are not where they used to be."""
    return _read(locate(command))


def own() -> Installed | None:
    """That of this Python, likewise."""
    return _read(_package(_own()))


def _read(location: Path | None) -> Installed | None:
    found = read(location, version(location)) if location else None
    return found if found and ALWAYS in found.flags else None


def locate(command: Command) -> Path | None:
    """The package's directory, of the interpreter that `command` names, else of our own."""
    named = next((word for word in command.argv if Path(word).name.startswith("python")), sys.executable)
    python = shutil.which(named)
    if python is None:
        return None
    ours = Path(python).parent == Path(sys.executable).parent
    return _package(_own() if ours else _asked(python, command.full_env().get("PYTHONPATH", "")))


def _package(places: Sequence[str]) -> Path | None:
    return next((Path(place) for place in places if (Path(place) / ENVIRONMENT).is_file()), None)


def _own() -> list[str]:
    spec = importlib.util.find_spec(PACKAGE)
    return list(spec.submodule_search_locations or []) if spec else []


@functools.cache
def _asked(python: str, path: str) -> list[str]:
    asked = subprocess.run(
        [python, "-c", WHERE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    places: list[str] = json.loads(asked.stdout) if asked.returncode == 0 else []
    return places


def version(location: Path) -> str:
    """From the file that its build wrote, else from the distribution beside it."""
    written = location / "_version.py"
    stated = re.search(r"__version__\b[^\n]*= *['\"]([^'\"]+)['\"]", written.read_text()) if written.is_file() else None
    beside = sorted(path.name for path in location.parent.glob(f"{PACKAGE}-*.dist-info"))
    if stated:
        return stated[1]
    return beside[-1].removeprefix(f"{PACKAGE}-").removesuffix(".dist-info") if beside else "of unknown version"


@functools.cache
def read(location: Path, version: str) -> Installed:
    """Once per place and version: under a second, most of it for the names of variables."""
    sources = {str(path): path.read_text() for pattern in ARGUMENTS for path in sorted(location.glob(pattern))}
    declared = [*declared_variables.variables((location / ENVIRONMENT).read_text())]
    names = frozenset(name for path, quoted in _files(location) for name in _mentioned(path, quoted=quoted))
    return Installed(
        version=version,
        flags={name: flag for flag in declared_flags.flags(sources) for name in flag.spellings},
        variables={one.name: one for one in declared},
        mentioned=names - {one.name for one in declared},
        overrides=declared_variables.overrides(sources),
    )


def _files(location: Path) -> Iterator[tuple[Path, bool]]:
    for path in location.rglob("*"):
        if path.relative_to(location).parts[0] not in OTHER_PROGRAMS and path.suffix in (*TEXT, *COMPILED):
            yield path, path.suffix in TEXT


def _mentioned(path: Path, *, quoted: bool) -> set[str]:
    return declared_variables.mentioned(path.read_bytes(), quoted=quoted)
