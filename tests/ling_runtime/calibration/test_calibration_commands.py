"""Collect, fit and profile: on a small executor by their functions, and once as commands on the shipped target."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from ling_runtime.arguments import kernels_of, parse
from ling_runtime.calibration import __main__ as command
from ling_runtime.calibration import profile as profiling
from ling_runtime.calibration import samples as filed
from ling_runtime.calibration.collect import collect
from ling_runtime.calibration.fit import fitted
from ling_runtime.calibration.profile import Batch, probed_rows, profile, rising, table
from ling_runtime.calibration.samples import Samples
from ling_runtime.calibration.session import Checkpoints
from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import initialise_draft, save_draft
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.server import device_variants
from ling_runtime.speculation.dspark.artifact import load_cost, load_temperatures
from ling_runtime.speculation.dspark.identity import Identity, identity_of
from tests.ling_runtime.executor.driving import prompt_of
from tests.ling_runtime.executor.oracle import plant

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor
    from tests.ling_runtime.conftest import WriteDraft

TINY = Path(__file__).parents[3] / "ling_runtime/checkpoints/ling_tiny"
IDENTITY = Identity(target="t", draft="d", gamma=4, hardware="h", kernels={})


@pytest.fixture
def executor(small_config: ModelConfig, small_tensors: dict[str, Tensor], write_draft: WriteDraft) -> StepExecutor:
    draft = DraftSettings(path=write_draft(), block_size=4, confidence=True)
    settings = ExecutorSettings(draft=draft, max_requests=2, context_length=200)
    return build_executor(small_config, small_tensors, settings)


def test_every_step_is_noted_with_its_outcome(executor: StepExecutor) -> None:
    """More prompts than slots; drafts are made right up to a known depth for the requests that start first."""
    prompts = [prompt_of(i, 10 + i) for i in range(3)]
    found = collect(executor, prompts, 12)
    assert found.raw.shape == found.correct.shape == (len(found.request), 4)
    assert sorted(set(found.request.tolist())) == [0, 1, 2]
    assert (found.correct[:, 1:] <= found.correct[:, :-1]).all(), "a prefix mask falls"
    assert found.raw.std() > 0
    committed = [int((1 + found.correct.sum(1))[found.request == i].sum()) for i in range(3)]
    assert all(12 <= tokens < 12 + 5 for tokens in committed)
    assert executor.occupancy().free_slots == 2


def test_outcomes_are_those_of_the_drafts(executor: StepExecutor) -> None:
    plant(executor, {1: [*prompt_of(1, 9), *([0] * 60)], 2: [0] * 80}, right=0)
    assert int(collect(executor, [prompt_of(1, 9)], 6).correct.sum()) == 0


def planted(requests: int = 60, steps: int = 50) -> Samples:
    noise = torch.Generator().manual_seed(1)
    raw = 2.0 + 2.0 * torch.randn(requests * steps, 4, generator=noise)
    right = torch.rand(raw.shape, generator=noise) < torch.sigmoid(raw / 2.5)
    request = torch.arange(requests).repeat_interleave(steps)
    return Samples(raw=raw, correct=right.long().cumprod(1), request=request)


def test_half_of_the_requests_judge_what_the_others_fitted() -> None:
    samples = planted()
    content = fitted(samples, "planted")
    assert np.mean(content["ece_after"]) < 0.5 * np.mean(content["ece_before"])
    assert np.mean(content["conditional_ece_after"]) < 0.5 * np.mean(content["conditional_ece_before"])
    assert content["num_samples"] == content["held_out_samples"] == 1500
    assert sum(row["count"] for row in content["reliability_after"][3]) == 1500
    odd = samples.request % 2 == 1
    spoilt = Samples(raw=samples.raw, correct=torch.where(odd[:, None], 0, samples.correct), request=samples.request)
    assert fitted(spoilt, "")["temperatures"] == content["temperatures"], "the other half has no say"
    with pytest.raises(ConfigError, match="two requests"):
        fitted(samples.of_requests(samples.request == 0), "")


def test_samples_are_read_as_written_and_sglangs_too(tmp_path: Path) -> None:
    samples = planted(4, 5)
    filed.write(tmp_path / "a.pt", samples, IDENTITY, "planted")
    torch.save({"logits": samples.raw, "prefix_mask": samples.correct}, tmp_path / "stem.0.pt")
    both, name = filed.read([tmp_path / "a.pt", tmp_path / "stem.0.pt"], IDENTITY)
    assert torch.equal(both.raw, torch.cat([samples.raw, samples.raw]))
    assert both.request.tolist() == [*samples.request.tolist(), *range(4, 24)], "steps without a request stand alone"
    assert name == "planted, stem.0.pt"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"draft": "e"}, "made with draft 'd'"),
        ({"target": "s"}, "made with target 't'"),
        ({"gamma": 3}, "expected rows of 3"),
    ],
)
def test_samples_of_something_else_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    filed.write(tmp_path / "a.pt", planted(4, 5), IDENTITY, "planted")
    with pytest.raises(ConfigError, match=named):
        filed.read([tmp_path / "a.pt"], Identity(**(vars(IDENTITY) | change)))
    (tmp_path / "a.pt").write_bytes(b"half")
    with pytest.raises(ConfigError, match="no file that torch has saved"):
        filed.read([tmp_path / "a.pt"], IDENTITY)
    torch.save({"logits": [1.0], "prefix_mask": [1]}, tmp_path / "a.pt")
    with pytest.raises(ConfigError, match="the tensors logits and prefix_mask"):
        filed.read([tmp_path / "a.pt"], IDENTITY)


def test_a_profile_really_runs_its_cells(executor: StepExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "NEW_TOKENS", 30)
    prompts = [prompt_of(1, 9), prompt_of(2, 14)]
    batch = Batch(executor, prompts)
    for cell in ((1, 3), (2, 10), (2, 5), (2, 2), (1, 5)):
        executor.reset_counters()
        assert len(batch.visit(cell, steps=2)) == 2
        counted = executor.speculation_report()
        assert counted is not None
        assert counted["verified_rows"] == 3 * cell[1], "two steps and the one before them"
    for slot in batch._slots:
        executor.release(slot)
    seconds = profile(executor, prompts, [1, 2], rounds=2, steps=1)
    assert list(seconds) == [(1, 1), (1, 2), (1, 4), (1, 5), (2, 2), (2, 4), (2, 8), (2, 10)]
    assert min(seconds.values()) > 0


def test_a_table_that_is_additive_is_found_again() -> None:
    def truth(count: int, rows: int) -> float:
        return 0.004 + 0.0005 * count + 0.0001 * rows + 0.001 * (rows > 16)

    cells = {(count, rows): truth(count, rows) for count in (1, 2, 4, 8) for rows in probed_rows(count, 9)}
    cost = table(cells)
    for cell, seconds in cells.items():
        assert cost.step_time(*cell) == pytest.approx(seconds, rel=1e-9)
    noise = np.random.default_rng(0)
    shaken = table({cell: seconds * noise.normal(1, 0.05) for cell, seconds in cells.items()})
    assert list(shaken.theta.values) == sorted(shaken.theta.values)
    assert all(shaken.step_time(*cell) == pytest.approx(truth(*cell), rel=0.1) for cell in ((1, 1), (4, 20), (8, 72)))


def test_rising_averages_what_falls() -> None:
    assert rising(np.array([1.0, 3.0, 2.0, 5.0]), np.ones(4)).tolist() == [1.0, 2.5, 2.5, 5.0]
    assert rising(np.array([3.0, 2.0, 1.0]), np.array([1.0, 1.0, 2.0])).tolist() == [1.75] * 3


def test_rows_are_probed_from_one_each_to_the_window_and_at_the_edges_of_tiles() -> None:
    assert probed_rows(1, 9) == [1, 2, 4, 8, 9]
    assert probed_rows(4, 9) == [4, 8, 16, 17, 32, 33, 36]
    assert probed_rows(8, 3) == [8, 16, 17, 24]


CHOSEN = ("--kernel", "moe_align=pair_axis")

# As commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained draft for the shipped target."""
    raw = json.loads((TINY / "config.json").read_text())
    shape = {key: raw[key] for key in ("hidden_size", "vocab_size", "max_position_embeddings", "rms_norm_eps")}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    own = {"intermediate_size": 64, "rope_theta": 10000.0, "block_size": 2, "mask_token_id": 1020, "markov_rank": 8}
    config = DraftConfig(**shape, **heads, **own, target_layer_ids=(1, 3))
    path = tmp_path_factory.mktemp("draft")
    save_draft(path, initialise_draft(config, seed=1), config)
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, part: str, draft: str, *arguments: object) -> int:
    given = ["--model-path", str(TINY), "--speculative-draft-model-path", draft, "--num-threads", "1"]
    monkeypatch.setattr(sys, "argv", ["calibration", part, *given, *map(str, arguments)])
    return command.main()


