"""The presets that time a card through the server, as far as everything that is found before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hydra import compose, initialize_config_dir

from experiments import schema
from experiments.checks import checked
from experiments.child import ROOT
from experiments.composition import convert, override_lists
from experiments.engines.registry import engine_of
from experiments.findings import accept_source
from experiments.plan import expand
from experiments.precedence import without

if TYPE_CHECKING:
    from experiments.plan import Cell

pytestmark = pytest.mark.whole


def cells_of(preset: str) -> tuple[Cell, ...]:
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        given = [f"experiment={preset}"]
        lists = override_lists(compose("config", given))
        return expand([checked(convert(compose("config", [*without(given, one), *one])).cell) for one in lists])


def spec_of(cell: Cell) -> tuple[object, ...]:
    """What a change can differ in."""
    return (*sorted(cell.spec.engine.flags.items()), cell.spec.speculation.num_steps)


@pytest.mark.parametrize(
    ("preset", "names", "requests", "tokens"),
    [
        ("gpu_serving", ("none", "nextn-3-4", "nextn-5-6"), 64, 1024),
        ("gpu_serving_short", ("none", "nextn-3-4"), 2, 256),
    ],
)
def test_full_width_is_timed_and_never_asked_for_answers(
    preset: str, names: tuple[str, ...], requests: int, tokens: int
) -> None:
    cells = cells_of(preset)
    assert tuple(cell.name for cell in cells) == names
    for spec in (cell.spec for cell in cells):
        load = spec.workload
        assert (load.dataset_name, load.input_len, load.num_prompts, load.output_len) == (
            "random-ids",
            8192,
            requests,
            tokens,
        )
        assert (spec.model.weights, spec.task.name, spec.gate.mode) == ("drawn", "none", "off")
        assert not {"--disable-cuda-graph", "--disable-overlap-schedule"} & set(spec.engine.flags)
    sources = [accept_source(cell.spec) for cell in cells]
    assert sources == ["definition", *["simulated"] * (len(names) - 1)]
    assert all("drawn" in "".join(engine_of(cell.spec).remarks(cell.spec, {}, "")) for cell in cells)


def test_the_short_campaign_is_the_miniature_s_under_some_of_the_same_switches() -> None:
    short, whole = cells_of("campaign_gpu_short"), cells_of("campaign_gpu")
    assert short[0].spec.model.weights == "checkpoint"
    assert short[0].spec.engine.flags == whole[0].spec.engine.flags
    some, every = (tuple(spec_of(cell) for cell in cells[1:]) for cells in (short, whole))
    assert len(some) == 4
    assert set(some) < set(every)
