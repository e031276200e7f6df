"""`python -m ling_runtime.training.problems --seed 7 --num 500 --out problems.jsonl [--split heldout]`.

One JSON object a line, `question` and `answer`, as in GSM8K's own files. A held-out set takes a quarter of its problems
from orders of moves that training never sees; the others differ from training in their numbers and words.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ling_runtime.training.problems.generate import generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--split", choices=("train", "heldout"), default="train")
    args = parser.parse_args()
    lines = (
        json.dumps({"question": p.question, "answer": p.answer}) for p in generate(args.seed, args.num, args.split)
    )
    args.out.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
