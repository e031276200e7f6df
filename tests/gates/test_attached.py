"""What a server says of itself becomes a cell; what it cannot say is not assumed."""

from __future__ import annotations

import pytest
from fabricate import cell

from experiments.clients.generate import ProtocolError
from experiments.spec import SpeculationSpec
from gates.attached import described, hardware
from gates.hardware import UNKNOWN


class Server:
    """Answers two questions."""

    def __init__(self, **info):
        self.info = {"dtype": "bfloat16", "device": "cuda"} | info

    def server_info(self):
        return self.info

    def model_info(self):
        return {"model_path": "models/ling-flash", "tokenizer_path": "models/ling-flash"}


def speculating(algorithm):
    return Server(speculative_algorithm=algorithm, speculative_num_steps=3, speculative_num_draft_tokens=4)


def test_engine_model_and_kernels_are_the_server_s():
    rows = [{"operator": "router", "variant": "bf16"}, {"operator": "lm_head", "variant": "reference"}]
    spec = described(Server(kernels=rows), cell(env={"A": "1"}), "attach")
    assert (spec.engine.name, spec.engine.dtype, spec.engine.device) == ("attach", "bfloat16", "cuda")
    assert (spec.model.name, spec.model.path) == ("ling-flash", "models/ling-flash")
    assert (spec.kernels, spec.env) == ({"router": "bf16"}, {})


@pytest.mark.parametrize("algorithm", ["NEXTN", "EAGLE"])
def test_sglang_s_two_names_of_nextn_are_one(algorithm):
    spec = described(speculating(algorithm), cell(), "sglang")
    assert spec.speculation == SpeculationSpec(algorithm="nextn", num_steps=3, num_draft_tokens=4)
    assert described(Server(), cell(), "sglang").speculation == SpeculationSpec()


def test_a_block_is_what_our_server_says_of_it_and_of_sglang_s_only_the_window_is_known():
    section = {"window": 9, "verify_mode": "compact", "acceptance": "block", "scheduler": "global"}
    ours = Server(speculative_algorithm="DSPARK", speculative_draft_model_path="d", speculation=section)
    assert described(ours, cell(), "ling").speculation == SpeculationSpec(
        algorithm="dspark",
        block_size=8,
        draft_path="d",
        verify_mode="compact",
        acceptance="block",
        scheduler="global",
    )
    theirs = Server(speculative_algorithm="DSPARK", speculative_num_draft_tokens=17)
    assert described(theirs, cell(), "sglang").speculation == SpeculationSpec(algorithm="dspark", block_size=16)
    with pytest.raises(ProtocolError, match="DSPARK without speculative_num_draft_tokens"):
        described(Server(speculative_algorithm="DSPARK"), cell(), "attach")


def test_speculation_that_the_gates_do_not_know_is_an_error():
    with pytest.raises(ProtocolError, match="speculative_algorithm=UNO"):
        described(speculating("UNO"), cell(), "attach")


def test_a_draft_model_and_a_lookup_are_known_with_what_they_have():
    chain = Server(
        speculative_algorithm="EAGLE3",
        speculative_num_steps=3,
        speculative_num_draft_tokens=4,
        speculative_draft_model_path="d",
    )
    expected = SpeculationSpec(algorithm="eagle3", num_steps=3, num_draft_tokens=4, draft_path="d")
    assert described(chain, cell(), "attach").speculation == expected
    lookup = Server(speculative_algorithm="NGRAM", speculative_num_draft_tokens=6)
    assert described(lookup, cell(), "attach").speculation.window == 6
    with pytest.raises(ProtocolError, match="speculative_num_steps=None beside NEXTN"):
        described(Server(speculative_algorithm="NEXTN"), cell(), "attach")


def test_what_a_server_reports_is_what_it_runs_with_and_no_secret():
    info = {"attention_backend": "fa3", "tp_size": 2, "port": 1, "internal_states": [{}], "hf_token": None}
    secrets = {"api_key": "s", "admin_api_key": "s", "ssl_keyfile_password": "s", "auth_token": "s"}
    told = described(Server(version="0.5.23", launch_command="x --api-key s", **info, **secrets), cell(), "attach")
    plain = {"attention_backend": "fa3", "tp_size": "2", "dtype": "bfloat16", "device": "cuda"}
    assert told.engine.reported == {"version": "0.5.23", **plain}


def test_nothing_is_known_of_the_hardware_behind_an_address():
    assert hardware("http://10.0.0.7:30000", cell()) == UNKNOWN


def test_a_server_on_this_machine_shares_its_hardware(monkeypatch):
    monkeypatch.setattr("gates.attached.here", lambda device, env: (device, env))
    assert hardware("http://127.0.0.1:30000", cell()) == ("cpu", {})
