"""The real command line over the scripted executor: `python scripted_server.py FLAGS`, for tests that need a process.

SCRIPTED_FAIL_AT_STEP in the environment makes the executor raise at that step.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from scripted import ScriptedExecutor

from ling_runtime import server

if TYPE_CHECKING:
    from ling_runtime.arguments import ServerConfig


def load(config: ServerConfig, ranks: None) -> ScriptedExecutor:
    tokens = server.load_tokenizer(config).encode(" There are 12 apples.\n")
    fail = os.environ.get("SCRIPTED_FAIL_AT_STEP")
    return ScriptedExecutor(
        lambda _: tokens,
        window=config.speculative_num_draft_tokens or 1,
        num_tokens=10**6,
        chunk=512,
        step_s=0.001,
        fail_at_step=None if fail is None else int(fail),
    )


if __name__ == "__main__":
    server.load = load
    server.check_model = lambda config: config
    sys.exit(server.main(sys.argv[1:]))
