"""Where a record was made: machine, packages, source, GPU. Filed in full once per attempt, in short in the record.

The surprise: what is not there is written down as null and not left out, so that two records can be compared by key.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

import psutil

from experiments.child import ROOT
from experiments.cluster.queue import this_job
from experiments.gpu import gpus
from ling_runtime import processor

KEY_PACKAGES = ("torch", "sglang", "transformers", "hydra-core", "mlflow", "numpy")


@functools.cache
def capture() -> dict[str, Any]:
    """What does not change during a study."""
    return {
        "host": platform.node(),
        "job": _job(),
        "os": platform.platform(),
        "python": platform.python_version(),
        "cpu": processor.model(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "git": _git(),
        "gpus": gpus(),
        "packages": dict(sorted((d.name, d.version) for d in metadata.distributions())),
    }


def summary(full: dict[str, Any]) -> dict[str, Any]:
    """The part that a record carries."""
    git = full["git"] or {"commit": None, "dirty": None}
    short = {key: full[key] for key in ("host", "job", "cpu", "cores", "python")}
    return short | {
        "hardware": hardware_class(full),
        "git_commit": git["commit"],
        "git_dirty": git["dirty"],
        "packages": {name: full["packages"].get(name) for name in KEY_PACKAGES},
    }


def hardware_class(full: dict[str, Any]) -> str:
    """What two machines must share for their records to mean the same."""
    names = [gpu["name"] for gpu in full["gpus"]]
    return f"{len(names)} x {names[0]}" if names else f"{full['cpu']} x {full['cores']}"


def source(full: dict[str, Any]) -> str:
    """The commit, and a hash of what the working tree has beyond it; "unknown" outside a repository."""
    git = full["git"]
    return "unknown" if git is None else "+".join(filter(None, [git["commit"], git["changes"]]))


def _job() -> dict[str, Any] | None:
    """Of a cluster, in the form its queue shows; restarts count how often it was requeued before."""
    name = this_job()
    return {"id": name, "restarts": int(os.environ.get("SLURM_RESTART_COUNT", "0"))} if name else None


def _git() -> dict[str, Any] | None:
    head = _git_output("rev-parse", "HEAD")
    if head is None:
        return None
    changes = f"{_git_output('status', '--porcelain')}{_git_output('diff', 'HEAD')}".strip()
    digest = hashlib.sha256(changes.encode()).hexdigest()[:12] if changes else None
    return {"commit": head.strip(), "dirty": bool(changes), "changes": digest}


def _git_output(*arguments: str) -> str | None:
    if shutil.which("git") is None:
        return None
    answer = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return answer.stdout if answer.returncode == 0 else None
