"""Configuration errors: each names its key and what it may be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments.checks import checked
from experiments.errors import ConfigError
from tests.fakes.checkpoint import CONFIG, write_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec


@pytest.fixture
def cell(make_cell: Callable[..., CellSpec]) -> CellSpec:
    return make_cell()


def changed(cell: CellSpec, group: str, **values: Any) -> CellSpec:
    groups: dict[str, Any] = {group: replace(getattr(cell, group), **values)}
    return replace(cell, **groups)


def test_draft_tokens_and_paths_are_completed(
    cell: CellSpec, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoint.parent)
    spec = changed(changed(cell, "speculation", num_draft_tokens=None), "model", path=checkpoint.name)
    done = checked(spec)
    assert done.speculation.num_draft_tokens == 4
    assert done.model.path == str(checkpoint)


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        ("model", {"path": "/no/such/model"}, r"model\.path: .*no config\.json"),
        ("model", {"tokenizer_path": "/no/such"}, r"model\.tokenizer_path: /no/such does not exist"),
        ("workload", {"dataset_path": "/no/such"}, r"workload\.dataset_path: /no/such does not exist"),
        ("task", {"data_path": "/no/such"}, r"task\.data_path: /no/such does not exist"),
        ("workload", {"num_prompts": 0}, r"workload\.num_prompts: 0 is too small; allowed: 1 and more"),
        ("workload", {"output_len": 3}, r"workload\.output_len: 3 is too small; allowed: 4 and more"),
        ("workload", {"input_len": 100}, r"workload\.input_len: needed for dataset_name=random"),
        ("workload", {"dataset_name": "random"}, r"workload\.input_len: needed for dataset_name=random"),
        ("workload", {"dataset_name": "random", "input_len": 8180}, r"exceeds the context of 8192 tokens"),
        ("engine", {"name": "mystery"}, r"engine\.name: 'mystery' is no engine; allowed: ling, sglang"),
        ("engine", {"ep_size": 2}, r"engine\.ep_size: engine=ling has no use for it"),
        ("engine", {"tp_size": 0}, r"engine\.tp_size: 0 is too small; allowed: 1 and more"),
        ("engine", {"tp_size": 5}, r"engine\.tp_size: tp_size=5: does not divide num_attention_heads=4"),
        ("engine", {"num_threads": None}, r"engine\.num_threads: null leaves it open; engine=ling needs a number"),
        ("engine", {"context_length": -1}, r"engine\.context_length: -1 is too small; allowed: 1 and more"),
        ("workload", {"num_shots": -1}, r"workload\.num_shots: -1 is too small; allowed: 0 and more"),
        ("task", {"max_new_tokens": 0}, r"task\.max_new_tokens: 0 is too small; allowed: 1 and more"),
        ("task", {"floor": 1.5}, r"task\.floor: 1\.5 is no share of correct answers; allowed: 0 to 1"),
        ("task", {"floor": -0.1}, r"task\.floor: -0\.1 is no share"),
        ("change", {"accept_bound": -0.1}, r"change\.accept_bound: -0\.1 is too small; allowed: 0 and more"),
        ("gate", {"near_tie": -1.0}, r"gate\.near_tie: -1\.0 is too small; allowed: 0 and more"),
        ("gate", {"parity_prompts": 0}, r"gate\.parity_prompts: 0 is too small"),
    ],
)
def test_values(cell: CellSpec, group: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(changed(cell, group, **values))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"num_nextn_predict_layers": 0}, r"speculation: .* has no NEXTN layer; allowed: none, or dspark"),
        (CONFIG | {"architectures": ["LlamaForCausalLM"]}, r"model\.path: architectures=.*LlamaForCausalLM"),
    ],
)
def test_a_model_that_cannot_do_it(cell: CellSpec, tmp_path: Path, config: dict[str, Any], message: str) -> None:
    path = write_checkpoint(tmp_path / "model")
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message):
        checked(changed(cell, "model", path=str(path)))


@pytest.mark.parametrize(("missing", "message"), [("model.safetensors", "holds no"), ("tokenizer.json", "holds no")])
def test_a_directory_that_is_half_a_model(cell: CellSpec, tmp_path: Path, missing: str, message: str) -> None:
    path = write_checkpoint(tmp_path / "model")
    (path / missing).unlink()
    with pytest.raises(ConfigError, match=message):
        checked(changed(cell, "model", path=str(path)))


def test_kernels_are_checked_against_the_registry(cell: CellSpec) -> None:
    with pytest.raises(ConfigError, match=r"kernels\.no_such_operator: no such operator; allowed: "):
        checked(replace(cell, kernels={"no_such_operator": "fused"}))
