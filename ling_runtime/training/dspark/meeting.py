"""How the ranks of a run find each other, and how they agree to stop at the same step.

They meet at a file, so there is no port to be taken. The surprise is the second group: whether to stop is asked over
gloo, on the host, before every step, and so never waits for a GPU.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ling_runtime.training.dspark.parallel import Ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE = timedelta(minutes=10)
"""For a collective; a dead rank is noticed seconds after it died, by the process that started it."""


@contextmanager
def join(rank: int, size: int, meeting: Path, device: torch.device) -> Iterator[tuple[Ranks, Callable[[bool], bool]]]:
    """The ranks that meet at the new file `meeting`, and `agree(flag)`: whether any of them says so."""
    if size == 1:
        yield Ranks(), bool
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=PATIENCE)
    host = dist.new_group(backend="gloo", timeout=PATIENCE)

    def agree(flag: bool) -> bool:
        votes = torch.tensor([int(flag)])
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=host)
        return bool(votes.item())

    try:
        yield Ranks.of(), agree
    finally:
        dist.destroy_process_group()
