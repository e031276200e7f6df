"""Is every flag one that the installed SGLang takes, in the form in which it is given.

The surprise: argparse takes the beginning of a flag for the flag. What starts today ends with an "ambiguous option" on
the day on which a second flag begins alike, as `--cuda-graph-max-bs` did.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from experiments.audit.finding import Finding
from experiments.audit.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.audit.declared_flags import Flag
    from experiments.audit.installed import Installed
    from experiments.audit.launch import Launch

FILE = "--config"
"""Names a file with more flags; the audit does not follow it."""


def known(launch: Launch) -> Iterator[Finding]:
    for written, _ in launch.written:
        match launch.installed and launch.installed.matching(written):
            case ():
                assert launch.installed
                yield _unknown(written, launch.installed)
            case (one,) if written not in one.spellings:
                yield Finding(
                    "flag-abbreviated",
                    "note",
                    written,
                    f"taken for {one.name}, as the only flag that begins so",
                    _source(launch),
                    f"write {one.name}",
                )
            case (_, _, *_) as several:
                yield _ambiguous(written, several, launch)


def deprecated(launch: Launch) -> Iterator[Finding]:
    for written, _ in launch.written:
        flag = launch.installed and launch.installed.flag(written)
        if flag and flag.deprecated is not None:
            told, source, remedy = flag.deprecated, _source(launch), "use what replaces it"
            if flag.refused:
                yield Finding("flag-deprecated", "error", written, told, source, remedy)
            else:
                yield Finding("flag-deprecated", "warning", written, told, source, remedy)


def well_formed(launch: Launch) -> Iterator[Finding]:
    for written, values in launch.written:
        flag = launch.installed and launch.installed.flag(written)
        if flag and (problem := _malformed(flag, values)):
            yield Finding("flag-value", "error", written, problem, _source(launch), _form(flag, values))


def once(launch: Launch) -> Iterator[Finding]:
    counts = Counter(launch.canonical(written) for written, _ in launch.written)
    for name in (name for name, count in counts.items() if count > 1):
        reason = f"given {counts[name]} times; only the last counts"
        yield Finding("flag-repeated", "warning", name, reason, _source(launch), "give it once")


def in_file(launch: Launch) -> Iterator[Finding]:
    if launch.has(FILE):
        reason = "its flags are part of the launch and neither audited nor part of the cell's identity"
        yield Finding("flag-file", "warning", FILE, reason, _source(launch), "write them as keys of the cell")


def _unknown(written: str, installed: Installed) -> Finding:
    near = nearest(written, (flag.name for flag in installed.flags.values()))
    reason = "no such flag; the server ends at once with a usage message"
    remedy = f"did you mean {near}?" if near else "leave it out; no flag's name is like it"
    return Finding("flag-unknown", "error", written, reason, f"{installed.source} server_args", remedy)


def _ambiguous(written: str, several: tuple[Flag, ...], launch: Launch) -> Finding:
    reason = f"the beginning of {len(several)} flags; the server ends at once"
    remedy = f"write one of {', '.join(sorted(flag.name for flag in several)[:4])}"
    return Finding("flag-ambiguous", "error", written, reason, _source(launch), remedy)


def _malformed(flag: Flag, values: tuple[str, ...]) -> str | None:
    if flag.takes == "nothing" and values:
        return f"takes no value, and {' '.join(values)!r} is given"
    if flag.takes == "value" and not values:
        return "needs a value, and none is given"
    for value in values:
        if flag.choices and value not in flag.choices:
            return f"{value!r} is none of its values"
        if flag.kind in ("int", "float") and not _number(value, flag.kind):
            return f"{value!r} is no {'whole ' if flag.kind == 'int' else ''}number"
    return None


def _form(flag: Flag, values: tuple[str, ...]) -> str:
    if flag.choices:
        near = nearest(values[0], flag.choices) if values else None
        return f"did you mean {near}?" if near else f"one of {', '.join(flag.choices)}"
    return f"write {flag.name}" if flag.takes == "nothing" else f"write {flag.name} VALUE"


def _number(value: str, kind: str) -> bool:
    try:
        (int if kind == "int" else float)(value)
    except ValueError:
        return False
    return True


def _source(launch: Launch) -> str:
    assert launch.installed
    return f"{launch.installed.source} server_args"


RULES = (known, deprecated, well_formed, once, in_file)
