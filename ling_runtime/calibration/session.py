"""An executor with a DSpark draft, driven by hand: prompts in, one decode step at a time.

Calibration runs in the executor itself and not through a server, so what is noted or timed is a step and nothing else.
The surprise: requests never stop. Text goes on behind an answer as it does under a load client, and a batch keeps its
size for as long as it is measured.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig
from ling_runtime.executor.build import ExecutorSettings, load_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.interface import Admission, RowSampling
from ling_runtime.ops.triton.variants import usable
from ling_runtime.speculation.dspark.identity import identity_of
from ling_runtime.tokenizer import Tokenizer
from ling_runtime.training.documents import plain, question
from ling_runtime.training.problems.generate import generate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ling_runtime.executor.interface import StepOutput
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.speculation.dspark.identity import Identity
    from ling_runtime.speculation.interface import Schedule

SHOTS = 5


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """What an artifact will be bound to."""

    target: str
    draft: str
    block_size: int | None
    device: str
    dtype: str
    kernels: Mapping[str, str] = field(default_factory=dict)
    """Variants that are asked for."""

    def executor(self, max_requests: int) -> StepExecutor:
        """On a CUDA device its steps are replayed, as the server's are; each is read before the next."""
        draft = DraftSettings(path=self.draft, block_size=self.block_size, confidence=True)
        settings = ExecutorSettings(
            draft=draft,
            max_requests=max_requests,
            dtype=self.dtype,
            device=self.device,
            graphs=GraphSettings() if self._replayed() else None,
            kernels=self.selection(),
        )
        return load_executor(self.target, settings)

    def identity(self, gamma: int) -> Identity:
        kernels = self.selection()
        return identity_of(self.target, self.draft, gamma, device=self.device, dtype=self.dtype, kernels=kernels)

    def selection(self) -> dict[str, str]:
        """The server's own: what a step costs is measured of it."""
        if not self._replayed():
            return dict(self.kernels)
        from ling_runtime.executor.dspark_graphs import BLOCK_VARIANTS  # noqa: PLC0415 - it imports Triton
        from ling_runtime.executor.graphs import best_here, device_selection  # noqa: PLC0415

        return device_selection(self.kernels, best_here(BLOCK_VARIANTS))

    def _replayed(self) -> bool:
        return self.device == "cuda" and usable() and DraftConfig.from_pretrained(self.draft).attention_type == "mha"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        tokenizer = Tokenizer.from_pretrained(Path(self.target))
        return [tokenizer.encode(text) for text in texts]


class Session:
    """Requests in flight by slot, all sampled at one temperature."""

    def __init__(self, executor: StepExecutor, schedule: Schedule, temperature: float = 0.0) -> None:
        self.executor = executor
        self._temperature, self._started = temperature, 0
        executor.schedule = schedule

    def start(self, prompt: Sequence[int], new_tokens: int) -> int:
        """Prefill a request and return its slot; ConfigError when it does not fit."""
        self._started += 1
        most = self.executor.max_context
        if len(prompt) + new_tokens > most:
            raise ConfigError(f"a prompt of {len(prompt)} tokens and {new_tokens} new ones: allowed in all: {most}")
        wish = RowSampling(temperature=self._temperature, top_p=1.0, top_k=-1, min_p=0.0, seed=self._started)
        slot = self.executor.admit(Admission(prompt, new_tokens, wish))
        while not self.executor.prefill(slot).done:
            pass
        return slot

    def step(self, slots: Sequence[int]) -> dict[int, StepOutput]:
        return self.executor.decode(slots)

    def end(self, slot: int) -> None:
        self.executor.release(slot)


def held_out_prompts(seed: int, count: int) -> list[str]:
    """Problems that training never saw, each behind the same worked examples."""
    problems = list(generate(seed, SHOTS + count, "heldout"))
    shots = "".join(plain(problem) for problem in problems[:SHOTS])
    return [shots + question(problem) for problem in problems[SHOTS:]]


def read_prompts(path: Path) -> list[str]:
    """The `text` of each line of a JSONL file."""
    try:
        texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--prompts {path}: expected JSONL with a text on each line ({error!r})") from error
    if not texts or not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"--prompts {path}: expected at least one line, each with a text")
    return texts
