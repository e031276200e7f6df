"""What SGLang is not asked for: keys that it lacks, models that are not there, numbers that would mean nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.checks import checked
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError
from experiments.spec import GateSpec, ModelSpec, SpeculationSpec, TaskSpec, WorkloadSpec
from tests.fakes.checkpoint import write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec

NEXTN = SpeculationSpec(algorithm="nextn", num_steps=3)
BLOCK = SpeculationSpec(algorithm="dspark", block_size=8)
SIMULATED = {"SGLANG_SIMULATE_ACC_LEN": "2.5"}


@pytest.mark.parametrize(
    ("speculation", "changes", "message"),
    [
        (None, {"kernels": {"moe_align": "pair_axis"}}, r"kernels\.moe_align: variants of ling_runtime's operators"),
        (None, {"model": ModelSpec(name="m", path="/no/such")}, r"model\.path: /no/such holds no config\.json"),
        (None, {"model": ModelSpec(name="m", path="a/b/c")}, r"model\.path: .*a/b/c holds no config\.json"),
        (None, {"gpu": "0 x B200"}, r"engine\.gpu: '0 x B200' is not known; allowed, also with `4 x ` before it"),
        (None, {"mem_fraction_static": 1.0}, r"engine\.mem_fraction_static: 1 is no part of memory; allowed: between"),
        (None, {"mem_fraction_static": 0.0}, r"engine\.mem_fraction_static: 0 is no part of memory"),
        (None, {"mem_fraction_static": -0.5}, r"engine\.mem_fraction_static: -0\.5 is no part of memory"),
        (None, {"url": "http://127.0.0.1:1"}, r"engine\.url: engine=sglang has no use for it"),
        (None, {"flags": {"tp-size": "4"}}, r"engine\.flags\.tp-size: has a key of its own"),
        (None, {"flags": {"port": "4"}}, r"engine\.flags\.port: has a key of its own"),
        (None, {"flags": {"speculative-algorithm": "UNO"}}, r"engine\.flags\.speculative-algorithm: has a key"),
        (None, {"flags": {"--page-size": "64"}}, r"engine\.flags\.--page-size: named without dashes: .*\.page-size"),
        (
            None,
            {"flags": {"disable-radix-cache": "True"}},
            r"engine\.flags\.disable-radix-cache: a bare flag is",
        ),
        (None, {"flags": {"api-key": "hush"}}, r"engine\.flags\.api-key: a secret"),
        (NEXTN, {"flags": {"speculative-num-steps": "4"}}, r"engine\.flags\.speculative-num-steps: has a key of its"),
        (replace(NEXTN, num_draft_tokens=6), {}, r"speculation\.num_draft_tokens: a chain of 3 steps verifies 4"),
        (replace(NEXTN, block_size=8), {}, r"speculation\.block_size: .* a chain's depth is num_steps"),
        (SpeculationSpec(algorithm="eagle3", num_steps=3), {}, r"speculation\.draft_path: .* needs a draft model"),
        (SpeculationSpec(algorithm="ngram", num_draft_tokens=1), {}, r"num_draft_tokens: 1 leaves no draft"),
        (SpeculationSpec(algorithm="ngram", num_draft_tokens=4, num_steps=3), {}, r"num_steps: .* looked up"),
        (replace(BLOCK, num_draft_tokens=10), {}, r"speculation\.num_draft_tokens: .* block_size \+ 1 rows"),
        (replace(BLOCK, block_size=16), {}, r"speculation\.draft_path: model ling names no draft of a block of 16"),
        (replace(BLOCK, draft_path="/no/draft"), {}, r"speculation\.draft_path: /no/draft holds no config\.json"),
        (replace(BLOCK, block_size=None, draft_path="org/other"), {}, r"speculation\.block_size: None is not a number"),
        (
            replace(BLOCK, verify_mode="compact", scheduler="causal"),
            {},
            r"speculation\.scheduler: ling_runtime's alone; engine=sglang takes null",
        ),
        (
            replace(BLOCK, verify_mode="compact", sts_path="/no/sts"),
            {},
            r"speculation\.sts_path: /no/sts is no file",
        ),
        (
            BLOCK,
            {"env": {"SGLANG_RAGGED_VERIFY_MODE": "compact"}},
            r"env\.SGLANG_RAGGED_VERIFY_MODE: has a key of its own; set speculation\.verify_mode",
        ),
    ],
)
def test_refusals_name_the_key(
    make: Callable[..., CellSpec], speculation: SpeculationSpec | None, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(make(speculation, **changes))


def test_a_workload_that_is_longer_than_a_known_model_s_context(make: Callable[..., CellSpec], tmp_path: Path) -> None:
    model = ModelSpec(name="m", path=str(write_checkpoint(tmp_path / "model")))
    load = WorkloadSpec(name="w", dataset_name="random", input_len=8192, output_len=1024)
    with pytest.raises(ConfigError, match=r"workload: input_len \+ output_len = 9216 exceeds the context of 8192 tok"):
        checked(make(model=model, workload=load))
    assert checked(make(model=model, workload=load, context_length=16384)).engine.context_length == 16384


@pytest.mark.parametrize(
    ("speculation", "env", "changes", "message"),
    [
        (NEXTN, {"SGLANG_SIMULATE_ACC_LEN": "5"}, {}, r"5 cannot come out of 4 rows; allowed: 1 to 4"),
        (NEXTN, {"SGLANG_SIMULATE_ACC_LEN": "much"}, {}, r"'much' is no accept length"),
        (NEXTN, SIMULATED | {"SGLANG_SIMULATE_ACC_METHOD": "lucky"}, {}, r"'lucky' is unknown; allowed: match-exp"),
        (NEXTN, {"SGLANG_SIMULATE_ACC_TOKEN_MODE": "fixed"}, {}, r"TOKEN_MODE: says how .* is simulated, which is not"),
        (NEXTN, SIMULATED, {"gate": GateSpec()}, r"gate: tokens of simulated acceptance are not the target's"),
        (NEXTN, SIMULATED, {"task": TaskSpec(name="gsm8k")}, r"task: answers of simulated acceptance"),
        (None, SIMULATED | {"SGLANG_SIMULATE_ACC_LEN": "1"}, {}, r"nothing is accepted without speculation"),
    ],
)
def test_simulated_acceptance_cannot_pass_for_a_measurement(
    make: Callable[..., CellSpec], speculation: Any, env: dict[str, str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(make(speculation, env=env, **changes))


def test_nothing_simulates_behind_the_cell_s_back(
    make: Callable[..., CellSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"SGL_SIMULATE_ACC_LEN: a former name, .* write SGLANG_SIMULATE_ACC_LEN"):
        checked(make(NEXTN, env={"SGL_SIMULATE_ACC_LEN": "2"}))
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "2")
    with pytest.raises(ConfigError, match=r"SGLANG_SIMULATE_ACC_LEN: set in the shell"):
        checked(make(NEXTN))
    assert checked(make(NEXTN, env=SIMULATED)).env == SIMULATED


def test_a_launch_needs_sglang_and_another_program_does_not(
    make: Callable[..., CellSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(make())
    engine.check_installed(make())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"engine: SGLang is not installed here: pip install 'sglang==0\.5\.23'"):
        engine.check_installed(make())
    engine.check_installed(make(command=("other", "-m", "sglang.launch_server")))
