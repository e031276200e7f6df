"""Ranks of one model in one process: a thread each, with gloo between them and nothing else shared."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.parallel.group import GroupCommunicator
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.weights import shard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.parallel.communicator import Communicator

Result = TypeVar("Result")
PATIENCE = dt.timedelta(seconds=60)


class InTurn(GroupCommunicator):
    """Lets other ranks run only while this one waits for them: Triton's interpreter knows one thread."""

    turn = threading.Lock()

    def _gathered(self, part: Tensor) -> Tensor:
        self.turn.release()
        try:
            return super()._gathered(part)
        finally:
            self.turn.acquire()

    def reduce(self, part: Tensor) -> Tensor:
        return self.beside(part).unflatten(1, (self.size, -1)).sum(1).to(part.dtype)


def together(size: int, run: Callable[[Communicator], Result], *, in_turn: bool = False) -> list[Result]:
    """What `run` gives on each rank, in their order; an error of any is raised."""
    store = dist.HashStore()

    def one(rank: int) -> Result:
        group = dist.ProcessGroupGloo(store, rank, size, PATIENCE)
        if not in_turn:
            return run(GroupCommunicator(group))
        with InTurn.turn:
            return run(InTurn(group))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def executor(
    config: ModelConfig, tensors: Mapping[str, Tensor], ranks: Communicator, **settings: object
) -> StepExecutor:
    """One rank's, from the whole model's tensors."""
    specs = tensor_specs(config)
    own = {n: shard(specs[n], t, ranks.rank, ranks.size).contiguous() for n, t in tensors.items()}
    return build_executor(config.of_rank(ranks.size), own, ExecutorSettings(**settings), ranks)  # type: ignore[arg-type]
