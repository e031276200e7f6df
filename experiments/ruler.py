"""Hashes of what a cell was measured with. Two arms with different rulers get no verdict.

The surprise: the harness includes SGLang's client as installed, source and all, and not only its version, because a
local edit there changes what every number means.
"""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.child import ROOT
from experiments.files import stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from experiments.clients.bench_serving import RequestRow
    from experiments.files import Stamp
    from experiments.spec import WorkloadSpec

OWN = (
    "experiments/clients/bench_serving.py",
    "experiments/clients/connection.py",
    "experiments/clients/generate.py",
    "experiments/clients/openai.py",
    "experiments/clients/recorded_serving.py",
    "experiments/metrics.py",
    "experiments/tasks/gsm8k.py",
)
CLIENT = (
    "benchmark/serving.py",
    "benchmark/utils.py",
    "benchmark/datasets/random.py",
    "benchmark/datasets/sharegpt.py",
)
SMALL_FILE = 64 * 2**20


ABSENT = "no client"
"""A dry run's harness where SGLang is not installed; nothing else gets that far."""


def harness() -> str:
    spec = importlib.util.find_spec("sglang")
    if spec is None:
        return ABSENT
    assert spec.submodule_search_locations is not None
    package = Path(spec.submodule_search_locations[0])
    return digest((*(ROOT / name for name in OWN), *(package / name for name in CLIENT)))


def prompt_order(requests: Sequence[RequestRow]) -> str:
    return hashlib.sha256("\n".join(row.prompt_sha256 for row in requests).encode()).hexdigest()[:16]


def load(workload: WorkloadSpec) -> str:
    """What is asked of an engine besides the prompts; accept length and step time depend on it."""
    return f"{workload.output_len} tokens a request, {workload.max_concurrency} at once"


def model_revision(path: Path) -> str:
    """Hash of a checkpoint; of a large file its size and safetensors header, for a read of 250 GB is no preparation."""
    return digest(sorted(file for pattern in ("*.json", "*.safetensors") for file in path.glob(pattern)))


def source_revision(source: str, revision: str | None = None) -> str:
    """Of a checkpoint directory its hash; of an id of a hub the revision asked for, and the hub's word for it."""
    return model_revision(Path(source)) if Path(source).is_dir() else f"{source}@{revision or 'main'}"


def digest(files: Iterable[Path]) -> str:
    return _digest(tuple(map(stamp, files)))


@cache
def _digest(files: tuple[Stamp, ...]) -> str:
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.path.name} {file.size}\n".encode())
        with file.path.open("rb") as content:
            total.update(content.read(SMALL_FILE))
    return total.hexdigest()[:16]
