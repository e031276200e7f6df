"""One division of a multiprocessor's memory for every kernel, so that a program can start beside the one before it.

A multiprocessor splits its memory between cache and shared memory, and changes the split only while nothing runs on it.
The driver picks a split for each kernel by itself, so under PDL a program whose kernel wants another one waits for the
last program of the kernel before, and what it would have done before its own wait is lost. Here all of them ask for the
largest share; which kernels there are does not matter, only that they agree.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from triton import knobs

PREFERRED_CARVEOUT = 9
"""CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT of the driver's API, in percent."""
LARGEST, OF_THE_DRIVER = 100, -1

_loaded: list[int] = []
_share = [LARGEST]


def watch() -> None:
    """From now on kernels are told the share in force as Triton loads them; without a card this does nothing."""
    if torch.cuda.is_available() and torch.version.cuda:
        knobs.runtime.kernel_load_end_hook.add(_load)


def divide(evenly: bool) -> None:
    """The same share for all kernels, loaded and to come, or what the driver picks; graphs keep what they recorded."""
    share = LARGEST if evenly else OF_THE_DRIVER
    if share == _share[0]:
        return
    _share[0] = share
    for function in _loaded:
        _prefer(function, share)


def _load(_module: Any, function: Any, *_of_the_kernel: Any, **_named: Any) -> None:
    _loaded.append(function)
    _prefer(function, _share[0])


def _prefer(function: int, share: int) -> None:
    if error := _driver().cuFuncSetAttribute(ctypes.c_void_p(function), PREFERRED_CARVEOUT, share):
        raise RuntimeError(f"cuFuncSetAttribute: CUDA error {error}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")
