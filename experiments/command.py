"""A command line with its environment, as a value: the same one is shown in a dry run, filed, and executed.

The surprise: `env` holds only what we set. The child also inherits the driver's environment, which the record's
environment summary describes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from experiments import secrets


@dataclass(frozen=True)
class Command:
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    borrowed: dict[str, str] = field(default_factory=dict)
    """Names by the names of ours that they get their values from: a secret is shown as `NAME="$OURS"`."""

    def shell(self) -> str:
        """One line that can be pasted into a shell; a secret in it is a reference to the variable that has it."""
        settings = [f"{name}={secrets.quoted(value)}" for name, value in self.env.items()]
        settings += [f'{name}="${{{ours}}}"' for name, ours in self.borrowed.items()]
        return " ".join([*(["env", *settings] if settings else []), *map(secrets.quoted, self.argv)])

    def full_env(self) -> dict[str, str]:
        return {**os.environ, **self.env, **{name: os.environ[ours] for name, ours in self.borrowed.items()}}
