"""What a version of SGLang shows of what it was asked for, from its data file in sglang_versions/.

The surprise: a version without a file of its own is read by its nearest older one, with a remark and not with an error.
What the file gets wrong then makes cells invalid, and never valid.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

if TYPE_CHECKING:
    from collections.abc import Mapping

DIRECTORY = Path(__file__).parent / "sglang_versions"
TESTED = "0.5.23"
OFF = ("", "0", "false", "no", "n", "off", "-1")


@dataclass(frozen=True, kw_only=True)
class Sign:
    """How a log tells whether something is active; every part may be missing."""

    shows: str | None = None
    denies: tuple[str, ...] = ()
    silence: str | None = None
    """What it means that nothing shows it."""

    def read(self, asked: str, log: str) -> str | None:
        """The value that the log gives away, `asked` where it gives away no more than that; None where nothing does."""
        for pattern in self.denies:
            if found := re.search(rf".*{pattern}.*", log):
                return f"the log denies it: {found.group().strip()}"
        if self.shows is None:
            return asked
        if not (found := re.search(self.shows, log)):
            return self.silence
        return found.group(1) if found.groups() else asked


@dataclass(frozen=True, kw_only=True)
class Version:
    name: str
    fields: Mapping[str, str]
    """Of `/server_info`, by flags that have another name."""
    becomes: Mapping[str, Mapping[str, str]]
    """By flag: what a value is resolved to."""
    log: Mapping[str, Sign]
    """By what was asked for: --flag, env.NAME or a key of the cell."""
    remarks: tuple[str, ...]
    environment: frozenset[str]

    def field(self, flag: str) -> str:
        return self.fields.get(flag, flag.replace("-", "_"))


def nearest(version: str | None) -> Version:
    """The newest that is not newer; the oldest for one that is older than all, or unknown."""
    known = sorted((path.stem for path in DIRECTORY.glob("*.yaml")), key=ordered)
    older = [name for name in known if version and ordered(name) <= ordered(version)]
    return read(older[-1] if older else known[0])


@functools.cache
def read(name: str) -> Version:
    data: Any = OmegaConf.to_container(OmegaConf.load(DIRECTORY / f"{name}.yaml"))
    return Version(
        name=name,
        fields=data["fields"],
        becomes=data["becomes"],
        log={key: Sign(**sign | {"denies": tuple(sign.get("denies", ()))}) for key, sign in data["log"].items()},
        remarks=tuple(data["remarks"]),
        environment=frozenset(data["environment"].split()),
    )


def ordered(version: str) -> tuple[int, ...]:
    """0.5.9 before 0.5.23; what follows the numbers (rc1, .post1) does not count."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
