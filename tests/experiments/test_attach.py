"""engine=attach: servers that somebody else runs, measured as they are and left as they were."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from experiments import activation, workloads
from experiments.checks import checked
from experiments.clients.bench_serving import command
from experiments.clients.generate import GenerateClient, ProtocolError
from experiments.comparison.arms import Arms
from experiments.comparison.requests import requests
from experiments.errors import ConfigError
from experiments.machine import Cores
from experiments.ports import free_port
from experiments.spec import EngineSpec, ModelSpec, SpeculationSpec
from tests.experiments.driver import FAKE_ENGINE, ROOT, Run, driver_env

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from analysis.pairs import Arm
    from experiments.spec import CellSpec

pytestmark = pytest.mark.process

KEY = "sk-planted-7f3a"
CHAIN = ("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4")
SMALL = (
    *("workload.num_prompts=2", "workload.output_len=16", "workload.warmup_prompts=1", "workload.num_shots=1"),
    *("gate.parity_prompts=2", "gate.parity_tokens=16", "gate.pollution_requests=2", "tracking=none"),
    *("task=gsm8k", "task.num_questions=3", "task.num_shots=1"),
)


@contextmanager
def somebody_s(program: tuple[str, ...], model: Path, *flags: str) -> Iterator[str]:
    """The URL of a server that this program did not start."""
    port = free_port()
    line = [*program, "--model-path", str(model), "--port", str(port), "--served-model-name", "theirs", *flags]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            until_up(url, process)
            yield url
            assert process.poll() is None, "it was not ours to stop"
        finally:
            process.terminate()


def until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    with GenerateClient(url, 5.0) as client:
        while True:
            try:
                client.health()
            except ProtocolError as error:
                if "401" in str(error):
                    return
            else:
                return
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Iterator[str]:
    with somebody_s((sys.executable, str(FAKE_ENGINE)), checkpoint) as url:
        yield url


@pytest.fixture(scope="module")
def chain(checkpoint: Path) -> Iterator[str]:
    with somebody_s((sys.executable, str(FAKE_ENGINE)), checkpoint, *CHAIN) as url:
        yield url


def attach(directory: Path, *overrides: str, **env: str) -> Run:
    command = [
        *(sys.executable, str(ROOT / "run.py"), "engine=attach", *SMALL),
        *(f"output_dir={directory / 'out'}", f"machine.lock={directory / 'lock'}", *overrides),
    ]
    done = subprocess.run(command, env=driver_env(**env), cwd=directory, capture_output=True, text=True, timeout=200)
    return Run(done.returncode, done.stdout, done.stderr, directory)


def test_our_own_runtime_is_measured_by_its_url_alone_and_goes_on_running(tmp_path: Path) -> None:
    model = ROOT / "ling_runtime/checkpoints/ling_tiny"
    with somebody_s((sys.executable, "-m", "ling_runtime.server", "--num-threads", "1"), model, *CHAIN) as url:
        less = ("model.name=theirs", "task.num_questions=2", "task.max_new_tokens=48")  # no golden record of that name
        shown = attach(tmp_path, f"engine.url={url}", *less)
        assert shown.code == 0, shown.out + shown.err
        with GenerateClient(url) as client:
            assert client.generate(text="1 + 1 =", max_new_tokens=4).completion_tokens
    record = shown.record()
    assert record["name"] == "nextn-3-4", "what speculates is the server's to say"
    assert record["status"] == "valid"
    assert 1 < record["metrics"]["accept_length"] <= 4
    assert record["task"]["questions"] == 2
    assert record["gates"]["state_pollution"]["status"] == "pass"
    assert record["activation"]["ok"]
    assert record["activation"]["observed"]["speculation.window"] == 4
    assert "the server was not launched here; its cache was flushed before the load and by the gates" in record["flags"]
    lines = (tmp_path / "out/single/nextn-3-4/attempt-1/command.txt").read_text().splitlines()
    assert lines[0] == f"# {url} runs already"


def test_urls_are_an_axis_with_gates_and_the_baseline_is_asked_again(plain: str, chain: str, tmp_path: Path) -> None:
    """On a stranger speculation is held to the near-tie rule, for which the baseline has to score the answers."""
    shown = attach(tmp_path, f"engine.url={plain},{chain}", "-m")
    assert shown.code == 0, shown.out + shown.err
    baseline, candidate = shown.record(0), shown.record(1)
    assert baseline["verdict"] == "baseline"
    assert "HTTP Request" not in shown.err, "every call of every client"
    assert candidate["change"]["class"] == "speculation"
    assert candidate["gates"]["lossless"]["status"] == "pass"
    assert candidate["gates"]["lossless"]["required"]
    assert [*candidate["axes"]] == ["engine.url", *[key for key in candidate["axes"] if key.startswith("speculation.")]]


def test_another_server_that_answers_otherwise_is_rejected(plain: str, checkpoint: Path, tmp_path: Path) -> None:
    line = (sys.executable, str(FAKE_ENGINE), "--fault", "other_tokens")
    with somebody_s(line, checkpoint) as worse:
        shown = attach(tmp_path, f"engine.url={plain},{worse}", "gate.parity_tokens=64", "-m")
    assert shown.code == 1, shown.out + shown.err
    assert shown.record(1)["change"]["class"] == "same"
    assert shown.record(1)["gates"]["byte_parity"]["status"] == "fail"


def test_a_key_goes_with_every_call_and_into_no_file(checkpoint: Path, tmp_path: Path) -> None:
    with somebody_s((sys.executable, str(FAKE_ENGINE)), checkpoint, "--api-key", KEY) as url:
        shown = attach(tmp_path, f"engine.url={url}", "engine.api_key_env=THEIR_KEY", THEIR_KEY=KEY)
    assert shown.code == 0, shown.out + shown.err
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path for path in files if KEY in path.read_text()] == []
    assert KEY not in shown.out + shown.err
    attempt = tmp_path / "out/single/none/attempt-1"
    assert "***" in (attempt / "bench.jsonl").read_text(), "the server says its key itself"
    assert 'OPENAI_API_KEY="${THEIR_KEY}"' in (attempt / "command.txt").read_text()


@pytest.fixture
def attached(make_cell: Callable[..., CellSpec], chain: str) -> Callable[..., CellSpec]:
    """A cell as engine=attach composes it; keywords go to its engine, groups are replaced."""

    def make(groups: dict[str, Any] | None = None, **engine: Any) -> CellSpec:
        cell = make_cell(
            engine=EngineSpec(**{"name": "attach", "url": chain, **engine}),
            model=ModelSpec(name="served", path="served"),
            speculation=SpeculationSpec(algorithm="served"),
        )
        return replace(cell, **(groups or {}))

    return make


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"url": None}, r"engine\.url: None is no address"),
        ({"url": "127.0.0.1:1"}, r"engine\.url: '127\.0\.0\.1:1' is no address of a server; expected http"),
        ({"url": "http://127.0.0.1:9"}, r"engine\.url: http://127\.0\.0\.1:9 does not answer as SGLang's server does"),
        (
            {"url": f"http://me:{KEY}@h:1"},
            r"engine\.url: holds more than an address; a key is given by engine\.api_key",
        ),
        ({"num_threads": 2}, r"engine\.num_threads: the server runs already; allowed: engine\.url"),
        ({"command": ("x",)}, r"engine\.command: the server runs already"),
        ({"extra_args": ("--x",)}, r"engine\.extra_args: the server runs already"),
        ({"dtype": "bfloat16"}, r"engine\.dtype: the server runs already"),
        ({"flags": {"page-size": "1"}}, r"engine\.flags: engine=attach has no use for it; allowed: url, api_key_env"),
        ({"reported": {"a": "b"}}, r"engine\.reported: the server runs already"),
        ({"api_key_env": f"{KEY}-"}, r"engine\.api_key_env: is no name of an environment variable, and not repeated"),
        ({"api_key_env": "NO_SUCH_KEY"}, r"engine\.api_key_env: the environment has no NO_SUCH_KEY"),
    ],
)
def test_what_cannot_be_done_to_a_running_server_is_refused(
    attached: Callable[..., CellSpec], engine: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        checked(attached(**engine))
    assert KEY not in str(refusal.value)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"env": {"A": "1"}}, r"env\.A: a server that runs already cannot be given any"),
        ({"kernels": {"lm_head": "bf16"}}, r"kernels\.lm_head: a server that runs already cannot be given any"),
        (
            {"speculation": SpeculationSpec()},
            r"speculation: the server runs nextn-3-4; allowed: that, or speculation=s",
        ),
        ({"model": ModelSpec(name="x", path="/their/model")}, r"model\.path: the server serves .*; allowed: that, or"),
    ],
)
def test_a_server_is_what_it_is(attached: Callable[..., CellSpec], groups: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(attached(groups))


def test_who_names_what_the_server_runs_may(attached: Callable[..., CellSpec], checkpoint: Path, chain: str) -> None:
    asked = SpeculationSpec(algorithm="nextn", num_steps=3)
    cell = checked(attached({"speculation": asked, "model": ModelSpec(name="mine", path=str(checkpoint))}))
    assert (cell.model.name, cell.model.path) == ("mine", str(checkpoint))
    assert cell.speculation == SpeculationSpec(algorithm="nextn", num_steps=3, num_draft_tokens=4)
    assert cell.engine.reported["model_path"] == str(checkpoint)
    assert (cell.engine.url, cell.engine.num_threads) == (chain, None)


def test_a_key_of_yours_is_not_sent_to_somebody_else(
    attached: Callable[..., CellSpec], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    sent = command(checked(attached()), url="http://u", dataset=tmp_path / "d", served_name="n").full_env()
    assert (sent["OPENAI_API_KEY"], sent["API_KEY"]) == ("", "")
    monkeypatch.setenv("THEIRS", "another")
    theirs = command(checked(attached(api_key_env="THEIRS")), url="http://u", dataset=tmp_path / "d", served_name="n")
    assert (theirs.full_env()["OPENAI_API_KEY"], theirs.full_env()["API_KEY"]) == ("another", "")
    assert "another" not in theirs.shell()


def test_a_server_that_wants_a_key_is_no_answer(attached: Callable[..., CellSpec], checkpoint: Path) -> None:
    refused = pytest.raises(ConfigError, match=r"engine\.url: .* HTTP 401")
    with somebody_s((sys.executable, str(FAKE_ENGINE)), checkpoint, "--api-key", KEY) as url, refused:
        checked(attached(url=url))


def test_one_server_is_not_two_arms(chain: str, tmp_path: Path) -> None:
    shown = attach(tmp_path, f"engine.url={chain}", "mode=ab", "ab.prompts=2")
    assert shown.code == 2
    assert f"engine.url: both arms are {chain}" in shown.line["error"]


def test_arms_at_two_urls_are_both_there_and_nothing_is_launched(
    attached: Callable[..., CellSpec], checkpoint: Path, chain: str, tmp_path: Path
) -> None:
    said: list[str] = []
    with somebody_s((sys.executable, str(FAKE_ENGINE)), checkpoint, *CHAIN) as other:
        specs: dict[Arm, CellSpec] = {"baseline": checked(attached()), "candidate": checked(attached(url=other))}
        data = workloads.prepare(specs["baseline"], tmp_path / "data")
        asked = requests(specs["baseline"], data.dataset)[:1]
        with Arms(specs, data, directory=tmp_path, cores=Cores(), servers="auto", say=said.append) as arms:
            answers = [arms.slot(arm, 0, asked)[0] for arm in specs]
    assert (arms.room, arms.together) == (None, True)
    assert [answer.tokens for answer in answers] == [16, 16]
    assert [seen.faults for seen in arms.activation.values()] == [(), ()]
    assert arms.commands == {"baseline": f"# {chain} runs already", "candidate": f"# {other} runs already"}
    assert said == ["both servers alive: not launched here"]


def test_a_server_that_has_changed_since_is_not_the_cell_s(attached: Callable[..., CellSpec], chain: str) -> None:
    cell = checked(attached())
    with GenerateClient(chain) as client:
        info = client.server_info()
    assert activation.prove(cell, info, "").faults == ()
    changed = activation.prove(cell, info | {"max_running_requests": 3}, "").to_json()
    assert not changed["ok"]
    assert "engine.arguments=" in changed["reason"]
    assert activation.prove(cell, info | {"speculative_algorithm": None}, "").faults
    assert json.dumps(changed)
