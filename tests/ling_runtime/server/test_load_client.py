"""SGLang's load client against the server: its calls replayed, and the compiled client itself where installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from scripted import ScriptedExecutor

PROMPTS = 3
OUTPUT = 12

RUN_CLIENT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_bench", sys.argv[1])
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)
bench.run_argv(sys.argv[1:])
"""


def body_of_the_client(**changes: Any) -> dict[str, Any]:
    """What `--backend sglang` sends with its defaults in 0.5.23."""
    return {
        "text": "How many?",
        "sampling_params": {"temperature": 0.0, "max_new_tokens": OUTPUT, "ignore_eos": True},
        "stream": True,
        "lora_path": None,
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
        **changes,
    }


def test_the_clients_calls_in_order(listening: Any, says: Any) -> None:
    url = listening(ScriptedExecutor(says(" one two three"), window=3))
    with httpx.Client(base_url=url, timeout=20) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
        assert client.get("/model_info").json()["tokenizer_path"]
        client.post("/generate", json=body_of_the_client()).raise_for_status()
        client.post("/flush_cache", params={"timeout": 60.0}).raise_for_status()
        with client.stream("POST", "/generate", json=body_of_the_client()) as response:
            events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert all("completion_tokens" in chunk["meta_info"] for chunk in chunks if chunk["text"])
        assert chunks[-1]["meta_info"]["completion_tokens"] == OUTPUT
        assert chunks[-1]["meta_info"]["spec_accept_length"] > 1
        state = client.get("/server_info").json()["internal_states"][0]
        assert state["avg_spec_accept_length"] > 1


def test_the_other_forms_it_can_send(listening: Any, says: Any) -> None:
    url = listening(ScriptedExecutor(says(" one two three")))
    ids = body_of_the_client(input_ids=[70, 71], stream=False, return_logprob=True, top_logprobs_num=2)
    del ids["text"]
    answer = httpx.post(f"{url}/generate", json=ids).json()
    assert len(answer["meta_info"]["output_top_logprobs"]) == OUTPUT
    completion = {"model": "tiny", "prompt": "x", "best_of": 1, "max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    assert httpx.post(f"{url}/v1/completions", json=completion).status_code == 200
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "x"}],
        "max_completion_tokens": 4,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    assert httpx.post(f"{url}/v1/chat/completions", json=chat).status_code == 200


@pytest.fixture
def client_library() -> Path:
    """SGLang's compiled load client, which needs nothing else of SGLang."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        pytest.skip("sglang is not installed")
    found = sorted(Path(spec.origin).parent.glob("srt/rust_extensions/_bench.*.so"))
    if not found:
        pytest.skip("this sglang has no compiled client")
    return found[0]


@pytest.mark.process
def test_the_compiled_client_measures_the_server(
    listening: Any, says: Any, checkpoint: Path, client_library: Path, tmp_path: Path
) -> None:
    executor = ScriptedExecutor(says(" There are twelve apples, three pears and nine plums."), window=3, step_s=0.002)
    url = listening(executor)
    data = tmp_path / "conversations.json"
    turns = [{"value": "How many apples are there in the basket now?"}, {"value": "There are 12."}]
    data.write_text(json.dumps([{"conversations": turns}] * 8))
    result = tmp_path / "bench.jsonl"
    flags = {
        "--backend": "sglang",
        "--base-url": url,
        "--model": str(checkpoint),
        "--tokenizer": str(checkpoint),
        "--dataset-name": "sharegpt",
        "--dataset-path": str(data),
        "--num-prompts": str(PROMPTS),
        "--sharegpt-output-len": str(OUTPUT),
        "--max-concurrency": "1",
        "--output-file": str(result),
    }
    arguments = [item for pair in flags.items() for item in pair]
    command = [sys.executable, "-c", RUN_CLIENT, str(client_library), *arguments]
    ended = subprocess.run([*command, "--flush-cache"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads(result.read_text().splitlines()[-1])
    assert summary["completed"] == PROMPTS
    assert summary["total_output_tokens"] == PROMPTS * OUTPUT
    assert summary["mean_tpot_ms"] > 0
    assert 1 < summary["accept_length"] <= 3
    assert summary["server_info"]["steps"]["count"] == executor.steps
