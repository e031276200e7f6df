"""The presets that compare, as far as everything that is found before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hydra import compose, initialize_config_dir

from analysis.sequence import fewest_blocks
from experiments import schema
from experiments.child import ROOT
from experiments.comparison.course import prepare
from experiments.composition import convert, override_lists
from experiments.engines.registry import engine_of
from experiments.precedence import without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from experiments.comparison.course import Venture

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def composed() -> Iterator[Callable[[list[str]], Any]]:
    schema.register()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield lambda overrides: compose("config", overrides)


@pytest.fixture
def go(composed: Callable[[list[str]], Any], tmp_path: Path) -> Callable[..., Venture]:
    def run(preset: str, *overrides: str) -> Venture:
        given = [f"experiment={preset}", f"output_dir={tmp_path}", *overrides]
        lists = override_lists(composed(given))
        return prepare([convert(composed([*without(given, one), *one])) for one in lists])

    return run


@pytest.mark.parametrize(
    "preset", ["ab", "campaign_miniature", "campaign_gpu", "campaign_gpu_short", "campaign_sglang"]
)
def test_every_change_of_a_preset_is_one_and_says_what_it_should_do(go: Callable[..., Venture], preset: str) -> None:
    venture = go(preset)
    told = [venture.modes.ab] if preset == "ab" else venture.modes.campaign.changes
    assert len(venture.plan.cells) == len(told) + 1
    assert all(change.hypothesis for change in told)
    assert len({item.identity for item in venture.plan.cells}) == len(venture.plan.cells)


def test_the_miniature_s_campaign_asks_500_questions_wherever_rounding_is_at_stake(go: Callable[..., Venture]) -> None:
    venture = go("campaign_miniature")
    cells = {item.cell.name: item.cell.spec for item in venture.plan.cells}
    asks = [name for name, cell in cells.items() if cell.task.name == "gsm8k"]
    rounding = [entry.name for entry in venture.modes.campaign.changes if entry.rounding == "declared"]
    assert asks == ["base", *rounding]
    assert cells["base"].task.num_questions >= 500
    assert venture.plan.study.resume


def test_sglang_is_started_with_its_own_flags_alone(go: Callable[..., Venture]) -> None:
    venture = go("campaign_sglang")
    commands = {
        item.cell.name: engine_of(item.cell.spec).command(item.cell.spec, port=1, served_name="x").shell()
        for item in venture.plan.cells
    }
    assert not any("--num-threads" in line or "--kernel" in line for line in commands.values())
    assert all("-m sglang.launch_server" in line and "--tp-size 4" in line for line in commands.values())
    assert "SGLANG_OPT_FUSED_KDA_VERIFY=1" in commands["fused-kda-verify"]
    assert "--disable-radix-cache" in commands["radix-cache-off"]
    assert "--flashinfer-allreduce-fusion-backend auto" in commands["allreduce-fusion"]
    assert "--speculative-dspark-block-size 8 --speculative-num-draft-tokens 9" in commands["block-8"]
    assert "--speculative-num-steps 5" in commands["depth-5"]


def test_switches_of_a_card_are_put_on_one_by_one(go: Callable[..., Venture]) -> None:
    """Each is a flag of its own, so that a campaign can put it on any stack and take it off again."""
    venture = go("campaign_gpu")
    lines = {
        item.cell.name: " ".join(engine_of(item.cell.spec).command(item.cell.spec, port=1, served_name="x").argv)
        for item in venture.plan.cells
    }
    assert all("--device cuda" in line and "--load-format dummy" in line for line in lines.values())
    assert [name for name, line in lines.items() if "--disable-overlap-schedule" not in line] == ["run-ahead"]
    assert [name for name, line in lines.items() if "--pdl off" not in line] == ["pdl"]
    assert [name for name, line in lines.items() if "--glue-graph on" in line] == ["glue-graph"]
    extended = [name for name, line in lines.items() if "--disable-draft-extend-cuda-graph" not in line]
    assert extended == ["extend-graph"]
    assert [name for name, line in lines.items() if "--engine-core 1" in line] == ["engine-core"]


def test_at_full_width_no_slot_costs_a_launch(go: Callable[..., Venture]) -> None:
    """Two servers of 64 GiB fit one card, but not with the reserve that `auto` wants."""
    settings = go("campaign_gpu").modes.ab
    assert (settings.servers, settings.start, settings.launch_blocks) == ("together", "at_once", 0)
    assert settings.floor_blocks >= fewest_blocks()
    short = go("campaign_gpu_short").modes.ab
    assert (short.servers, short.start) == ("auto", "in_turn")


def test_an_empty_list_on_either_side_makes_an_a_a(go: Callable[..., Venture]) -> None:
    venture = go("ab", "ab.baseline=[]", "ab.candidate=[]")
    baseline, candidate = (item.cell.spec for item in venture.plan.cells)
    assert baseline == candidate
