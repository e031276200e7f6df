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

SERVER = Path(__file__).parents[1] / "fakes" / "server.py"
NEXTN = (
    *("--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3"),
    *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
)


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    """Starts fake engines; gives their addresses."""
    children = []
    model = str(tmp_path_factory.mktemp("model"))

    def serve(*flags: str) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        names = ("--model-path", model, "--served-model-name", "fake", "--step-ms", "0")
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
def record(serve, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("golden") / "golden.json"
    assert main(["record", "--url", serve(), "--out", str(path), "--prompts", "3", "--tokens", "64"]) == 0
    return path


def last_line(capsys) -> dict:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_same_engine_passes_its_own_record(record, serve, capsys):
    assert main(["check", str(record), "--url", serve()]) == 0
    line = last_line(capsys)
    assert (line["status"], line["verdict"], line["exit"]) == ("valid", "inconclusive", 0)
    assert line["gates"]["byte_parity"]["status"] == line["gates"]["state_pollution"]["status"] == "pass"


def test_speculation_passes_the_record_of_none_on_our_engine(record, serve, capsys):
    flags = ("--change", "speculation", "--engine", "ling")
    assert main(["check", str(record), "--url", serve(*NEXTN), *flags]) == 0
    assert last_line(capsys)["gates"]["logit_digest"]["status"] == "pass"


def test_speculation_called_the_same_has_drifted(record, serve, capsys):
    assert main(["check", str(record), "--url", serve(*NEXTN)]) == 1
    assert last_line(capsys)["rule"] == "gate:accept_drift"


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
    assert main(["check", str(record), "--url", serve("--fault", fault)]) == code
    assert last_line(capsys)["rule"] == rule


def test_speculation_without_counts_is_invalid(record, serve, capsys):
    assert main(["check", str(record), "--url", serve(*NEXTN, "--fault", "no_verify_counts")]) == 3
    assert "speculation without verify counts" in last_line(capsys)["reason"]


def test_a_polluting_engine_gets_no_record(serve, tmp_path):
    path = tmp_path / "golden.json"
    assert main(["record", "--url", serve("--fault", "pollute"), "--out", str(path), "--tokens", "64"]) == 1
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["{", '{"schema": 1}', '{"schema": 1, "evidence": {}}', '{"schema": 1, "evidence": 3}']
)
def test_a_file_that_is_no_record_is_a_configuration_error(tmp_path, text, capsys):
    path = tmp_path / "golden.json"
    path.write_text(text)
    assert main(["check", str(path), "--url", "http://127.0.0.1:9"]) == 2
    assert "golden.json" in capsys.readouterr().err
    with pytest.raises(golden.GoldenError):
        golden.read(tmp_path / "absent.json")
