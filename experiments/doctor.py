"""`python -m experiments.doctor`: what this machine can run, and for each thing that it lacks the command that helps.

Exit 0 if the main job (`python run.py experiment=quickstart`) can run here, else 3. The surprise: it needs nothing but
Python's own library, for it is asked most where nothing is installed yet; the load client is tried in a process of its
own, since its import takes ten seconds and may end in many ways.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import terminal
from experiments.child import ROOT
from experiments.gpu import gpus
from experiments.lock import is_free, lock_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OK, LACKING = 0, 3
PYTHON = (3, 11)
LOAD_CLIENT = "0.5.23"
CHECKPOINT = ROOT / "ling_runtime/checkpoints/ling_tiny"
MIN_MEMORY_GIB = 3.0
MIN_DISK_GIB = 1.0
INSTALL = "make install"
TRY_CLIENT = "from experiments.clients.recorded_serving import load_client; load_client()"
TRY_TORCH = (
    "import torch; n = torch.cuda.device_count(); "
    "print(torch.version.cuda or '', *[torch.cuda.get_device_name(i) for i in range(n)], sep='\\n')"
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    name: str
    ok: bool
    detail: str
    needed: bool = True
    """By the main job."""
    remedy: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    top = argparse.ArgumentParser(prog="python -m experiments.doctor", description="What this machine can run.")
    top.add_argument("--json", action="store_true", help="for programs")
    options = top.parse_args(argv)
    findings = list(examine())
    code = OK if all(one.ok for one in findings if one.needed) else LACKING
    if options.json:
        print(json.dumps({"checks": [asdict(one) for one in findings], "exit": code}, indent=2))
    else:
        print(*lines(findings), sep="\n")
        print("the main job can run here" if code == OK else "the main job cannot run here")
    return code


def examine() -> Iterator[Finding]:
    client = tried(TRY_CLIENT)  # begins now, asked for at its place
    yield python()
    yield from torch()
    for name in ("hydra-core", "mlflow", "transformers", "psutil"):
        yield package(name)
    yield load_client(client)
    yield checkpoint()
    yield cores()
    yield memory()
    yield disk(Path.cwd())
    yield lock()
    yield gpu()
    yield slurm()
    yield git()


def python() -> Finding:
    wanted = ".".join(map(str, PYTHON))
    return Finding(
        name="python",
        ok=sys.version_info >= PYTHON,
        detail=f"{platform.python_version()} at {sys.executable}",
        remedy=f"{INSTALL} PYTHON=python{wanted}",
    )


def package(name: str) -> Finding:
    found = version(name)
    return Finding(name=name, ok=found is not None, detail=found or "not installed", remedy=INSTALL)


def torch() -> Iterator[Finding]:
    found = package("torch")
    yield found
    cuda, *devices = tried(TRY_TORCH).communicate()[0].splitlines() or [""]
    yield Finding(
        name="cuda",
        ok=bool(devices),
        detail=f"CUDA {cuda}: {', '.join(devices)}" if devices else f"no device; torch is built for {cuda or 'CPU'}",
        needed=False,
        remedy="only engine.device=cuda needs one: pip install --force-reinstall torch==2.13.0, in a build with CUDA",
    )


def load_client(process: subprocess.Popen[str]) -> Finding:
    """Whether it can be imported; another version than the one tested is told and no obstacle."""
    found = version("sglang")
    _, errors = process.communicate()
    why = (errors.strip().splitlines() or ["?"])[-1]
    detail = f"{found or 'version unknown'}, as tested" if found == LOAD_CLIENT else f"{found}, tested is {LOAD_CLIENT}"
    broken = process.returncode != 0
    return Finding(name="load client", ok=not broken, detail=f"{found}: {why}" if broken else detail, remedy=INSTALL)


def checkpoint() -> Finding:
    """A clone without its large files has a pointer of some hundred bytes in place of the weights."""
    weights = CHECKPOINT / "model.safetensors"
    size = weights.stat().st_size if weights.exists() else 0
    return Finding(
        name="miniature",
        ok=size > 2**20,
        detail=f"{weights.relative_to(ROOT)}, {size / 2**20:.1f} MiB",
        remedy=f"git checkout -- {CHECKPOINT.relative_to(ROOT)}",
    )


def cores() -> Finding:
    mine, there = len(os.sched_getaffinity(0)), os.cpu_count()
    return Finding(
        name="cores",
        ok=mine >= 2,
        detail=f"{mine} of {there} may be used",
        needed=False,
        remedy="with one core nothing is pinned and times are worth less: taskset -c 0,1 COMMAND",
    )


def memory() -> Finding:
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available, total = (int(values[key].split()[0]) / 2**20 for key in ("MemAvailable", "MemTotal"))
    return Finding(
        name="memory",
        ok=available >= MIN_MEMORY_GIB,
        detail=f"{available:.1f} of {total:.1f} GiB available",
        remedy=f"free some: {MIN_MEMORY_GIB:g} GiB are needed (ps aux --sort=-rss | head)",
    )


def disk(directory: Path) -> Finding:
    free = shutil.disk_usage(directory).free / 2**30
    return Finding(
        name="disk",
        ok=free >= MIN_DISK_GIB and os.access(directory, os.W_OK),
        detail=f"{free:.1f} GiB free in {directory}" + ("" if os.access(directory, os.W_OK) else ", not writable"),
        remedy="python run.py output_dir=DIR",
    )


def lock() -> Finding:
    file = lock_file(None)
    free = is_free(file)
    return Finding(
        name="lock",
        ok=free,
        detail=f"{file} is free" if free else f"another measurement holds {file}",
        needed=False,
        remedy="a run waits for it: python -m experiments.status",
    )


def gpu() -> Finding:
    found = [f"{one['name']} (driver {one['driver_version']})" for one in gpus()]
    return Finding(
        name="gpu",
        ok=bool(found),
        detail=", ".join(found) or "nvidia-smi reports none",
        needed=False,
        remedy="only engine.device=cuda needs one; is one built in without its driver? lspci | grep -i nvidia",
    )


def slurm() -> Finding:
    there = [name for name in ("sbatch", "sinfo") if shutil.which(name)]
    detail = "sbatch and sinfo are not there"
    answers = False
    if len(there) == 2:
        shown = subprocess.run(["sinfo", "-h", "-o", "%P %a %D"], capture_output=True, text=True, check=False)
        answers, detail = shown.returncode == 0, (shown.stdout or shown.stderr).strip().replace("\n", "; ")
    return Finding(
        name="slurm",
        ok=answers,
        detail=detail,
        needed=False,
        remedy="only the Slurm launcher needs it: apt-get install slurm-wlm, or run on a login node",
    )


def git() -> Finding:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False) if shutil.which("git") else None
    ok = shown is not None and shown.returncode == 0
    return Finding(
        name="git",
        ok=ok,
        detail=f"commit {shown.stdout.strip()}" if shown and ok else "records will not know the commit",
        needed=False,
        remedy="apt-get install git, and run from a clone",
    )


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def tried(code: str) -> subprocess.Popen[str]:
    """In a process of its own, from the directory in which our packages lie."""
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    for one in findings:
        word = "ok" if one.ok else "LACKING" if one.needed else "-"
        yield f"{word:8}{one.name:14}{one.detail}"
        if not one.ok and one.remedy:
            yield f"{'':22}{one.remedy}"


if __name__ == "__main__":
    terminal.guard()
    sys.exit(main())
