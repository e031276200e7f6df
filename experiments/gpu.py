"""GPUs as nvidia-smi reports them: what they are, how they are now, and whether a stopped server's memory came back.

The surprise: a process can be gone and reaped while the driver still holds its memory for seconds. The next server
would start on a GPU that is too small, so a cell ends only when the memory is where it was before the launch.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from experiments.errors import CleanupError

if TYPE_CHECKING:
    from collections.abc import Mapping

FIELDS = (
    "index",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "power.limit",
)
SLACK_MIB = 256
RETURN_TIMEOUT_S = 60.0
POLL_S = 0.5


def gpus() -> list[dict[str, str]]:
    """One row per GPU, in nvidia-smi's own words; empty where there is none."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    lines = answer.stdout.splitlines() if answer.returncode == 0 else []
    return [dict(zip(FIELDS, (part.strip() for part in line.split(",")), strict=True)) for line in lines]


def seen_by(environment: Mapping[str, str]) -> int | None:
    """How many of this machine's GPUs a process with `environment` can use; None where nobody knows of any."""
    here = len(gpus())
    if not here:
        return None
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return here
    names = [name.strip() for name in listed.split(",") if name.strip()]
    return len(names[: names.index("-1")] if "-1" in names else names)


def used_mib() -> dict[str, int]:
    """Memory in use by GPU index."""
    return {gpu["index"]: int(gpu["memory.used"]) for gpu in gpus()}


def wait_for_memory(before: dict[str, int], timeout_s: float = RETURN_TIMEOUT_S) -> None:
    """Until every GPU uses no more than it did `before` (and a little). Raises CleanupError."""
    deadline = time.monotonic() + timeout_s
    while held := {index: used for index, used in used_mib().items() if used > before.get(index, 0) + SLACK_MIB}:
        if time.monotonic() > deadline:
            raise CleanupError(f"GPU memory did not come back in {timeout_s:g} s: MiB in use {held}, before {before}")
        time.sleep(POLL_S)
