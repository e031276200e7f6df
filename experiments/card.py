"""The card that a measurement of kernels needs: it is asked for before anything is built, and missed in one line.

The surprise: Triton is asked for too. A torch without CUDA has none, and its operators are then not even registered.
"""

from __future__ import annotations

import importlib.util
import sys

import torch


def required() -> None:
    """Raises SystemExit with 2 where no kernel can run."""
    missing = [
        *(["a CUDA device that torch can use"] if not torch.cuda.is_available() else []),
        *(["Triton"] if importlib.util.find_spec("triton") is None else []),
    ]
    if missing:
        print(f"error: this measures kernels and needs {' and '.join(missing)} (docs/gpu.md)", file=sys.stderr)
        raise SystemExit(2)
