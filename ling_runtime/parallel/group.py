"""Ranks as a process group of torch: NCCL between cards, gloo between processors.

The surprise is how more than two ranks add. A library's all-reduce cuts the buffer into pieces and starts each piece's
sum at another rank, so a row's bits would depend on the rows around it; here every part is gathered and added in the
order of ranks. Of two parts the order cannot matter, and the library adds them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, Work

from ling_runtime.ops.norm import widen
from ling_runtime.parallel.communicator import Communicator

if TYPE_CHECKING:
    from torch import Tensor

WINDOW_ROWS = 64
"""Rows up to which zeros are kept; a prompt's are made when they are needed."""


class Group(Protocol):
    """What is used of torch's process groups and of their backends, which share no type."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def allreduce(self, tensors: list[Tensor], opts: AllreduceOptions) -> Work: ...
    def _allgather_base(self, output: Tensor, input: Tensor, opts: AllgatherOptions) -> Work: ...  # noqa: A002


class GroupCommunicator(Communicator):
    """The ranks of a process group. Every rank makes the same calls in the same order, with equal shapes.

    On a CUDA device calls are queued on the current stream and may be captured, after one that was not: a group makes
    its connections when it is first used.
    """

    def __init__(self, group: Group) -> None:
        self._group, self.rank, self.size = group, group.rank(), group.size()
        # Without these the group runs on a stream of its own, and two events stand around every call.
        self._sum, self._gather = AllreduceOptions(), AllgatherOptions()
        self._sum.asyncOp = self._gather.asyncOp = False
        self._zeros: dict[tuple[int, ...], Tensor] = {}

    def reduce(self, part: Tensor) -> Tensor:
        part = part.contiguous()
        if self.size == 2:
            self._done(self._group.allreduce([part], self._sum))
            return part
        parts = self._gathered(part)
        total = widen(parts[0])
        for one in parts[1:]:
            total = total + one
        return total.to(part.dtype)

    def beside(self, part: Tensor) -> Tensor:
        return self._gathered(part.contiguous()).transpose(0, 1).flatten(1)

    def best(self, choice: Tensor) -> Tensor:
        choices = self._gathered(choice)
        first = choices[..., 0].argmax(dim=0, keepdim=True)
        return choices[..., 1].gather(0, first)[0].long()

    def zeros(self, like: Tensor) -> Tensor:
        if len(like) > WINDOW_ROWS:
            return super().zeros(like)
        if like.shape not in self._zeros:
            self._zeros[like.shape] = super().zeros(like)
        return self._zeros[like.shape]

    def _gathered(self, part: Tensor) -> Tensor:
        """[size, ...]"""
        parts = part.new_empty(self.size * part.shape[0], *part.shape[1:])
        self._done(self._group._allgather_base(parts, part, self._gather))  # noqa: SLF001 - torch's name for one tensor
        return parts.view(self.size, *part.shape)

    @staticmethod
    def _done(work: Work | None) -> None:
        if work is not None:
            work.wait()
