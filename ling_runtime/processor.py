"""What this machine's processor is called: in artifacts, fingerprints and records the same words.

The surprise: `platform.processor()` is empty on most Linux distributions, so the kernel's own list is read.
"""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def model() -> str:
    return field("model name") or platform.processor() or platform.machine()


def vendor() -> str:
    """Empty where the kernel does not say."""
    return field("vendor_id")


def field(name: str) -> str:
    """Of the first core."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
