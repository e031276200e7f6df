"""How the ranks of one model find each other on this machine, and what each is set to before it loads.

The surprise is the switch for the network inside NVLink: it adds in the switch, in an order of its own, and would give
a row other bits than the sums that `group` counts on.
"""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from ling_runtime.config import ConfigError
from ling_runtime.parallel.communicator import ALONE, Communicator
from ling_runtime.parallel.group import GroupCommunicator

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "127.0.0.1"
PATIENCE = dt.timedelta(minutes=30)
"""Longest that a rank waits for another in a call: one may still read its weights. A dead rank is noticed otherwise."""

ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_NVLS_ENABLE": "0"}


def check_cards(size: int) -> None:
    """ConfigError where there are fewer cards to be seen than ranks."""
    if (seen := torch.cuda.device_count()) < size:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
        allowed = seen or "1, on a CPU"
        raise ConfigError(
            f"tp_size={size}: a rank has a card of its own, and {seen} can be seen{why}; allowed: {allowed}"
        )


def gather_place(size: int) -> TCPStore:
    """Where `size` ranks meet, held by rank 0, on a port that was free."""
    return TCPStore(HOST, 0, size, is_master=True, wait_for_workers=False, timeout=PATIENCE)


def meeting_place(port: int, size: int) -> TCPStore:
    """The same as the other ranks see it."""
    return TCPStore(HOST, port, size, is_master=False, timeout=PATIENCE)


def launched(environment: Mapping[str, str], device: str) -> Communicator:
    """The rank that torchrun started this process as; alone where it did not."""
    size = int(environment.get("WORLD_SIZE", "1"))
    return ALONE if size == 1 else join(None, int(environment["RANK"]), size, device)


def join(store: Store | None, rank: int, size: int, device: str) -> GroupCommunicator:
    """Become rank `rank`, on the card of that number where there are cards; returns when all have come.

    `store` None: where the environment says (torchrun).
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    group = dist.group.WORLD
    assert group is not None
    return GroupCommunicator(group)
