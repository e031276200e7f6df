"""What is known of checkpoints and GPUs: from a config.json, from the published ones, from a declaration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from experiments.audit import hardware
from experiments.audit.model import local, model, published
from experiments.errors import ConfigError
from tests.experiments.audit.conftest import DRAFT, LING
from tests.experiments.driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.audit.finding import Finding


def written(directory: Path, **config: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_the_published_model_is_the_one_of_the_sheets() -> None:
    """Bytes of main model and draft layer; 94 MB are the experts of four rows on one of four ranks."""
    ling = model(LING)
    assert ling is not None
    assert ling.experts is not None
    assert (ling.weight_bytes, ling.nextn_bytes) == (2 * 124_414_211_552, 2 * 3_072_194_048)
    assert ling.experts.bytes == 2 * 5_898_240
    assert [round(ling.experts.most_mb(rows, 4), 1) for rows in (1, 4, 6, 9)] == [23.6, 94.4, 141.6, 212.3]
    assert [round(ling.experts.expected_mb(rows, 4), 1) for rows in (4, 6, 9, 17)] == [92.2, 136.1, 199.5, 354.7]
    assert ling.linear_attention
    assert ling.scores == {"few_shot_gsm8k": 0.889}


def test_the_released_draft_has_blocks_of_eight_and_sees_both_ways() -> None:
    draft = model(DRAFT)
    assert draft is not None
    assert (draft.block_size, draft.causal) == (8, False)
    assert model("inclusionAI/Ling-3.0-flash-fp8") != model(LING)
    assert model("somebody/something") is None


def test_a_local_checkpoint_is_read_from_its_own_files(tmp_path: Path) -> None:
    written(tmp_path, model_type="llama", hidden_size=8, num_nextn_predict_layers=0)
    (tmp_path / "a.safetensors").write_bytes(bytes(100))
    (tmp_path / "b.safetensors").write_bytes(bytes(11))
    seen = local(tmp_path)
    assert (seen.weight_bytes, seen.experts, seen.nextn_layers, seen.scores) == (111, None, 0, {})
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 4096}}))
    assert local(tmp_path).weight_bytes == 4096


def test_a_local_copy_of_a_public_model_has_its_scores_and_a_quantised_one_has_not(tmp_path: Path) -> None:
    config = published()[LING]["config"] | {"vocab_size": 157184}
    assert local(written(tmp_path, **config)).scores == {"few_shot_gsm8k": 0.889}
    fp8 = config | {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    seen = local(written(tmp_path, **fp8))
    assert (seen.scores, seen.quant_block) == ({}, (128, 128))
    assert seen.experts is not None
    assert seen.experts.bytes == 5_898_240


def test_the_drafts_of_this_repository_say_their_block() -> None:
    for size in (8, 16):
        draft = model(str(ROOT / f"ling_runtime/checkpoints/ling_tiny_dspark_{size}"))
        assert draft is not None
        assert draft.block_size == size


def test_a_checkpoint_without_draft_layers_cannot_be_drafted_by_nextn(
    found: Callable[..., list[Finding]], tmp_path: Path
) -> None:
    codes = [one.code for one in found("--speculative-algorithm NEXTN", target=str(written(tmp_path, model_type="x")))]
    assert "draft-missing" not in codes
    (tmp_path / "other").mkdir()
    without = written(tmp_path / "other", num_nextn_predict_layers=0)
    codes = [one.code for one in found("--speculative-algorithm NEXTN", target=str(without))]
    assert "draft-missing" in codes


def test_a_target_with_a_draft_in_it_needs_no_path(found: Callable[..., list[Finding]], tmp_path: Path) -> None:
    written(tmp_path, model_type="bailing_hybrid")
    (tmp_path / "dspark").mkdir()
    written(tmp_path / "dspark", block_size=8)
    assert "draft-missing" not in [one.code for one in found("--speculative-algorithm DSPARK", target=str(tmp_path))]


@pytest.mark.parametrize(
    ("text", "count", "capability"),
    [
        *[("B200", None, 10), ("4 x B200", 4, 10), ("8xH200", 8, 9), ("NVIDIA GeForce RTX 5090", None, 12)],
        *[("4 x RTX4090", 4, 8), ("RTX-5090", None, 12), ("2xRTXPRO6000", 2, 12)],
    ],
)
def test_a_declaration_names_a_gpu_and_how_many(text: str, count: int | None, capability: int) -> None:
    gpus = hardware.declared(text)
    assert (gpus.count, gpus.capability, gpus.blackwell) == (count, capability, capability > 9)


@pytest.mark.parametrize("text", ["Voodoo 2", "0 x B200", "00xB200", "-1 x B200", "0.5 x B200"])
def test_a_gpu_that_nobody_knows_or_has_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigError, match=rf"engine\.gpu: '{text}' is not known; allowed, .*B200"):
        hardware.declared(text)


def test_seen_gpus_are_what_nvidia_smi_says() -> None:
    row = {"name": "NVIDIA H100 80GB HBM3", "memory.total": "81559"}
    gpus = hardware.seen([row, row])
    assert gpus is not None
    assert (gpus.count, gpus.blackwell, round(gpus.memory_gib)) == (2, False, 80)
    assert str(gpus) == "2 x NVIDIA H100 80GB HBM3 (seen)"
    assert hardware.seen([]) is None
