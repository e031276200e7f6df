"""What every child process of ours is given, whatever it runs.

The surprise: thread counts are part of it. A library that may choose its own gives other bits on another machine, and
takes the cores of whoever measures beside it.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""Where our packages lie; children find them there whether or not the project is installed."""


def child_env(threads: int) -> dict[str, str]:
    """Fixed thread counts, no downloads, no buffered log."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
