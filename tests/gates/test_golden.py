"""A golden record taken from a real process and held against others, through the command line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.clients.generate import GenerateClient, ProtocolError
from gates import golden
from gates.__main__ import main
from tests.fakes.checkpoint import write_checkpoint

SERVER = Path(__file__).parents[1] / "fakes" / "server.py"
NEXTN = (
    *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)
SMALL = ("gate.parity_prompts=3", "gate.parity_tokens=64")

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def serve(checkpoint):
    """Starts fake engines; gives their addresses."""
    children = []

    def serve(*flags: str, model: Path = checkpoint) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        names = ("--model-path", str(model), "--served-model-name", "fake", "--step-ms", "0")
        command = [sys.executable, str(SERVER), "--port", str(port), *names, *flags]
        children.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        url = f"http://127.0.0.1:{port}"
        wait_for(url)
        return url

    yield serve
    for child in children:
        child.terminate()
        child.wait()


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            with GenerateClient(url) as client:
                return client.health()
        except ProtocolError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture(scope="module")
def record(serve, tmp_path_factory) -> str:
    """The override that names a record of the fake engine without speculation."""
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    assert main(["record", "--url", serve(), "--out", str(path), *SMALL]) == 0
    return f"gate.golden={path}"


def last_line(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_same_engine_passes_its_own_record(record, serve, capsys):
    assert main(["check", record, "--url", serve()]) == 0
    line = last_line(capsys)
    assert (line["status"], line["verdict"], line["exit"]) == ("valid", "inconclusive", 0)
    assert line["gates"]["byte_parity"]["status"] == line["gates"]["state_pollution"]["status"] == "pass"


@pytest.mark.parametrize(("engine", "exact"), [("ling", "byte_parity"), ("attach", "lossless")])
def test_speculation_is_seen_and_passes_the_record_of_none(record, serve, capsys, engine, exact):
    assert main(["check", record, "--url", serve(*NEXTN), "--engine", engine]) == 0
    gates = last_line(capsys)["gates"]
    assert gates["accept_drift"]["reason"] == "a speculation change"
    assert {name for name in ("byte_parity", "lossless") if gates[name]["required"]} == {exact}
    assert gates[exact]["status"] == "pass"


@pytest.mark.parametrize(
    ("fault", "code", "rule"),
    [
        ("other_tokens", 1, "gate:byte_parity"),
        ("pollute", 1, "gate:state_pollution"),
        ("errors", 3, "gate_not_run"),
        ("zero_tokens", 3, "gate_not_run"),
    ],
)
def test_a_bad_engine_is_caught(record, serve, capsys, fault, code, rule):
    assert main(["check", record, "--url", serve("--fault", fault)]) == code
    assert last_line(capsys)["rule"] == rule


def test_speculation_without_counts_is_invalid(serve, tmp_path, capsys):
    path = tmp_path / "golden.json"
    assert main(["record", "--url", serve(*NEXTN), "--out", str(path), *SMALL]) == 0
    assert main(["check", f"gate.golden={path}", "--url", serve(*NEXTN, "--fault", "no_verify_counts")]) == 3
    assert "speculation without verify counts" in last_line(capsys)["reason"]


def test_a_polluting_engine_gets_no_record(serve, tmp_path):
    path = tmp_path / "golden.json"
    assert main(["record", "--url", serve("--fault", "pollute"), "--out", str(path), *SMALL]) == 1
    assert not path.exists()


def test_a_record_of_other_weights_is_refused(record, serve, checkpoint, tmp_path, capsys):
    other = write_checkpoint(tmp_path / "other")
    (other / "model.safetensors").write_bytes(b"other weights")
    assert main(["check", record, "--url", serve(model=other)]) == 2
    ours, theirs = (golden.model_revision(path) for path in (checkpoint, other))
    assert f"is of other weights: {ours}, not {theirs}" in last_line(capsys)["reason"]


@pytest.mark.parametrize(
    "text", ["{", '{"schema": 2}', '{"schema": 1, "evidence": {}}', '{"schema": 2, "evidence": 3}', "[]"]
)
def test_a_file_that_is_no_record_is_a_configuration_error(tmp_path, text, capsys):
    path = tmp_path / "golden.json"
    path.write_text(text)
    assert main(["check", f"gate.golden={path}"]) == 2
    assert "golden.json" in last_line(capsys)["reason"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("gate.parity_prompt=3", "parity_prompt"),
        ("gate.golden=absent.json", "absent.json does not exist"),
        ("experiment=quickstart", "several cells"),
        ("speculation.num_steps=0", "num_steps"),
    ],
)
def test_a_wrong_override_is_a_configuration_error(override, words, capsys):
    assert main(["check", override]) == 2
    assert words in last_line(capsys)["reason"]


def test_drawn_weights_are_neither_recorded_nor_checked(tmp_path, capsys):
    path = tmp_path / "golden.json"
    assert main(["record", "model.weights=drawn", "--out", str(path)]) == 2
    assert "model.weights: a golden record is of trained weights" in last_line(capsys)["reason"]
    assert not path.exists()
    assert main(["check", "model.weights=drawn"]) == 2
    assert "this model's are drawn" in last_line(capsys)["reason"]


@pytest.mark.parametrize(("out", "words"), [("/proc/x/golden.json", "no record can be written"), (".", "a directory")])
def test_a_place_that_takes_no_record_is_found_before_anything_is_asked(serve, out, words, capsys):
    assert main(["record", "--url", serve("--fault", "errors"), "--out", out, *SMALL]) == 2
    assert words in last_line(capsys)["reason"]


def test_overrides_may_stand_on_both_sides_of_an_option(record, serve, capsys):
    assert main(["check", "gate.pollution_requests=2", "--url", serve(), record]) == 0
    with pytest.raises(SystemExit, match="2"):
        main(["check", "--urll", "http://127.0.0.1:1", record])
    with pytest.raises(SystemExit, match="2"):
        main(["check", "--url", "127.0.0.1:1", record])
    assert "does not begin with http" in capsys.readouterr().err


def test_a_fault_of_the_program_does_not_end_with_the_code_of_a_reject(record, serve, monkeypatch, capsys):
    monkeypatch.setattr("gates.__main__.against", lambda *_, **__: 1 / 0)
    assert main(["check", record, "--url", serve()]) == 3
    assert "a fault of this program: ZeroDivisionError" in last_line(capsys)["reason"]


def test_a_server_is_launched_for_a_spec_and_for_nothing_else(checkpoint, tmp_path, capsys):
    def fake(*fault: str) -> str:
        return f"engine.command=[{','.join([sys.executable, str(SERVER), *fault])}]"

    path = tmp_path / "golden.json"
    spec = (f"model.path={checkpoint}", *SMALL)
    assert main(["record", *spec, fake(), "--out", str(path)]) == 0
    taken = golden.read(path)
    assert (taken.speculation.algorithm, taken.engine.command) == ("nextn", ())
    assert str(checkpoint) not in path.read_text()
    assert main(["check", *spec, fake("--fault", "other_tokens"), f"gate.golden={path}"]) == 1
    capsys.readouterr()
    assert main(["check", *spec, fake("--fault", "die_at_start"), f"gate.golden={path}"]) == 3
    assert "dies at start" in last_line(capsys)["reason"]
