"""Cells on SGLang, and presets as they are prepared for a dry run."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hydra import compose, initialize_config_dir

from experiments import schema
from experiments.child import ROOT
from experiments.composition import convert, override_lists, pairs
from experiments.spec import (
    CellSpec,
    EngineSpec,
    GateSpec,
    ModelSpec,
    SpeculationSpec,
    TaskSpec,
    WorkloadSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GROUPS = ("workload", "task", "gate", "model", "env", "kernels")
HUB = "inclusionAI/Ling-3.0-flash"
DRAFT = "inclusionAI/Ling-3.0-flash-dspark"


@pytest.fixture
def make() -> Callable[..., CellSpec]:
    """A cell on SGLang with a model of the hub; keywords of the engine, and whole groups."""

    def cell(speculation: SpeculationSpec | None = None, **changes: Any) -> CellSpec:
        groups = {
            key: changes.pop(key) for key in ("workload", "task", "gate", "model", "env", "kernels") if key in changes
        }
        base = CellSpec(
            engine=EngineSpec(
                name="sglang",
                **{"num_threads": None, "max_running_requests": None, "random_seed": None, **changes},
                **{key: value for key, value in {"dtype": "auto", "device": "cuda"}.items() if key not in changes},
            ),
            model=ModelSpec(name="ling", path=HUB, drafts={"8": DRAFT}),
            speculation=speculation or SpeculationSpec(),
            workload=WorkloadSpec(name="problems"),
            task=TaskSpec(),
            gate=GateSpec(mode="off"),
        )
        return replace(base, **groups)

    return cell


@pytest.fixture(scope="module")
def preset() -> Iterator[Callable[..., list[CellSpec]]]:
    """The cells of a preset, as configured."""
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):

        @cache
        def cells(name: str, *overrides: str) -> list[CellSpec]:
            given = [f"experiment={name}", *overrides]
            config = compose("config", given)
            listed = pairs(config, given, override_lists(config) or [[]])
            return [convert(compose("config", [*base, *own])).cell for base, own in listed]

        yield cells
