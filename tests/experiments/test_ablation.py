"""The table of switches: complete, made of what the runtime has, and readable; timing itself needs a card."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import tests.ling_runtime.interpreted  # noqa: F401  # isort: skip - before anything of Triton

from experiments import ablation
from experiments.ablation_table import BV_CURVE_US, SWITCHES, TUNED, Switch
from experiments.step_subject import STACKS, Setting
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graphs import missing_variants
from ling_runtime.ops.registry import Kernels, variants
from ling_runtime.ops.triton.kda import VALUE_TILES as OF_A_CARD
from ling_runtime.ops.triton.kda_tiles import VALUE_TILES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def settings() -> list[Setting]:
    return [*STACKS.values(), *(side for switch in SWITCHES for side in (switch.off, switch.on))]


def test_names_are_unique_and_sides_differ() -> None:
    assert len({switch.name for switch in SWITCHES}) == len(SWITCHES)
    for switch in SWITCHES:
        modes = switch.loop or ("", "")
        assert (switch.off, modes[0]) != (switch.on, modes[1]), switch.name


def test_every_setting_is_one_that_a_captured_step_takes() -> None:
    for setting in settings():
        if any(name.startswith("cuda") for name in setting.kernels.values()) and not setting.runs_here:
            continue  # no card, or no compiler for it
        assert setting.runs_here
        assert missing_variants(Kernels(setting.selection)) == []
        GraphSettings(switches=setting.switches).check(window=6, blocks=False, fastest="early")


def test_every_variant_beside_the_default_is_measured() -> None:
    """A variant that can be chosen and is in no line of the table would be one whose price nobody knows."""
    chosen = {pair for setting in settings() for pair in setting.selection.items()}
    curve = {("kda_window", f"triton_bv{tile}") for tile in BV_CURVE_US}
    beside = {(v.operator, v.name) for v in variants() if v.name.startswith("triton_")}
    assert beside <= chosen | curve
    assert set(VALUE_TILES) == set(BV_CURVE_US)
    assert set(OF_A_CARD.values()) <= set(VALUE_TILES)


def test_switches_of_the_post_are_in_the_table_with_its_figures() -> None:
    said = {switch.name: ablation.said(switch) for switch in SWITCHES}
    assert "485 us" in said["seq-lens-pin"]
    assert "4.3 ms" in said["run-ahead"]
    assert "+10 %" in said["router-and-lm-head-bf16"]
    assert "14.26 to 11.56" in said["bv-table"]
    assert said["gate-norm"] == "-", "not the post's"
    tuned = [switch.name for switch in SWITCHES if TUNED not in (switch.off, switch.on)]
    assert sorted(tuned) == [
        "bv-table", "gate-norm", "glue-graph", "moe-align-pairs", "no-align", "pdl-late", "router-and-lm-head-bf16",
        "router-bf16", "single-rounding-combine", "swiglu-epilogue",
    ]  # fmt: skip


def test_the_table_is_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compared(_bench: object, switch: Switch, step: str, _steps: int) -> ablation.Line:
        return ablation.line(switch, step, [3.5, 3.4, 3.6], [3.3, 3.2, 3.4])

    def looped(_bench: object, setting: Setting, mode: ablation.Mode, _steps: int) -> tuple[ablation.Loop, list[float]]:
        step = 4.0 if mode == "ahead" else 5.0
        device = 3.9 if setting == TUNED else 4.4
        loop = ablation.Loop(mode=mode, step_ms=step, host_ms=0.2, device_ms=device, idle_ms=0.0, spread_ms=0.1)
        return loop, [step] * 3

    monkeypatch.setattr(ablation, "compared", compared)
    monkeypatch.setattr(ablation, "looped", looped)
    monkeypatch.setattr(ablation, "curve", lambda: {4: 9.4, 8: 9.0})
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "a card")
    out = tmp_path / "ablation.json"
    bench = type("Context", (), {"context": 8192})()
    ablation.ablate(bench, ["run-ahead", "bv-table"], steps=8, out=out)
    record = json.loads(out.read_text())
    run_ahead, *tiles = record["lines"]
    assert [loop["idle_ms"] for loop in run_ahead["loops"]] == [1.1, 0.1]
    assert run_ahead["gain_ms"] == 1.0
    assert [(one["step"], one["gain_ms"]) for one in tiles] == [("1", 0.2), ("6", 0.2), ("5/6", 0.2)]
    assert record["bv_curve_us"] == {"4": 9.4, "8": 9.0}
    printed = capsys.readouterr().out
    assert "in turn  host 0.200, device 3.900, idle 1.100" in printed
    assert "14.26 to 11.56 us" in printed
    assert "   8    9.00 (12.53)" in printed
