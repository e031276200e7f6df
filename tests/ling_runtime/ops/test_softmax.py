"""Splits of a context added up: the same bits however much room there is for more of them."""

from __future__ import annotations

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.memory.latent import PAGE
from ling_runtime.ops.triton.mla import SPLIT_PAGES, Parts, _merged

pytestmark = [pytest.mark.usefixtures("interpreter"), pytest.mark.whole]
HEADS, RANK = 8, 64
REQUESTS = 256 if DEVICE.type == "cuda" else 4
KEYS = PAGE * SPLIT_PAGES


def padded(tensor: torch.Tensor, splits: int) -> torch.Tensor:
    """[B, pairs, s, ...] with room for `splits`; nobody may read what is there."""
    room = tensor.new_full((*tensor.shape[:2], splits, *tensor.shape[3:]), float("nan"))
    room[:, :, : tensor.shape[2]] = tensor
    return room


@pytest.mark.parametrize("used", [1, 6, 65, 80])
def test_room_for_more_splits_changes_no_bit(used: int) -> None:
    """An eager step has a table as long as the context, a captured one as long as it may become."""
    noise = torch.Generator(DEVICE).manual_seed(used)
    sums = torch.randn(REQUESTS, 16, used, RANK, generator=noise, device=DEVICE)
    tops = torch.randn(REQUESTS, 16, used, generator=noise, device=DEVICE)
    weights = 1 + 100 * torch.rand(REQUESTS, 16, used, generator=noise, device=DEVICE)
    query = torch.empty(REQUESTS, HEADS, RANK, device=DEVICE)
    starts = torch.full((REQUESTS,), used * KEYS - 1, device=DEVICE)
    fade = (tops.double() - tops.double().amax(2, keepdim=True)).exp()
    exact = (sums.double() * fade[..., None]).sum(2) / (weights.double() * fade).sum(2)[..., None]
    found = [
        _merged(Parts(*(padded(one, room) for one in (sums, tops, weights))), query, starts, 1, KEYS)
        for room in (used, used + 1, 2 * used + 5, 161)
    ]
    torch.testing.assert_close(found[0].double(), exact[:, :HEADS], rtol=1e-4, atol=1e-4)
    for other in found[1:]:
        assert torch.equal(other, found[0])
