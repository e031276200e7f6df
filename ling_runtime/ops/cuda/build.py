"""The shared library of this folder's kernels, built by nvcc for the card at hand and loaded once.

It is plain C at its border: pointers, sizes and a stream, no header of torch, so building takes seconds and the result
is kept by the text it was made of. The surprise: where it cannot be built, the variants are not registered, so asking
for one is a configuration error that lists what there is.
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


@cache
def obstacle() -> str:
    """Why this machine cannot run them, in words; empty where it can, and then the library is built.

    They need bulk copies and dependent launches.
    """
    if not torch.cuda.is_available():
        return "no CUDA device"
    if (found := torch.cuda.get_device_capability()) < (9, 0):
        return f"they need compute capability 9.0, and the card has {found[0]}.{found[1]}"
    if compiler() is None:
        return "no nvcc"
    try:
        library()
    except (RuntimeError, OSError) as error:
        return str(error)
    return ""


@cache
def library() -> ctypes.CDLL:
    """The kernels, for the current device's architecture."""
    major, minor = torch.cuda.get_device_capability()
    return ctypes.CDLL(str(built(f"{major}{minor}", cache_folder())))


def cache_folder() -> Path:
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = named if named.is_absolute() else Path.home() / ".cache"  # a relative one is to be ignored
    return base / "ling_runtime"


def built(capability: str, folder: Path) -> Path:
    """The library in `folder`, built if it is not there. RuntimeError with the compiler's words, OSError for what it
    made where that cannot be loaded; neither leaves anything behind.
    """
    nvcc = compiler()
    assert nvcc is not None, "obstacle() comes first"
    text = b"".join(path.read_bytes() for path in (SOURCE, *HEADERS))
    name = hashlib.sha256(text + capability.encode() + repr(FLAGS).encode()).hexdigest()[:16]
    library = folder / f"stream-{name}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            out = Path(fresh) / library.name
            target = f"-gencode=arch=compute_{capability},code=sm_{capability}"
            command = [nvcc, *FLAGS, target, "-o", str(out), str(SOURCE)]
            made = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if made.returncode or not out.exists():
                raise RuntimeError(f"{SOURCE.name} does not build: {(made.stderr or made.stdout)[-2000:]}")
            ctypes.CDLL(str(out))
            out.replace(library)  # whole or not at all, whoever else builds it now
    return library
