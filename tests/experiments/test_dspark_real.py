"""The whole way with the real server: an untrained draft on the shipped miniature, whose bytes must not change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from ling_runtime.config import ModelConfig
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import initialise_draft, save_draft
from tests.experiments.driver import ROOT, Run, small, start

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.process

MODEL = ROOT / "ling_runtime/checkpoints/ling_tiny"
STEEP = {"sample_batch_tokens": [1, 2], "sample_steps_per_sec": [100.0, 1.0]}
"""A second row costs so much that it never pays."""


def untrained(directory: Path) -> Path:
    target = ModelConfig.from_pretrained(MODEL)
    config = DraftConfig(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        max_position_embeddings=target.max_position_embeddings,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        block_size=4,
        mask_token_id=1020,
        target_layer_ids=(1, 4),
        markov_rank=16,
    )
    save_draft(directory, initialise_draft(config), config)
    return directory


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    directory = tmp_path_factory.mktemp("real")
    draft = untrained(directory / "draft")
    (directory / "cost.json").write_text(json.dumps(STEEP))
    block = ["speculation=dspark", "speculation.block_size=4", f"speculation.draft_path={draft}"]
    scheduled = ["speculation.verify_mode=compact", f"speculation.cost_table_path={directory / 'cost.json'}"]
    cells = [["speculation=none"], [*block, *scheduled]]
    short = ("gate.parity_prompts=1", "gate.parity_tokens=16", "gate.pollution_requests=1", "workload.num_prompts=1")
    overrides = (*short, "engine.command=[]", "engine.ready_timeout_s=120", f"cells={cells}".replace("'", '"'))
    return start(small(directory, MODEL, *overrides), directory)


def test_a_scheduled_block_gives_the_bytes_of_plain_decoding(run: Run) -> None:
    assert run.code == 0, run.err
    assert [cell["name"] for cell in run.line["cells"]] == ["none", "dspark-4-compact"]
    cell = run.line["cells"][1]
    assert (cell["status"], cell["verdict"]) == ("valid", "inconclusive")
    assert {cell["gates"][gate] for gate in ("byte_parity", "logit_digest", "state_pollution")} == {"pass"}


def test_a_mode_shows_in_the_rows_that_it_verified(run: Run) -> None:
    metrics = run.record(1)["metrics"]
    assert (metrics["verified_rows_per_step"], metrics["committed_per_step"]) == (1.0, 1.0)
    assert metrics["accept_by_position"] == [0.0] * 4
