"""How the ranks of a run find each other and part: at a file, so there is no port to be taken.

The surprise: parting needs care. A rank that closes its connections while another still reads the last sum from them
fails that one, so each waits at the file until all have done their last step.
"""

from __future__ import annotations

import time
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
    store = dist.FileStore(str(meeting), size)  # type: ignore[attr-defined]  # public, but not in torch's own list
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield Ranks.of()
        done = store.add("done", 1)
        while done < size:  # a dead rank is not waited for: whoever started the ranks ends them all
            time.sleep(0.01)
            done = store.add("done", 0)
    finally:
        dist.destroy_process_group()
