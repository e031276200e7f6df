"""A healthy toy server's evidence, which candidates are judged against."""

from __future__ import annotations

import json

import pytest
from toy_client import ToyClient
from toy_run import run

from gates.evidence import CellEvidence


@pytest.fixture(scope="session")
def golden() -> CellEvidence:
    """After a trip through a file."""
    _, evidence, _ = run(ToyClient())
    return CellEvidence.from_json(json.loads(json.dumps(evidence.to_json())))
