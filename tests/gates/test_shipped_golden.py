"""The golden record that ships speaks of the weights that ship; `python -m gates record` writes it anew."""

from __future__ import annotations

import json

import pytest
from builds import CHECKPOINT, NEXTN

from experiments.spec import GateSpec, ModelSpec
from gates import golden
from gates.__main__ import main

FILE = golden.DIRECTORY / "ling_tiny.json"


@pytest.fixture(scope="module")
def shipped():
    return golden.read(FILE)


def check(capsys, *overrides) -> dict:
    main(["check", *overrides])
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_it_is_of_the_shipped_weights_as_run_py_serves_them(shipped):
    assert shipped.revision == golden.revision_of(ModelSpec(name="ling_tiny", path=str(CHECKPOINT)))
    assert (shipped.speculation, shipped.kernels, shipped.env) == (NEXTN, {}, {})
    assert (shipped.engine.name, shipped.engine.dtype, shipped.engine.device) == ("ling", "float32", "cpu")


def test_it_asks_as_much_as_the_gates_do_and_stays_small(shipped):
    probe = shipped.evidence.probe
    assert sum(not prompt.canary for prompt in probe.prompts) >= GateSpec().parity_prompts
    assert sum(prompt.canary for prompt in probe.prompts) == 2
    assert probe.max_new_tokens >= GateSpec().parity_tokens
    assert FILE.stat().st_size < 300_000
    assert str(CHECKPOINT) not in FILE.read_text()


@pytest.mark.process
def test_the_shipped_weights_give_it_again(capsys):
    """Exactly on the hardware class it was recorded on, and within near-ties on any other."""
    line = check(capsys)
    assert (line["verdict"], line["exit"]) == ("inconclusive", 0)
    gates = line["gates"]
    bound = "byte_parity" if gates["byte_parity"]["required"] else "lossless"
    assert (gates[bound]["status"], gates[bound]["required"]) == ("pass", True)
    assert (gates["accept_drift"]["status"], gates["accept_drift"]["required"]) == ("pass", True)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    "speculation",
    [
        "speculation=none",
        "speculation.num_steps=5",
        "speculation=dspark",
        "speculation=dspark speculation.block_size=16",
        "speculation=dspark speculation.verify_mode=compact",
    ],
)
def test_any_speculation_gives_it(capsys, speculation):
    line = check(capsys, *speculation.split())
    assert (line["exit"], line["gates"]["accept_drift"]["reason"]) == (0, "a speculation change")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("setting", [("MKL_CBWR", "COMPATIBLE"), ("ATEN_CPU_CAPABILITY", "default")])
def test_other_arithmetic_is_no_alarm(capsys, monkeypatch, setting):
    """The whole machine under another setting of its library: what another processor looks like from here."""
    monkeypatch.setenv(*setting)
    line = check(capsys)
    assert (line["verdict"], line["exit"]) == ("inconclusive", 0)
    assert (line["gates"]["logit_digest"]["status"], line["gates"]["logit_digest"]["required"]) == ("fail", False)
    assert (line["gates"]["lossless"]["status"], line["gates"]["lossless"]["required"]) == ("pass", True)