def test_the_three_commands_make_what_the_server_takes(
    draft: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, samples = tmp_path / "prompts.jsonl", tmp_path / "samples.pt"
    sts, cost = tmp_path / "sts.json", tmp_path / "cost_table.json"
    prompts.write_text("".join(json.dumps({"text": f"Question: {n}"}) + "\n" for n in range(4)))
    collected = ("--prompts", prompts, "--max-new-tokens", 8, "--out", samples)
    assert run(monkeypatch, "collect", draft, *collected) == 0
    assert run(monkeypatch, "fit", draft, "--samples", samples, "--out", sts) == 0
    profiled = ("--requests", 1, 2, "--rounds", 1, "--steps", 1, "--prompt-tokens", 16, "--out", cost, *CHOSEN)
    assert run(monkeypatch, "profile", draft, *profiled) == 0
    shown = capsys.readouterr().out
    assert "accept length" in shown
    assert "ECE before" in shown
    assert "measured ms" in shown
    chosen = {"moe_align": "pair_axis"}
    here = identity_of(TINY, draft, 2, device="cpu", dtype="float32", kernels=chosen, threads=1)
    assert len(load_temperatures(str(sts), here, allow_fallback=False).value) == 2
    assert not load_cost(str(cost), here, allow_fallback=False).value.flat
    assert run(monkeypatch, "fit", draft, "--samples", prompts, "--out", sts) == 2
    assert "no file that torch has saved" in capsys.readouterr().err
    assert run(monkeypatch, "profile", draft, "--kernel", "moe_align", "--out", cost) == 2
    assert "--kernel moe_align: expected OP=VARIANT" in capsys.readouterr().err
    assert run(monkeypatch, "profile", draft, "--kernel", "moe_align=none", "--out", cost) == 2
    assert "kernels.moe_align=none: unknown variant; allowed: reference, pair_axis" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [(), CHOSEN, ("--kernel", "linear=triton", "moe=triton")], ids=" ".join)
def test_on_a_card_what_is_measured_is_what_the_server_would_run(
    write_draft: WriteDraft, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    draft = write_draft()
    asked = kernels_of(flags[1:])
    one = Checkpoints(target="t", draft=draft, block_size=4, device="cuda", dtype="bfloat16", kernels=asked)
    block = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", draft)
    server = device_variants(parse(["--model-path", "t", "--device", "cuda", *block, *flags]))
    assert one.selection() == server
    assert asked.items() <= server.items()
    assert server["draft_block"] == "triton"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--temperature", "-1", "--out", "samples.pt"), "--temperature: -1: must be a number of at least 0"),
        (("--temperature", "nan", "--out", "samples.pt"), "--temperature: nan"),
        (("--out", "."), "--out: .: is a directory"),
    ],
)
def test_what_cannot_be_is_refused_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], named: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "collect", "draft", *arguments)
    assert named in capsys.readouterr().err
