"""run.py and the audit: shown before a run, filed with it, and under strict the end of it before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.experiments.driver import Run

pytestmark = pytest.mark.process

IMPOSSIBLE = "claims.accept_length=9.95"
REASON = "9.95 tokens a step cannot come out of a window of 4 rows"


def codes(shown: Run) -> list[str]:
    return [finding["code"] for finding in shown.line["findings"]]


def test_preflight_shows_the_findings_as_a_table_and_in_the_json_line(run_py: Callable[..., Run]) -> None:
    shown = run_py("preflight=true", IMPOSSIBLE, "workload=post_small", "speculation.num_steps=3,2", "-m")
    assert codes(shown) == ["accept-length-impossible", "accept-length-impossible", "random-tiles"]
    assert set(shown.line["findings"][0]) == {"code", "severity", "subject", "reason", "source", "remedy", "cells"}
    assert shown.line["findings"][0]["cells"] == ["single/nextn-3-4"]
    assert shown.line["findings"][2]["cells"] == ["single/nextn-3-4", "single/nextn-2-3"]
    lines = shown.out.splitlines()
    assert "error    accept-length-impossible: claims.accept_length (single/nextn-3-4)" in lines
    assert "warning  random-tiles: workload.dataset_name" in lines
    assert lines[-2] == "audit: 2 errors, 1 warning"
    assert not list((shown.directory / "out").rglob("record.json"))


def test_a_run_says_it_on_stderr_and_files_it_in_the_record(run_py: Callable[..., Run]) -> None:
    shown = run_py(IMPOSSIBLE)
    assert shown.code == 0
    assert f"error: accept-length-impossible: claims.accept_length: {REASON}" in shown.err
    (finding,) = shown.record()["findings"]
    assert (finding["code"], finding["severity"], finding["reason"]) == ("accept-length-impossible", "error", REASON)
    assert shown.line["cells"][0]["findings"] == [finding]


@pytest.mark.parametrize("mode", [(), ("mode=ab", "ab.candidate=[speculation.num_steps=2]", "ab.prompts=1")])
def test_strict_refuses_an_error_before_anything_starts(run_py: Callable[..., Run], mode: tuple[str, ...]) -> None:
    shown = run_py(IMPOSSIBLE, "audit=strict", *mode)
    assert shown.code == 2
    assert shown.line["error"].startswith(f"audit=strict: claims.accept_length: accept-length-impossible: {REASON}")
    assert not list((shown.directory / "out").rglob("record.json"))


def test_strict_runs_what_has_warnings_only_and_off_has_none(run_py: Callable[..., Run]) -> None:
    shown = run_py("audit=strict", "workload=post_small", "dry_run=true")
    assert (shown.code, codes(shown)) == (0, ["random-tiles"])
    shown = run_py("audit=off", IMPOSSIBLE, "dry_run=true")
    assert (shown.code, codes(shown)) == (0, [])


def test_sglang_that_is_not_there_is_a_finding_and_the_other_rules_speak(run_py: Callable[..., Run]) -> None:
    """The stand-in for its load client shadows an installed one here."""
    overrides = ("engine.name=sglang", "engine.attention_backend=trtllm_mla", "engine.device=cuda")
    shown = run_py(*overrides, "preflight=true", "audit=strict")
    assert codes(shown)[:1] == ["sglang-missing"]
    assert "trtllm-mla-needs-blackwell" in codes(shown) or "nvidia-smi reports none" not in shown.out
    assert shown.code == 2
