"""The shared library of this folder's kernels, built by nvcc for the card at hand and loaded once.

It is plain C at its border: pointers, sizes and a stream, no header of torch, so building takes seconds and the result
is kept by the text it was made of. The surprise: where it cannot be built, the variants are not registered, so asking
for one is a configuration error that lists what there is.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("stream.cu")
HEADERS = sorted(SOURCE.parent.glob("*.cuh"))
FLAGS = ("-shared", "-Xcompiler", "-fPIC", "-O3", "-std=c++17")
LIMIT_S = 600.0
"""A build takes seconds: one that is not done by now hangs, and must not keep a server from starting without."""


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
            status, words = compiled([nvcc, *FLAGS, target, "-o", str(out), str(SOURCE)], fresh)
            if status or not out.exists():
                raise RuntimeError(f"{SOURCE.name} does not build: {words[-2000:]}")
            ctypes.CDLL(str(out))
            out.replace(library)  # whole or not at all, whoever else builds it now
    return library


def compiled(command: list[str], scratch: str) -> tuple[int, str]:
    """The compiler's exit status and words, with what it keeps between its passes in `scratch`.

    RuntimeError when it takes too long. Its passes are processes of their own, and end with it.
    """
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"TMPDIR": scratch},
            process_group=0,
        ) as nvcc:
            try:
                out, err = nvcc.communicate(timeout=LIMIT_S)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(nvcc.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{SOURCE.name} does not build: no end after {LIMIT_S:g} s") from None
    return nvcc.returncode, err or out
