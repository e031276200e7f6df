"""The shared library of this folder's kernels, built by nvcc for the card at hand and loaded once.

It is plain C at its border: pointers, sizes and a stream, no header of torch, so building takes seconds and the result
is kept by the text it was made of. The surprise: where there is no nvcc, the variants are not registered, so asking for
one is a configuration error that lists what there is.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("stream.cu")
HEADERS = sorted(SOURCE.parent.glob("*.cuh"))
FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17")


def compiler() -> str | None:
    """nvcc, from the path or from where CUDA's installer puts it."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def usable() -> bool:
    """There is a card that has bulk copies and dependent launches, and a compiler for it."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0) and compiler() is not None


@cache
def library() -> ctypes.CDLL:
    """The kernels, for the current device's architecture."""
    major, minor = torch.cuda.get_device_capability()
    return ctypes.CDLL(str(built(f"{major}{minor}", cache_folder())))


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ling_runtime"


def built(capability: str, folder: Path) -> Path:
    """The library in `folder`, built if it is not there; RuntimeError with the compiler's words."""
    nvcc = compiler()
    assert nvcc is not None, "usable() comes first"
    text = b"".join(path.read_bytes() for path in (SOURCE, *HEADERS))
    name = hashlib.sha256(text + capability.encode() + repr(FLAGS).encode()).hexdigest()[:16]
    library = folder / f"stream-{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            out = Path(fresh) / library.name
            target = f"-gencode=arch=compute_{capability},code=sm_{capability}"
            made = subprocess.run(
                [nvcc, *FLAGS, target, "-o", str(out), str(SOURCE)], capture_output=True, text=True, check=False
            )
            if made.returncode:
                raise RuntimeError(f"{SOURCE.name} does not build: {made.stderr[-2000:]}")
            out.replace(library)  # whole or not at all, whoever else builds it now
    return library
