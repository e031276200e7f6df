"""The two graphs around verification under DSPARK: a block of drafts before it, the target's rows injected after it.

The draft graph holds the block's forward pass, the head and the serial chain of choices, and leaves its tokens in the
relay, so the verify graph finds them without the host. Injection covers every verified row, whatever was accepted:
those past the accepted prefix are overwritten before anything reads them. The surprise: both work on the buffers of one
verify step, and there may be several, for windows of fewer rows; a draft writes all its tokens and a short window reads
its first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ling_runtime.executor.graphs import DEVICE_VARIANTS, Recorded

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.executor.graphs import VerifyStep
    from ling_runtime.executor.relay import Relay
    from ling_runtime.memory.draft import DeviceBlock
    from ling_runtime.model.dspark import Dspark
    from ling_runtime.model.ling import Ling
    from ling_runtime.speculation.dspark.proposer import DsparkProposer

BLOCK_VARIANTS = DEVICE_VARIANTS | {"draft_block": "triton", "draft_inject": "triton", "draft_chain": "triton"}
"""What captured steps under DSPARK need."""


class BlockStep(Recorded):
    """Fills the relay's drafts of the verify step's slots; `confidence` [B, g] are their logits, where the draft has
    the head.
    """

    def __init__(self, target: Ling, proposer: DsparkProposer, relay: Relay, verify: VerifyStep) -> None:
        self._target, self._draft, self._cache = target, proposer.draft, proposer.cache
        self._relay, self._verify, self._drafts = relay, verify, proposer.steps
        self._chain = target.kernels["draft_chain"]
        self.confidence = torch.zeros(len(verify.slots), proposer.steps, device=target.device)

    @torch.inference_mode()
    def run(self) -> None:
        verify, draft, drafts = self._verify, self._draft, self._drafts
        verify.look_up()
        anchors = verify.anchors.contiguous()
        block = _block(self._draft.rows(drafts), verify, draft, self._cache)
        hidden = draft.over_pages(anchors, block, drafts)
        base = self._target.row_logits(hidden.flatten(0, 1)).unflatten(0, hidden.shape[:2])
        tokens = self._chain(base, anchors, hidden, draft.markov)
        self._relay.drafts.index_copy_(0, verify.slots, tokens)
        if draft.confidence is not None:
            before = torch.cat([anchors[:, None], tokens[:, :-1]], dim=1)
            self.confidence.copy_(draft.confidence(hidden, before))


class InjectStep(Recorded):
    """Puts what a verify step captured into the draft's cache, at the positions of its window."""

    def __init__(self, proposer: DsparkProposer, verify: VerifyStep) -> None:
        self._draft, self._cache, self._verify = proposer.draft, proposer.cache, verify

    @torch.inference_mode()
    def run(self) -> None:
        rows = self._verify.results.choices.shape[1]
        self._draft.into_pages(self._verify.captured, _block(rows, self._verify, self._draft, self._cache))


def _block(rows: int, verify: VerifyStep, draft: Dspark, cache: Tensor) -> DeviceBlock:
    pass_ = verify.window_pass()
    return draft.device_block(cache, pass_.table, pass_.window.start_index, rows)
