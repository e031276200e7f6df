"""The entry point of SGLang's group `sglang.srt.platforms`: it names the platform's class.

SGLang calls it in each of its processes while its first modules load. The surprise: that is before transformers asks
for torchvision, so this is also the place to make torchvision importable. Its registry builds are linked with CUDA;
beside a CPU torch their library does not load, and the import fails for want of two operators that nothing here calls.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import torch

PLATFORM = "sglang_cpu_platform.platform.SmallCpu"
OPERATORS = ("nms", "qnms")


def activate() -> str:
    declare_torchvision_operators()
    return PLATFORM


@cache
def declare_torchvision_operators() -> torch.library.Library | None:
    """Declares the operators where torchvision's own library cannot; what is returned keeps them declared."""
    if any(map(loads, torchvision_libraries())):
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in OPERATORS:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def torchvision_libraries() -> list[Path]:
    """Found without importing the package, which is what fails."""
    spec = importlib.util.find_spec("torchvision")
    directories = (spec.submodule_search_locations or ()) if spec else ()
    return [file for directory in directories for file in Path(directory).glob("_C*.so")]


def loads(file: Path) -> bool:
    try:
        torch.ops.load_library(str(file))
    except OSError:
        return False
    return True
