"""Scores a checkpoint as the server will be scored: five-shot greedy answers, and how far drafts would carry.

`python -m ling_runtime.training.score --model DIR --seed 123 --num 500` makes fresh held-out problems, answers them
with training's own decoder and prints one JSON line. Prompt, stop string and answer extraction are few_shot_gsm8k's;
weights are read as they are on disk, in bf16, and computed with in fp32.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from ling_runtime.config import ModelConfig
from ling_runtime.tensor_table import tensor_specs
from ling_runtime.training.acceptance import Span, accept_length, accepted_runs
from ling_runtime.training.decode import generate_greedily
from ling_runtime.training.documents import plain, question
from ling_runtime.training.problems.generate import Problem, generate
from ling_runtime.weights import load

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from ling_runtime.training.layers import Params

SHOTS = 5
STOP = "Question"
DEPTHS = (1, 3, 5)


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    ids: Tensor
    """[B, T]: prompt, then greedy text up to the common length."""
    prompts: tuple[int, ...]
    """Prompt lengths."""


def generate_answers(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, problems: Sequence[Problem], new_tokens: int
) -> Trajectories:
    shots = "".join(plain(problem) for problem in problems[:SHOTS])
    prompts = [tokenizer.encode(shots + question(problem)).ids for problem in problems]
    length = max(map(len, prompts)) + new_tokens
    return Trajectories(ids=generate_greedily(params, config, prompts, length), prompts=tuple(map(len, prompts)))


def answer_value(text: str) -> int | None:
    """The last integer before the stop string, as few_shot_gsm8k reads it; None where there is none."""
    numbers = re.findall(r"\d+", text.split(STOP, maxsplit=1)[0].replace(",", ""))
    return int(numbers[-1]) if numbers else None


def stop_spans(taken: Trajectories, stop_id: int) -> list[Span]:
    """Each row's generated part up to and including the stop token, or to the row's end."""
    spans = []
    for row, start in zip(taken.ids.tolist(), taken.prompts, strict=True):
        end = row.index(stop_id, start) + 1 if stop_id in row[start:] else len(row)
        spans.append(Span(start, end))
    return spans


def score(
    params: Params, config: ModelConfig, tokenizer: Tokenizer, problems: Sequence[Problem], new_tokens: int
) -> dict[str, object]:
    taken = generate_answers(params, config, tokenizer, problems, new_tokens)
    rows = taken.ids.tolist()
    texts = [tokenizer.decode(row[start:]) for row, start in zip(rows, taken.prompts, strict=True)]
    values = [answer_value(text) for text in texts]
    hits = [value == problem.value for value, problem in zip(values, problems, strict=True)]
    runs = accepted_runs(params, config, taken.ids, max(DEPTHS))
    (stop_id,) = tokenizer.encode(STOP).ids
    answers = stop_spans(taken, stop_id)
    onward = [
        Span(start, min(start + new_tokens, len(row) - max(DEPTHS)))
        for row, start in zip(rows, taken.prompts, strict=True)
    ]
    return {
        "accuracy": sum(hits) / len(hits),
        "accuracy_withheld": _share(h for h, p in zip(hits, problems, strict=True) if p.template.withheld),
        "invalid": sum(value is None for value in values) / len(values),
        "accept_answers": {d: round(accept_length(runs, answers, d), 3) for d in DEPTHS},
        "accept_onward": {d: round(accept_length(runs, onward, d), 3) for d in DEPTHS},
        "wrong": [
            {"question": p.question, "expected": p.answer, "got": text.split(STOP)[0]}
            for p, text, hit in zip(problems, texts, hits, strict=True)
            if not hit
        ][:5],
    }


def _share(hits: Iterable[bool]) -> float:
    found = list(hits)
    return sum(found) / max(len(found), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="directory of model.safetensors; default: the model's")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num", type=int, default=500)
    parser.add_argument("--new-tokens", type=int, default=192)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    config = ModelConfig.from_pretrained(args.model)
    stored = load(args.weights or args.model, tensor_specs(config))
    params = {name: value.float().to(args.device) for name, value in stored.items()}
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    problems = list(generate(args.seed, args.num, "heldout"))
    print(json.dumps(score(params, config, tokenizer, problems, args.new_tokens)))


if __name__ == "__main__":
    main()
