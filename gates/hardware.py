"""What decides the bits of arithmetic besides our code: the processor and the library that runs on it.

The surprise: it is measured and not looked up. Processors of one instruction set may still be given other kernels by
the library, so fixed numbers go through the library's own functions, in a child started as a server is, and the hash of
what comes out is the class. Nothing of ours takes part, so no change of ours can hide in it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from experiments.child import child_env
from experiments.command import Command
from ling_runtime import processor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from experiments.spec import CellSpec

TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Hardware:
    name: str
    """For people."""
    fingerprint: str
    """Equal fingerprints: the same inputs give the same bits. Empty: nothing is known."""

    def __str__(self) -> str:
        return f"{self.name} ({self.fingerprint or 'not measured'})"

    def same_bits(self, other: Hardware) -> bool:
        return bool(self.fingerprint) and self.fingerprint == other.fingerprint


UNKNOWN = Hardware(name="unknown hardware", fingerprint="")


def here(device: str, env: Mapping[str, str], *, threads: int = 1) -> Hardware:
    """This machine as a server with this environment sees it."""
    command = Command((sys.executable, "-m", "gates.hardware", device), {**child_env(threads), **env})
    done = subprocess.run(
        command.argv, env=command.full_env(), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return Hardware(**json.loads(done.stdout))


def launched_on(cell: CellSpec) -> Hardware:
    """That of a server which was launched here for `cell`."""
    return here(cell.engine.device, cell.env, threads=cell.engine.threads)


def measure(device: str) -> Hardware:
    """Of this process."""
    total = hashlib.sha256()
    for result in results(device):
        total.update(result.cpu().contiguous().numpy().tobytes())
    return Hardware(name=_name(device), fingerprint=total.hexdigest()[:16])


def results(device: str) -> Iterator[Tensor]:
    """Products, sums and functions in the shapes of the runtime's layers, which is where libraries choose kernels."""
    import torch  # noqa: PLC0415 - only the child needs it
    import torch.nn.functional as F  # noqa: PLC0415

    def numbers(*shape: int) -> Tensor:
        """In (-1, 1), of full precision, and by operations whose rounding IEEE 754 fixes."""
        count = torch.Size(shape).numel()
        steps = torch.arange(1, count + 1, dtype=torch.float64) * (5**0.5 / 2 - 0.5 + count / 2**20)
        return (steps % 1 * 2 - 1).float().view(shape).to(device)

    for inner, outer in ((128, 576), (128, 1024), (384, 128), (32, 64), (256, 128)):
        yield F.linear(numbers(16, inner), numbers(outer, inner))
    for batch, height, inner, width in ((4, 32, 32, 16), (4, 16, 16, 32), (16, 16, 128, 64), (8, 16, 80, 64)):
        yield torch.bmm(numbers(batch, height, inner), numbers(batch, inner, width))
        yield torch.bmm(numbers(batch, height, inner), numbers(batch, width, inner).transpose(1, 2))
    rows = numbers(16, 1024) * 9
    yield from (rows.exp(), rows.sigmoid(), rows.square().mean(-1), rows.sum(0), rows.cumsum(1), rows.abs().rsqrt())
    yield from (rows.reciprocal(), torch.log_softmax(rows, -1), torch.softmax(rows.double(), -1), rows.abs().log())
    yield torch.addcmul(rows, rows, numbers(16, 1024))
    yield torch.linalg.solve_triangular(numbers(4, 16, 16) / 3, numbers(4, 16, 32), upper=False, unitriangular=True)


def _name(device: str) -> str:
    import torch  # noqa: PLC0415 - as above

    version = torch.__version__.partition("+")[0]
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)}, torch {version}"
    return f"{platform.machine()} {processor.vendor()} {torch.backends.cpu.get_cpu_capability()}, torch {version}"


if __name__ == "__main__":
    print(json.dumps(asdict(measure(sys.argv[1]))))
