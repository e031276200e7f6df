"""How the ranks of a run find each other: at a file, so there is no port to be taken."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from ling_runtime.training.dspark.parallel import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

PATIENCE = timedelta(minutes=10)
"""For a collective; a dead rank is noticed seconds after it died, by the process that started it."""


@contextmanager
def join(rank: int, size: int, meeting: Path, device: torch.device) -> Iterator[Ranks]:
    """The ranks that meet at the new file `meeting`: NCCL between GPUs, gloo between CPUs, nothing for one alone."""
    if size == 1:
        yield Ranks()
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield Ranks.of()
    finally:
        dist.destroy_process_group()
