"""A target and a draft over eight tokens, small enough for exact probabilities, around the real proposer and rules.

The target is a table over the two tokens before. The draft's backbone is a table over the anchor and the token before
it, one row per draft; Markov and confidence heads, the choice of drafts, their noise, acceptance and planning are those
of the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ling_runtime.draft_config import DraftConfig
from ling_runtime.memory.window import Window
from ling_runtime.model.markov import ConfidenceHead, markov_head
from ling_runtime.model.packing import Packer
from ling_runtime.ops.registry import Kernels
from ling_runtime.speculation.dspark.calibration import confidences
from ling_runtime.speculation.dspark.cost import AdditiveTable, Curve
from ling_runtime.speculation.dspark.planner import CausalPlanner
from ling_runtime.speculation.dspark.proposer import DsparkProposer
from ling_runtime.speculation.verification import RULES, verify
from tests.ling_runtime.speculation.exact import count, joint, p_value, sampling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from torch import Tensor

    from ling_runtime.executor.interface import RowSampling
    from ling_runtime.speculation.dspark.planner import Planner

VOCAB, LENGTH, DRAFTS = 8, 3, 2
WIDTH, RANK = 8, 4
START = (8, 8)
"""What stands before the first token."""

TOGETHER = 4
"""Requests that are planned together."""

COST = AdditiveTable(1.0, Curve((1,), (0.0,)), Curve((4, 12), (0.0, 1.4)))


@dataclass(frozen=True)
class Toy:
    """Target logits [9, 9, 8] by the two tokens before, and everything that the proposer asks of its two networks."""

    table: Tensor
    hidden: Tensor  # [9, 9, DRAFTS, WIDTH] by the same two tokens
    head: Tensor  # [WIDTH, VOCAB]
    markov: Any
    confidence: Any
    config: DraftConfig

    @classmethod
    def random(cls, seed: int, markov: str) -> Toy:
        noise = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=noise)

        config = DraftConfig(**SHAPE, markov_head_type=markov)  # type: ignore[arg-type]
        tensors = {
            "markov_head.markov_w1.weight": normal(VOCAB + 1, RANK),
            "markov_head.markov_w2.weight": normal(VOCAB, RANK),
            "markov_head.gate_proj.weight": normal(RANK, WIDTH + RANK),
            "markov_head.gate_proj.bias": normal(RANK),
            "markov_head.joint_proj.weight": normal(3 * RANK, 2 * RANK + WIDTH),
            "markov_head.joint_proj.bias": normal(3 * RANK),
            "confidence_head.proj.weight": normal(1, WIDTH + RANK),
            "confidence_head.proj.bias": 1 + normal(1),
        }
        weights = Packer(tensors, "", torch.float32, torch.device("cpu"))
        head = markov_head(config, weights.at("markov_head"), Kernels())
        return cls(
            table=1.5 * normal(VOCAB + 1, VOCAB + 1, VOCAB),
            hidden=normal(VOCAB + 1, VOCAB + 1, DRAFTS, WIDTH),
            head=0.5 * normal(WIDTH, VOCAB),
            markov=head,
            confidence=ConfidenceHead(config, weights.at("confidence_head"), head.embedding),
            config=config,
        )

    dtype = torch.bfloat16
    """Step logits are rounded to it, coarsely, before drafts are chosen."""

    @property
    def kernels(self) -> Kernels:
        return Kernels()

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self.head

    def rows(self, drafts: int) -> int:
        return drafts

    def __call__(self, anchors: Tensor, starts: tuple[int, ...], contexts: Sequence[int], drafts: int) -> Tensor:
        return self.hidden[torch.tensor(contexts), anchors]


SHAPE: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "block_size": DRAFTS,
    "mask_token_id": 7,
    "target_layer_ids": (0,),
    "markov_rank": RANK,
}


@dataclass
class Texts:
    """The draft's memory of each request: its text. Slots are counted from 1."""

    texts: list[list[int]]

    def context(self, slot: int, length: int) -> int:
        """The token before the anchor."""
        return self.texts[slot - 1][-2]


@dataclass
class Server:
    """Decodes many requests in lockstep; `mode` decides what is verified, `lengths` remembers it."""

    toy: Toy
    rule: str
    mode: str
    planner: Callable[[], Planner] = lambda: CausalPlanner(COST)

    def __post_init__(self) -> None:
        self.lengths: list[int] = []
        self.counts: list[int] = []

    def answers(self, wishes: Sequence[RowSampling]) -> list[list[int]]:
        """At least LENGTH tokens for each request."""
        texts = [list(START) for _ in wishes]
        proposer = DsparkProposer(self.toy, self.toy, Texts(texts), steps=DRAFTS)  # type: ignore[arg-type]
        planners = [self.planner() for _ in range(0, len(wishes), TOGETHER)]
        while running := [i for i, text in enumerate(texts) if len(text) < len(START) + LENGTH]:
            slots, starts = tuple(i + 1 for i in running), tuple(len(texts[i]) - 1 for i in running)
            window = Window(slots=slots, starts=starts, rows=DRAFTS + 1)
            anchors = torch.tensor([texts[i][-1] for i in running])
            proposal = proposer.propose(window, anchors, [wishes[i] for i in running])
            lengths = self._planned(running, proposal.confidence, planners)
            before = torch.tensor([texts[i][-2] for i in running])
            chain = torch.cat([before[:, None], anchors[:, None], proposal.drafts], dim=1)
            logits = self.toy.table[chain[:, :-1], chain[:, 1:]]
            if self.mode == "compact":
                logits[torch.arange(DRAFTS + 1) >= lengths[:, None]] = torch.nan  # rows that were never computed
            sampled = [wishes[i] for i in running]
            out = verify(logits, proposal, sampled, window.start_index, lengths, RULES[self.rule])
            self.lengths += lengths.tolist()
            self.counts += out.counts.tolist()
            for i, tokens, n in zip(running, out.tokens.tolist(), out.counts.tolist(), strict=True):
                texts[i] += tokens[:n]
        return [text[len(START) :] for text in texts]

    def _planned(self, running: list[int], raw: Tensor | None, planners: list[Planner]) -> Tensor:
        assert raw is not None
        if self.mode == "static":
            return torch.full((len(running),), DRAFTS + 1)
        confident = dict(zip(running, confidences(raw, [1.0] * DRAFTS).tolist(), strict=True))
        lengths: dict[int, int] = {}
        for group, planner in enumerate(planners):
            slots = [i for i in range(group * TOGETHER, (group + 1) * TOGETHER) if i in confident]
            if slots:
                planned = planner.lengths(slots, [confident[i] for i in slots])
                lengths |= dict(zip(slots, planned, strict=True))
        return torch.tensor([lengths[i] for i in running])


def check(server: Server, changes: dict[str, float], *, samples: int) -> float:
    """The p-value of `samples` continuations, one seed each."""
    one = sampling(**changes)
    answers = server.answers([replace(one, seed=seed) for seed in range(samples)])

    def logits(prefix: tuple[int, ...]) -> np.ndarray:
        return server.toy.table[(*START, *prefix)[-2:]].double().numpy()

    return p_value(count(answers, VOCAB, LENGTH), joint(logits, one, VOCAB, LENGTH))
