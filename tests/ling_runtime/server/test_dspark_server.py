"""The server with a DSpark draft: its flags against the draft, what it reports, and stops inside a window."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from ling_runtime import server
from ling_runtime.arguments import ServerConfig, parse
from ling_runtime.config import ConfigError
from ling_runtime.draft_config import DraftConfig
from ling_runtime.draft_weights import initialise_draft, save_draft
from tests.ling_runtime.executor.oracle import plant

if TYPE_CHECKING:
    from pathlib import Path

    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.tokenizer import Tokenizer

PROMPT = "Question: Tom has 3 apples and buys 4 more. How many apples does Tom have?\nAnswer:"


@pytest.fixture(scope="module")
def draft(shipped: Path, draft_json: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random draft for the shipped model."""
    target = json.loads((shipped / "config.json").read_text())
    shared = {key: target[key] for key in ("hidden_size", "vocab_size", "max_position_embeddings")}
    config = DraftConfig.from_dict(draft_json | shared | {"target_layer_ids": [1, 6, 10], "mask_token_id": 1020})
    path = tmp_path_factory.mktemp("draft")
    save_draft(path, initialise_draft(config), config)
    return path


def parsed(shipped: Path, draft: Path, *flags: str) -> ServerConfig:
    speculation = ("--speculative-algorithm", "DSPARK", "--speculative-draft-model-path", str(draft))
    arguments = ["--model-path", str(shipped), "--context-length", "256", "--port", "0", *speculation, *flags]
    return server.check_model(parse(arguments, {}))


@pytest.fixture
def config(shipped: Path, draft: Path) -> ServerConfig:
    return parsed(shipped, draft)


def ask(url: str, tokens: int = 24, **sampling: Any) -> dict[str, Any]:
    body = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": tokens} | sampling}
    answer: dict[str, Any] = httpx.post(f"{url}/generate", json=body, timeout=60).raise_for_status().json()
    return answer


def test_it_reports_what_it_runs_and_what_that_did(
    config: ServerConfig, draft: Path, listening: Any, shipped_tokenizer: Tokenizer
) -> None:
    url = listening(server.load(config), shipped_tokenizer)
    meta = ask(url)["meta_info"]
    info = httpx.get(f"{url}/server_info").json()
    section = info["speculation"]
    steps = meta["spec_verify_ct"]
    assert meta["spec_num_proposed_drafts"] == 8 * steps
    assert len(meta["spec_correct_drafts_histogram"]) == 9
    assert (info["speculative_dspark_block_size"], info["speculative_num_draft_tokens"]) == (8, 9)
    assert {key: section[key] for key in ("algorithm", "gamma", "window", "verify_mode", "acceptance")} == {
        "algorithm": "DSPARK",
        "gamma": 8,
        "window": 9,
        "verify_mode": "static",
        "acceptance": "classic",
    }
    assert section["draft_path"] == str(draft)
    assert (section["scheduler"], section["sts"], section["cost_table"]) == (None, None, None)
    assert (section["verify_requests"], section["verified_rows"]) == (steps, 9 * steps)
    assert section["committed_tokens"] == steps + meta["spec_num_correct_drafts"]
    assert len(section["accept_by_position"]) == 8
    assert sum(section["accept_by_position"]) == pytest.approx(meta["spec_num_correct_drafts"] / steps)
    calls = {row["operator"]: row["calls"] for row in info["kernels"]}
    assert calls["draft_choice"] == 8 * steps
    httpx.post(f"{url}/flush_cache").raise_for_status()
    assert httpx.get(f"{url}/server_info").json()["speculation"]["verify_requests"] == 0


@pytest.mark.parametrize("at", [3, 12, 13])
def test_a_stop_inside_the_window_ends_the_answer_there(
    config: ServerConfig, listening: Any, shipped_tokenizer: Tokenizer, at: int
) -> None:
    """Every draft is right, so each step brings nine tokens; those behind the stop must not show."""
    plain = server.load(dataclasses.replace(config, speculative_draft_model_path=None, speculative_algorithm=None))
    free = ask(listening(plain, shipped_tokenizer))
    tokens = free["output_ids"]
    stop = tokens[at]
    first = tokens.index(stop)
    executor: StepExecutor = server.load(config)  # type: ignore[assignment]
    plant(executor, {1: shipped_tokenizer.encode(PROMPT) + tokens}, right=8)
    answer = ask(listening(executor, shipped_tokenizer), stop_token_ids=[stop])
    meta = answer["meta_info"]
    assert answer["output_ids"] == tokens[: first + 1]
    assert meta["finish_reason"] == {"type": "stop", "matched": stop}
    assert free["text"].startswith(answer["text"])
    assert meta["spec_verify_ct"] == -(-first // 9)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (
            ("--speculative-dspark-block-size", "9"),
            "--speculative-dspark-block-size 9: .* blocks of 8; allowed: 1 to 8",
        ),
        (("--speculative-num-draft-tokens", "8"), "--speculative-num-draft-tokens 8: .* allowed: 9"),
    ],
)
def test_flags_are_held_against_the_draft(shipped: Path, draft: Path, flags: tuple[str, ...], named: str) -> None:
    assert parsed(shipped, draft, "--speculative-dspark-block-size", "4").speculative_num_draft_tokens == 5
    with pytest.raises(ConfigError, match=named):
        parsed(shipped, draft, *flags)


def test_a_draft_of_another_target_or_nowhere_is_refused(shipped: Path, draft: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft model path .*: no config\.json there"):
        parsed(shipped, tmp_path)
    other = json.loads((draft / "config.json").read_text()) | {"vocab_size": 7}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(ConfigError, match="vocab_size=7"):
        parsed(shipped, tmp_path)
