"""The audit of one launch of SGLang: everything that the rules look at is gathered, then they are asked.

The surprise: an SGLang that is not there is a finding like any other. What takes no installation is said all the same,
so that a preset can be audited on the laptop on which it is written.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from experiments import environment
from experiments.audit import hardware
from experiments.audit.finding import Finding, worst_first
from experiments.audit.installed import TESTED, installed, own
from experiments.audit.launch import Launch, written_flags
from experiments.audit.model import model
from experiments.audit.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.command import Command

MODEL, DRAFT = "--model-path", "--speculative-draft-model-path"


def launch_of(command: Command, gpu: str | None) -> Launch:
    """All that the rules look at, read from this machine. Raises ConfigError for a GPU that nobody knows."""
    theirs, written = installed(command), written_flags(command.argv)
    bare = Launch(written=written, env=command.env, installed=theirs or own(), borrowed=theirs is None)
    seen = hardware.declared(gpu) if gpu else hardware.seen(environment.capture()["gpus"])
    return replace(
        bare,
        gpus=None if bare.text("--device") == "cpu" else seen,
        target=model(bare.text(MODEL)),
        draft=model(bare.text(DRAFT)),
        inherited={name: value for name, value in os.environ.items() if name.startswith(("SGLANG_", "SGL_"))},
    )


def audit(launch: Launch) -> tuple[Finding, ...]:
    """Pure."""
    return worst_first([*installation(launch), *(one for rule in RULES for one in rule(launch))])


def installation(launch: Launch) -> Iterator[Finding]:
    if launch.installed is None or launch.borrowed:
        looked = f"in {launch.installed.version}, this program's own" if launch.installed else "nowhere"
        reason = (
            "no SGLang that can be read is where the command would start it; "
            f"flags and variables were looked up {looked}"
        )
        remedy = "pip install sglang in the environment of engine.command, or activate the environment that has it"
        yield Finding("sglang-missing", "error", "engine.command", reason, "the command's interpreter", remedy)
    elif launch.installed.version != TESTED:
        reason = (
            f"{launch.installed.version} is installed; {TESTED} is what rules and presets were read and tested against"
        )
        remedy = f"pip install sglang=={TESTED}, or compare with care"
        source = "the installed package"
        yield Finding("sglang-untested", "warning", "engine.command", reason, source, remedy)
