"""A golden record: the evidence of a server that somebody decided to trust, in one file that can be committed.

The surprise: it holds the prompts themselves and not their names, so it stays valid when the built-in set changes, and
a server can be checked with nothing but the file and its address.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from gates.evidence import CellEvidence

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = 1


class GoldenError(ValueError):
    """A file that is no golden record; the message names it."""


def write(path: Path, evidence: CellEvidence) -> None:
    assert evidence.probe is not None, "a server without answers is no golden record"
    path.write_text(json.dumps({"schema": SCHEMA, "evidence": evidence.to_json()}) + "\n")


def read(path: Path) -> CellEvidence:
    """Evidence with a probe. Raises GoldenError."""
    try:
        data = json.loads(path.read_text())
        schema, evidence = data["schema"], CellEvidence.from_json(data["evidence"])
    except (OSError, json.JSONDecodeError, KeyError, TypeError, ValidationError) as error:
        raise GoldenError(f"{path}: not a golden record ({error})") from error
    if schema != SCHEMA or evidence.probe is None:
        raise GoldenError(f"{path}: schema {schema} (this program reads {SCHEMA}), or no probe")
    return evidence
