"""From a draft's directory and its settings to a proposer on a target that is in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_table import CONFIDENCE
from ling_runtime.draft_weights import load_draft
from ling_runtime.dummy import DummyTensors
from ling_runtime.memory.draft import DraftPool
from ling_runtime.model.dspark import Dspark
from ling_runtime.speculation.dspark.proposer import DsparkProposer
from ling_runtime.speculation.dspark.schedule import ScheduleSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.caches import Caches
    from ling_runtime.model.ling import Ling


@dataclass(frozen=True, kw_only=True)
class DraftSettings:
    """Speculation with a DSpark draft: `block_size` None is the one it was trained for.

    `confidence` has every draft's confidence computed even where the schedule has no use for it.
    """

    path: str
    block_size: int | None = None
    acceptance: str = "classic"
    greedy: bool = False
    confidence: bool = False
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)


@dataclass(frozen=True)
class Draft:
    """A draft that fits the target, read and not yet packed."""

    config: DraftConfig
    tensors: Mapping[str, Tensor]
    drafts: int
    greedy: bool

    def proposer(self, model: Ling, caches: Caches, *, positions: int) -> DsparkProposer:
        draft = Dspark(model, self.tensors, self.config, positions=positions)
        pool = DraftPool(caches.latent, self.config.num_hidden_layers, draft.width)
        return DsparkProposer(model, draft, pool, steps=self.drafts, greedy=self.greedy)


def read_draft(
    settings: DraftSettings, target: ModelConfig, context: int, *, drawn_on: torch.device | None = None
) -> Draft:
    """ConfigError for a draft that is not there, of another target, or made for less than is asked of it.

    `drawn_on` a device: its config.json is enough, and its weights are drawn there.
    """
    config = DraftConfig.from_pretrained(settings.path)
    config.check_target(target)
    drafts = config.block_size if settings.block_size is None else settings.block_size
    if not 1 <= drafts <= config.block_size:
        raise ConfigError(
            f"speculative_dspark_block_size={drafts}: trained for {config.block_size}, allowed up to that"
        )
    if context > config.max_position_embeddings:
        raise ConfigError(f"context_length={context}: allowed up to the draft's {config.max_position_embeddings}")
    confidence = settings.confidence or settings.schedule.mode != "static"
    if drawn_on is not None:
        return Draft(
            config, DummyTensors(config, seed=1, device=drawn_on, confidence=confidence), drafts, settings.greedy
        )
    tensors = load_draft(settings.path, config, confidence=confidence)
    if not confidence:
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(CONFIDENCE)}
    return Draft(config, tensors, drafts, settings.greedy)
