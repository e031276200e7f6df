"""Triton's variants in this process: on the card where there is one, else in Triton's interpreter.

Tests of kernels import this before anything of Triton. The environment asks for the interpreter only while it is being
imported and while such a test runs (fixture `interpreter`), so that the servers of other tests do not inherit it.
"""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from ling_runtime.ops.triton.variants import register  # noqa: E402

register()
os.environ.pop("TRITON_INTERPRET", None)
