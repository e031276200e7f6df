"""`python -m ling_runtime.training.dspark generate|train|evaluate ...`: from a target to a draft for it.

generate    the target continues prompts; sequences for training, or held-out ones for evaluation
train       a draft learns from the target's states on those sequences
evaluate    how far a draft carries on held-out sequences

`COMMAND --help` lists the flags of a command. `python -m ling_runtime.training.dspark.ablation` runs many short
trainings side by side on one GPU, with the states kept in its memory.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ling_runtime.config import ConfigError
from ling_runtime.training.dspark import generate, score, train
from ling_runtime.training.dspark.options import parse
from ling_runtime.training.dspark.plan import TrainOptions
from ling_runtime.training.dspark.supervise import HalfDiedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

COMMANDS: dict[str, tuple[type[Any], Callable[[Any], int], str | None]] = {
    "generate": (generate.GenerateOptions, generate.run, generate.__doc__),
    "evaluate": (score.ScoreOptions, score.run, score.__doc__),
    "train": (TrainOptions, train.train, train.__doc__),
}


def main() -> int:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name not in COMMANDS:
        asked = name in ("-h", "--help")
        print(__doc__ if asked else f"{name}: unknown command; allowed: {', '.join(COMMANDS)}", file=sys.stderr)
        return 0 if asked else 2
    kind, command, description = COMMANDS[name]
    options = parse(
        kind, arguments, prog=f"python -m ling_runtime.training.dspark {name}", description=description or ""
    )
    try:
        return command(options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except HalfDiedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
