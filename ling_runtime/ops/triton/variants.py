"""Where Triton variants can run, and the list of them: importing this registers what this machine has.

They need a CUDA device, or Triton's interpreter (TRITON_INTERPRET=1) for tests on a CPU. Elsewhere they are not
registered, so asking for one is a configuration error that lists what there is, and never a silent fallback.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

import torch

MODULES = (
    "chain", "commit", "dense", "draft", "head", "kda", "kda_tiles", "linear", "mla", "moe_layer",
    "moe_switches", "norm", "relay", "ring", "router", "router_norm",
    "prompt_kda", "prompt_linear", "prompt_mla", "prompt_moe", "prompt_router",
)  # fmt: skip


def lacking() -> str:
    """What Triton's variants lack here, in words; empty where there are Triton and a device or the interpreter."""
    if importlib.util.find_spec("triton") is None:
        return "no Triton"
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        return ""
    return "no CUDA device"


def usable() -> bool:
    return not lacking()


def register() -> None:
    """Import the variants whatever the machine has: to compile them for another, too."""
    for name in MODULES:
        importlib.import_module(f"ling_runtime.ops.triton.{name}")


if usable():
    register()
    importlib.import_module("ling_runtime.ops.triton.carveout").watch()
