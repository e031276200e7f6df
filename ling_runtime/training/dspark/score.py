"""Scores a draft checkpoint on sequences that its target wrote greedily: accept length by position, and confidence.

The draft is read as it is on disk, in bf16, and computed with in fp32, as the server does by default. Prints one JSON
line. Sequences written by sampling would be scored too low, because acceptance here is agreement with their tokens, so
they are refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - flags are made from the types when the program runs
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import torch

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import load_draft
from ling_runtime.speculation.dspark.identity import checkpoint
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.training.dspark.evaluate import evaluate
from ling_runtime.training.dspark.options import check_device
from ling_runtime.training.dspark.target import Target
from ling_runtime.training.dspark.trainer import Shared
from ling_runtime.training.dspark.trajectories import Trajectories
from ling_runtime.weights import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_runtime.training.dspark.batch import Batch
    from ling_runtime.training.dspark.trajectories import Rows

BATCH = 16
"""Sequences at a time."""


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    model: Annotated[Path, "the target's directory"]
    draft: Annotated[Path, "the draft's directory"]
    trajectories: Annotated[Path, "directory written by `generate --greedy-only --split heldout`"]
    length: Annotated[int, "tokens of a sequence, one of the lengths that were generated"] = 1024
    rows: Annotated[int | None, "sequences to score; all where it is not given"] = None
    limit: Annotated[int | None, "tokens of each sequence to score, from the end of its prompt on"] = 256
    device: Annotated[Literal["cpu", "cuda"], "where to compute"] = "cpu"
    num_threads: Annotated[int, "CPU threads"] = 1

    def __post_init__(self) -> None:
        check_device(self.device)


def run(options: ScoreOptions) -> int:
    torch.set_num_threads(options.num_threads)
    device, target = torch.device(options.device), ModelConfig.from_pretrained(options.model)
    draft = DraftConfig.from_pretrained(options.draft)
    draft.check_target(target)
    rows = _greedy_rows(options)
    tensors = load(options.model, tensor_specs(target))
    states = Target(target, tensors, draft.target_layer_ids, longest=options.length, device=device)
    own = ("model.word_embeddings.weight", "lm_head.weight")
    shared = Shared.of({name: tensors[name].float().to(device) for name in own})
    stored = load_draft(options.draft, draft, confidence=True)
    params = {name: value.float().to(device) for name, value in stored.items()}
    score = evaluate(params, draft, shared, _batches(states, rows), options.limit)
    print(json.dumps({"rows": len(rows.ids), **score.to_json()}))
    return 0


def _greedy_rows(options: ScoreOptions) -> Rows:
    taken = Trajectories.open(options.trajectories, target=checkpoint(options.model))
    if options.length not in taken.rows:
        raise ConfigError(f"length={options.length}: allowed: {', '.join(map(str, sorted(taken.rows)))}")
    rows = taken.rows[options.length]
    sampled = {taken.settings[kind].name for kind in np.unique(rows.setting)} - {"greedy"}
    if sampled:
        raise ConfigError(
            f"trajectories={options.trajectories}: has {', '.join(sorted(sampled))}; allowed: greedy alone"
        )
    return rows.take(np.arange(len(rows.ids))[: options.rows])


def _batches(states: Target, rows: Rows) -> Iterator[Batch]:
    for start in range(0, len(rows.ids), BATCH):
        yield states(rows.take(np.arange(start, min(start + BATCH, len(rows.ids)))))
