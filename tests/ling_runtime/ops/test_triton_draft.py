"""A draft's device variants against their references, on the card or in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.memory.draft import DeviceBlock
from ling_runtime.memory.latent import PAGE
from ling_runtime.ops.draft import turn_table
from ling_runtime.ops.draft_block import HeadNorms, block_attention, choose_chain, inject_context
from ling_runtime.ops.triton.chain import COLUMNS, choose_chain_triton
from ling_runtime.ops.triton.draft import block_attention_triton, inject_context_triton
from tests.ling_runtime.ops.held import DTYPES, ON_CPU_SLOW, close, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("interpreter")]
LAYERS, WIDTH = 2, 16


def paged(rows: int, groups: int, dtype: torch.dtype, starts: tuple[int, ...]) -> DeviceBlock:
    """Two requests whose pages are mixed; what lies behind their blocks must not be read, and is no number."""
    cache = draw(9, PAGE, LAYERS, 2 * groups * WIDTH, dtype=dtype)
    table = torch.tensor([[5, 1, 7, 2], [3, 8, 4, 6]], device=DEVICE)
    for request, start in enumerate(starts):
        for position in range(start + rows, 4 * PAGE):
            cache[table[request, position // PAGE], position % PAGE] = torch.nan
    turns = turn_table(10000.0, 12, WIDTH, 4 * PAGE).to(DEVICE, torch.complex64)
    return DeviceBlock(cache, table, torch.tensor(starts, device=DEVICE), rows, turns)


def norms(heads: int, groups: int, layers: int) -> HeadNorms:
    return HeadNorms(weight=1 + 0.1 * draw(layers, heads + groups, WIDTH), heads=heads, groups=groups, eps=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "groups", "rows", "causal"),
    [(2, 2, 8, False), (4, 2, 9, True), pytest.param(2, 1, 17, False, marks=ON_CPU_SLOW)],
)
def test_a_block_over_pages(dtype: torch.dtype, heads: int, groups: int, rows: int, causal: bool) -> None:
    """Over the end of a page, at the beginning of everything, and past one split."""
    block = paged(rows, groups, dtype, (60, 150)) if rows != 9 else paged(rows, groups, dtype, (0, 127))
    projected = draw(2 * rows, (heads + 2 * groups) * WIDTH, dtype=dtype)
    found = []
    for variant in (block_attention_triton, block_attention):
        mine = replace(block, cache=block.cache.clone())
        found.append((variant(projected, mine, norms(heads, groups, 1), 1, WIDTH**-0.5, causal), mine.cache))
    (got, cache), (want, expected) = found
    close(got, want, dtype)
    close(cache.nan_to_num(), expected.nan_to_num(), dtype)
    assert torch.equal(cache[:, :, 0].nan_to_num(), block.cache[:, :, 0].nan_to_num()), "the other layer's is as it was"


def test_splits_of_other_sizes_say_the_same() -> None:
    block = paged(3, 1, torch.float32, (100, 200))
    projected = draw(6, 3 * WIDTH)
    one, four = (
        block_attention_triton(projected, block, norms(1, 1, 1), 0, WIDTH**-0.5, False, split_pages=pages)
        for pages in (1, 4)
    )
    close(one, four, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_injection_writes_all_layers_at_the_window(dtype: torch.dtype) -> None:
    block = paged(5, 1, dtype, (60, 150))
    projected = draw(10, LAYERS * 2 * WIDTH, dtype=dtype)
    got, want = replace(block, cache=block.cache.clone()), replace(block, cache=block.cache.clone())
    inject_context_triton(projected, got, norms(0, 1, LAYERS))
    inject_context(projected, want, norms(0, 1, LAYERS))
    close(got.cache.nan_to_num(), want.cache.nan_to_num(), dtype)
    assert int((got.cache != block.cache).any(-1).any(-1).sum()) >= 10


@dataclass
class Vanilla:
    """A head whose bias is W2 W1[previous], large enough to decide."""

    factors: tuple[Tensor, Tensor] | None

    def chain(self, hidden: Tensor) -> Callable[[int, Tensor], Tensor]:
        assert self.factors is not None
        embedding, up = self.factors
        return lambda _, previous: (embedding[previous].float() @ up.float().T).to(up.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [COLUMNS - 3, 5 * COLUMNS + 7])
def test_a_chain_chooses_as_one_by_one(dtype: torch.dtype, vocabulary: int) -> None:
    batch, drafts, rank = 2, 3, 12
    head = Vanilla((draw(vocabulary, rank, dtype=dtype), draw(vocabulary, rank, dtype=dtype).flip(0)))
    base, hidden = draw(batch, drafts, vocabulary, dtype=dtype), draw(batch, drafts, 4, dtype=dtype)
    anchors = torch.tensor([3, vocabulary - 1], device=DEVICE)
    got, want = (choose(base, anchors, hidden, head) for choose in (choose_chain_triton, choose_chain))
    assert torch.equal(got, want)
    assert not torch.equal(got, base.argmax(-1)), "the bias decides"


def test_a_tie_goes_to_the_lowest_token() -> None:
    vocabulary, factor = 3 * COLUMNS, torch.zeros(3 * COLUMNS, 4, device=DEVICE)
    base = torch.zeros(1, 2, vocabulary, device=DEVICE)
    base[0, 0, [70, 130]] = 1.0
    anchors, hidden = torch.tensor([9], device=DEVICE), torch.zeros(1, 2, 4, device=DEVICE)
    assert choose_chain_triton(base, anchors, hidden, Vanilla((factor, factor))).tolist() == [[70, 0]]
