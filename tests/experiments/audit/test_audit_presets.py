"""The post's two launches as presets: each thing that is wrong there is named, and nothing in the corrected ones."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hydra import compose, initialize_config_dir

from experiments import schema
from experiments.audit import cells
from experiments.audit.installed import TESTED, installed
from experiments.checks import checked
from experiments.command import Command
from experiments.composition import convert, override_lists
from experiments.plan import label
from experiments.precedence import without
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.audit.finding import Finding
    from experiments.composition import Composed

pytestmark = pytest.mark.whole

EVERYWHERE = {
    ("trtllm-mla-needs-blackwell", "--attention-backend"),
    ("random-tiles", "workload.dataset_name"),
    ("floor-above-published", "task.floor"),
}
NEXTN = {
    ("variable-unknown", "SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH"),
    ("expert-bytes", "claims.expert_mb"),
}
DSPARK = {
    ("accept-length-impossible", "claims.accept_length"),
    ("draft-backend-fallback", "--attention-backend"),
    ("confidence-head-absent", "SGLANG_RAGGED_VERIFY_MODE"),
}
RADIX = {("radix-cache-off", "--disable-radix-cache")}


@pytest.fixture(autouse=True)
def _no_gpu_and_our_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop, on which `python3` is the interpreter of the tests."""
    for name in [name for name in os.environ if name.startswith(("SGLANG_", "SGL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("experiments.environment.capture", lambda: {"gpus": []})
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    found = installed(Command((sys.executable,)))
    if found is None or found.version != TESTED:
        pytest.skip(f"SGLang {TESTED} is not installed here")


@pytest.fixture(scope="module")
def composed() -> Iterator[Callable[[str], list[Composed]]]:
    """A preset's cells, composed once."""
    schema.register()

    @functools.cache
    def run(preset: str) -> list[Composed]:
        given = [f"experiment={preset}"]
        return [
            convert(compose("config", [*without(given, one), *one])) for one in override_lists(compose("config", given))
        ]

    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        yield run


@pytest.fixture
def audited(composed: Callable[[str], list[Composed]]) -> Callable[..., dict[str, tuple[Finding, ...]]]:
    """Findings by cell; keywords change the engine, `env` the environment."""

    def run(preset: str, env: dict[str, str] | None = None, **engine: Any) -> dict[str, tuple[Finding, ...]]:
        found = {}
        for one in composed(preset):
            changed = replace(one.cell, engine=replace(one.cell.engine, **engine), env={**one.cell.env, **(env or {})})
            cell = checked(changed)
            found[label(cell.speculation)] = cells.audit(cell, one.study.claims)
        return found

    return run


def said(findings: tuple[Finding, ...]) -> set[tuple[str, str]]:
    return {(one.code, one.subject) for one in findings}


def test_each_thing_wrong_in_the_post_s_nextn_launch_is_named(
    audited: Callable[..., dict[str, tuple[Finding, ...]]],
) -> None:
    found = audited("paper_nextn")
    assert said(found["none"]) == EVERYWHERE
    assert said(found["nextn-5-6"]) == EVERYWHERE | NEXTN
    reasons = {one.code: one.reason for one in found["nextn-5-6"]}
    assert "no Blackwell GPU is seen or declared" in reasons["trtllm-mla-needs-blackwell"]
    assert reasons["expert-bytes"].startswith("94 MB is the figure of 4 rows; 6 rows read")


def test_each_thing_wrong_in_the_post_s_dspark_launch_is_named(
    audited: Callable[..., dict[str, tuple[Finding, ...]]],
) -> None:
    found = audited("paper_dspark")
    assert said(found["none"]) == EVERYWHERE | RADIX
    assert said(found["dspark-8"]) == EVERYWHERE | RADIX | DSPARK


def test_declared_hardware_takes_the_place_of_what_is_there(
    audited: Callable[..., dict[str, tuple[Finding, ...]]],
) -> None:
    codes = {code for code, _ in said(audited("paper_nextn", gpu="4 x B200")["nextn-5-6"])}
    assert codes == {"random-tiles", "floor-above-published", "variable-unknown", "expert-bytes"}
    codes = {code for code, _ in said(audited("paper_nextn", gpu="1 x H200", tp_size=1)["nextn-5-6"])}
    assert {"memory", "trtllm-mla-needs-blackwell"} <= codes


@pytest.mark.parametrize("gpu", [None, "4 x B200", "4 x H200"])
@pytest.mark.parametrize("preset", ["paper_nextn_corrected", "paper_dspark_corrected"])
def test_nothing_is_wrong_in_the_corrected_launches(
    audited: Callable[..., dict[str, tuple[Finding, ...]]], preset: str, gpu: str | None
) -> None:
    found = audited(preset, gpu=gpu)
    assert len(found) == 2
    assert [one for findings in found.values() for one in findings] == []


def test_a_made_up_flag_and_a_made_up_variable_are_caught_with_the_nearest_real_name(
    audited: Callable[..., dict[str, tuple[Finding, ...]]],
) -> None:
    variable = {"SGLANG_ENABLE_METADATA_GLU_GRAPH": "1"}
    findings = audited("paper_nextn_corrected", variable, flags={"speculative-num-stepz": "5"})["nextn-5-6"]
    found = {one.subject: one for one in findings}
    assert {name: one.code for name, one in found.items()} == {
        "--speculative-num-stepz": "flag-unknown",
        "SGLANG_ENABLE_METADATA_GLU_GRAPH": "variable-unknown",
    }
    assert "did you mean --speculative-num-steps?" in found["--speculative-num-stepz"].remedy
    assert "SGLANG_ENABLE_METADATA_GLUE_GRAPH" in found["SGLANG_ENABLE_METADATA_GLU_GRAPH"].remedy
