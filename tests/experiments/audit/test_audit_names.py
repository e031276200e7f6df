"""Flags and variables against a small SGLang: what is not there, what is old, what is given in the wrong form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from experiments.audit.audit import audit
from experiments.audit.nearest import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from experiments.audit.finding import Finding
    from experiments.audit.installed import Installed
    from experiments.audit.launch import Launch

FLAGS = {
    "--tp-size 4": {},
    "--tensor-parallel-size 4": {},
    "--tp-sise 4": {"flag-unknown": "did you mean --tp-size?"},
    "--frobnicate": {"flag-unknown": "leave it out; no flag's name is like it"},
    "--tp 4": {"flag-abbreviated": "write --tp-size"},
    "--attention fa3": {"flag-ambiguous": "write one of --attention-backend, --attention-mask"},
    "--attention-backend trtlm_mla": {"flag-value": "did you mean trtllm_mla?"},
    "--attention-backend": {"flag-value": "one of fa3, triton, trtllm_mla"},
    "--tp-size four": {"flag-value": "write --tp-size VALUE"},
    "--trust-remote-code true": {"flag-value": "write --trust-remote-code"},
    "--disable-cuda-graph": {"flag-deprecated": "use what replaces it"},
    "--tp-size 2 --tensor-parallel-size=4": {"flag-repeated": "give it once"},
    "--config more.yaml --tp-size 4": {
        "flag-unknown": "leave it out; no flag's name is like it",
        "flag-file": "write them as keys of the cell",
    },
}
VARIABLES = {
    ("SGLANG_OPT_FUSED_KDA_VERIFY", "1"): {},
    ("SGLANG_HOST_IP", "::1"): {},
    ("TRITON_CACHE_DIR", "/x"): {},
    ("SGLANG_ENABLE_FUSED_VERIFY_EXTEND_GRAPH", "1"): {"variable-unknown": "leave it out; no name is like it"},
    ("SGLANG_OPT_FUSE_KDA_VERIFY", "1"): {
        "variable-unknown": "leave it out; the nearest real name is SGLANG_OPT_FUSED_KDA_VERIFY"
    },
    ("SGLANG_DSPARK_FAST_SAMPLING", "1"): {"variable-deprecated": "use what replaces it"},
    ("SGL_SIMULATE_ACC_LEN", "-1"): {"variable-deprecated": "write SGLANG_SIMULATE_ACC_LEN"},
    ("SGLANG_OPT_FUSED_KDA_VERIFY", "on"): {"variable-value": "write 1 or 0"},
    ("SGLANG_SIMULATE_ACC_LEN", "three"): {"variable-value": "write a number"},
}


def said(findings: tuple[Finding, ...]) -> dict[str, str]:
    return {one.code: one.remedy for one in findings}


@pytest.mark.parametrize("line", FLAGS)
def test_a_flag_is_known_and_well_formed_or_named(launch: Callable[..., Launch], known: Installed, line: str) -> None:
    assert said(audit(launch(line, installed=known))) == FLAGS[line]


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_a_variable_is_known_and_well_formed_or_named(
    launch: Callable[..., Launch], known: Installed, name: str, value: str
) -> None:
    findings = audit(launch("--speculative-algorithm NEXTN", installed=known, **{name: value}))
    assert said(tuple(one for one in findings if one.subject == name)) == VARIABLES[name, value]


def test_a_flag_that_is_gone_is_an_error_where_the_parser_ends_on_it(
    launch: Callable[..., Launch], known: Installed
) -> None:
    gone = replace(known.flags["--disable-cuda-graph"], refused=True)
    (finding,) = audit(launch("--disable-cuda-graph", installed=replace(known, flags={gone.name: gone})))
    assert (finding.code, finding.severity) == ("flag-deprecated", "error")


def test_a_mode_that_is_none_ends_the_server(launch: Callable[..., Launch]) -> None:
    findings = audit(launch(SGLANG_RAGGED_VERIFY_MODE="compakt", target=None))
    assert [(one.code, one.severity) for one in findings if one.subject == "SGLANG_RAGGED_VERIFY_MODE"] == [
        ("variable-value", "error")
    ]


def test_a_variable_of_the_shell_is_named_unless_the_cell_sets_it(
    launch: Callable[..., Launch], known: Installed
) -> None:
    shell = {"SGLANG_HOST_IP": "::1", "HOME": "/root"}
    assert said(audit(launch(installed=known, inherited=shell))).keys() == {"variable-inherited"}
    assert said(audit(launch(installed=known, inherited=shell, SGLANG_HOST_IP="::2"))) == {}


def test_without_sglang_one_finding_says_so_and_the_other_rules_still_speak(launch: Callable[..., Launch]) -> None:
    findings = audit(launch("--frobnicate --attention-backend trtllm_mla", SGLANG_MADE_UP="1"))
    assert [(one.code, one.severity) for one in findings] == [
        ("sglang-missing", "error"),
        ("trtllm-mla-needs-blackwell", "error"),
    ]


def test_another_version_than_the_tested_one_is_a_warning(launch: Callable[..., Launch], known: Installed) -> None:
    (finding,) = audit(launch(installed=replace(known, version="0.6.0")))
    assert (finding.code, finding.severity) == ("sglang-untested", "warning")


def test_the_nearest_name_has_the_same_words_where_letters_mislead() -> None:
    names = ("--speculative-num-steps", "--speculative-num-draft-tokens", "--speculative-token-map")
    assert nearest("--speculative-draft-tokens", names) == "--speculative-num-draft-tokens"
    assert nearest("--log-level", names) is None
