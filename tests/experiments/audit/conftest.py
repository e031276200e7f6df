"""Launches from a line of text, and an SGLang small enough to be read in the test that asks it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.audit import hardware
from experiments.audit.declared_flags import Flag
from experiments.audit.declared_variables import Variable
from experiments.audit.installed import Installed
from experiments.audit.launch import Launch, written_flags
from experiments.audit.model import model
from experiments.audit.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.audit.finding import Finding

LING = "inclusionAI/Ling-3.0-flash"
DRAFT = "inclusionAI/Ling-3.0-flash-dspark"


@pytest.fixture
def known() -> Installed:
    """Four flags and three variables."""
    flags = (
        Flag(name="--tp-size", aliases=("--tensor-parallel-size",), field="tp_size", kind="int"),
        Flag(name="--attention-backend", field="attention_backend", choices=("fa3", "triton", "trtllm_mla")),
        Flag(name="--attention-mask", field="attention_mask"),
        Flag(name="--trust-remote-code", field="trust_remote_code", takes="nothing"),
        Flag(name="--disable-cuda-graph", field="disable_cuda_graph", takes="nothing", deprecated="Use --graph=off"),
    )
    variables = (
        Variable(name="SGLANG_OPT_FUSED_KDA_VERIFY", kind="EnvBool"),
        Variable(name="SGLANG_SIMULATE_ACC_LEN", kind="EnvFloat"),
        Variable(name="SGLANG_DSPARK_FAST_SAMPLING", deprecated="always on"),
    )
    return Installed(
        version="0.5.23",
        flags={name: flag for flag in flags for name in flag.spellings},
        variables={one.name: one for one in variables},
        mentioned=frozenset({"SGLANG_HOST_IP"}),
        overrides={},
    )


@pytest.fixture
def launch() -> Callable[..., Launch]:
    """From flags as text; the environment as keywords in capitals, all else of a launch in small letters."""

    def build(line: str = "", gpu: str | None = None, target: str | None = LING, **more: Any) -> Launch:
        env = {name: value for name, value in more.items() if name.isupper()}
        given = {name: value for name, value in more.items() if not name.isupper()}
        bare = Launch(written=written_flags(shlex.split(line)), env=env)
        gpus = hardware.declared(gpu) if gpu else None
        draft = model(bare.text("--speculative-draft-model-path"))
        return replace(bare, gpus=gpus, target=model(target), draft=draft, **given)

    return build


@pytest.fixture
def found(launch: Callable[..., Launch]) -> Callable[..., list[Finding]]:
    """What all rules say of such a launch."""
    return lambda *args, **more: [one for rule in RULES for one in rule(launch(*args, **more))]
