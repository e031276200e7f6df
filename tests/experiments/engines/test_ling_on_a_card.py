"""Cells of our runtime on a card: drawn weights, simulated acceptance, and what its server has to prove."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from experiments.checks import checked
from experiments.engines.ling_activation import expected, observed
from experiments.engines.registry import engine_of
from experiments.errors import ConfigError
from experiments.findings import accept_source
from experiments.spec import CellSpec, EngineSpec, GateSpec, SpeculationSpec, TaskSpec
from gates.evidence import Accept
from gates.judge import needs_of
from gates.run import apply
from gates.validity import activation_faults
from tests.fakes.checkpoint import write_draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ON_CARD = EngineSpec(device="cuda", dtype="bfloat16")
LENGTH = "SGLANG_SIMULATE_ACC_LEN"
DECODE = {
    "path": "graphs",
    "replayed": 9,
    "overlap": True,
    "seq_lens_pin": False,
    "pdl": "early",
    "threads": 1,
    "fused_verify_extend": False,
    "extend_graph": True,
    "glue_graph": "inside",
    "result_ring": False,
}
INFO: dict[str, Any] = {
    "dtype": "bfloat16",
    "executor": DECODE,
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
}


@pytest.fixture
def cell(make_cell: Callable[..., CellSpec]) -> CellSpec:
    return make_cell(engine=ON_CARD)


def with_flags(cell: CellSpec, *args: str, **flags: str) -> CellSpec:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return replace(cell, engine=replace(cell.engine, extra_args=args, flags=named))


def faults(cell: CellSpec, **info: Any) -> list[str]:
    return [fault.reason for fault in activation_faults(expected(cell), observed(cell, INFO | info))]


def words(cell: CellSpec) -> tuple[str, ...]:
    return engine_of(cell).command(cell, port=1, served_name="x").argv


@pytest.fixture
def drawn(cell: CellSpec, checkpoint: Path, tmp_path: Path) -> CellSpec:
    """A model directory with nothing but its shapes."""
    (tmp_path / "config.json").write_text((checkpoint / "config.json").read_text())
    model = replace(cell.model, path=str(tmp_path), tokenizer_path=str(checkpoint), weights="drawn")
    return replace(cell, model=model)


def test_drawn_weights_need_shapes_and_somebody_elses_tokenizer(drawn: CellSpec) -> None:
    line = " ".join(words(checked(drawn)))
    assert f"--tokenizer-path {drawn.model.tokenizer_path}" in line
    assert "--load-format dummy" in line
    (remark,) = engine_of(drawn).remarks(drawn, {}, "")
    assert "weights are drawn" in remark


def test_without_the_key_a_directory_without_weights_is_refused(drawn: CellSpec) -> None:
    with pytest.raises(ConfigError, match=r"holds no \*\.safetensors; .*model\.weights=drawn"):
        checked(replace(drawn, model=replace(drawn.model, weights="checkpoint")))


def test_drawn_weights_answer_no_task_and_no_other_engine(drawn: CellSpec) -> None:
    with pytest.raises(ConfigError, match=r"^task: answers of drawn weights score nothing"):
        checked(replace(drawn, task=TaskSpec(name="gsm8k")))
    with pytest.raises(ConfigError, match=r"^model\.weights: engine=sglang draws none"):
        checked(replace(drawn, engine=EngineSpec(name="sglang", device="cuda"), speculation=SpeculationSpec()))


def test_a_server_that_read_a_checkpoint_drew_nothing(drawn: CellSpec) -> None:
    assert faults(drawn, load_format="dummy") == []
    assert faults(drawn, load_format="auto") == ["model.weights=drawn was asked for; active: checkpoint"]


RANKS = [{"rank": rank, "calls": 9, "digest": "0a"} for rank in range(2)]


def test_ranks_prove_themselves(cell: CellSpec) -> None:
    two = replace(cell, engine=replace(cell.engine, tp_size=2))
    line = words(two)
    assert line[line.index("--tp-size") + 1] == "2"
    assert two.engine.cores == 2
    assert faults(two, tp_size=2, executor=DECODE | {"ranks": RANKS}) == []
    for ranks, seen in (
        (RANKS[:1], "2, of which 1 answered"),
        ([RANKS[0], RANKS[1] | {"digest": "0b"}], "2, of which 2 answered"),
    ):
        (fault,) = faults(two, tp_size=2, executor=DECODE | {"ranks": ranks})
        assert fault == f"engine.tp_size=2 was asked for; active: {seen}"
    assert faults(cell, tp_size=1) == []


@pytest.mark.parametrize(("listed", "seen"), [(None, 1), ("", 0), ("0,1", 2), ("1,-1,0", 1)])
def test_ranks_need_as_many_gpus_to_be_seen(
    drawn: CellSpec, monkeypatch: pytest.MonkeyPatch, listed: str | None, seen: int
) -> None:
    monkeypatch.setattr("experiments.gpu.gpus", lambda: [{"index": "0"}])
    env = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    two = replace(drawn, engine=replace(drawn.engine, tp_size=2, command=()), env=env)
    if seen == 2:
        assert checked(two).engine.tp_size == 2
        return
    with pytest.raises(ConfigError, match=rf"engine\.tp_size: 2 ranks have a GPU each, and {seen} GPUs can be seen"):
        checked(two)


def test_ranks_share_no_draft(drawn: CellSpec, draft: Path) -> None:
    block = SpeculationSpec(algorithm="dspark", draft_path=str(draft), block_size=4)
    with pytest.raises(ConfigError, match=r"engine\.tp_size: 2 ranks share no DSPARK draft"):
        checked(replace(drawn, speculation=block, engine=replace(drawn.engine, tp_size=2)))


def simulated(cell: CellSpec, **groups: Any) -> CellSpec:
    return replace(cell, **({"env": {LENGTH: "3.25"}, "gate": GateSpec(mode="off")} | groups))


def test_simulated_acceptance_is_marked_and_proved(cell: CellSpec) -> None:
    spec = checked(simulated(cell))
    assert accept_source(spec) == "simulated"
    (remark,) = engine_of(spec).remarks(spec, {}, "")
    assert "acceptance is simulated, 3.25 tokens a step" in remark
    assert faults(spec, simulated_accept_length=3.25) == []
    assert faults(spec, simulated_accept_length=None) == [
        "speculation.simulated_accept=3.25 was asked for; active: None"
    ]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"gate": GateSpec()}, r"^gate: tokens of simulated acceptance"),
        ({"task": TaskSpec(name="gsm8k")}, r"^task: answers of simulated acceptance"),
        ({"speculation": SpeculationSpec()}, rf"^env\.{LENGTH}: 3\.25 cannot come out of 1 rows"),
        ({"engine": EngineSpec()}, rf"^env\.{LENGTH}: .*CUDA graphs alone; allowed with engine\.device=cuda"),
        ({"engine": replace(ON_CARD, extra_args=("--disable-cuda-graph",))}, r"CUDA graphs alone"),
        ({"env": {LENGTH: "3.25", "SGLANG_SIMULATE_ACC_METHOD": "multinomial"}}, r"METHOD: SGLang's alone"),
    ],
)
def test_where_simulated_acceptance_would_mislead_it_is_refused(
    cell: CellSpec, groups: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(simulated(cell, **groups))


def test_gates_of_simulated_acceptance_say_why_they_are_off(cell: CellSpec) -> None:
    spec = simulated(cell)
    accept = Accept(length=3.25, source="simulated")
    results, _ = apply(spec, None, None, baseline=None, accept=accept, task=None)  # type: ignore[arg-type]
    required = [gate for gate in results if needs_of(spec, None)[gate.name].required]
    assert {gate.reason for gate in required} == {"gate=off: acceptance is simulated"}
    assert {gate.status for gate in results} == {"not_applicable"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"gc_treshold": "700"}, r"unknown argument --gc-treshold; the nearest known one is --gc-threshold"),
        ({"pdl": "sometimes"}, r"--pdl: invalid choice"),
        ({"dtype": "float32"}, r"engine\.flags\.dtype: has a key of its own"),
        ({"page_size": "64"}, r"--page-size: ling_runtime takes it without effect"),
    ],
)
def test_flags_are_read_before_anything_starts(cell: CellSpec, flags: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked(with_flags(cell, **flags))


@pytest.mark.parametrize(("key", "value"), [("device", "tpu"), ("dtype", "float16")])
def test_a_refusal_names_the_key_of_the_flag_that_it_is_about(drawn: CellSpec, key: str, value: str) -> None:
    wrong = replace(drawn, engine=replace(drawn.engine, command=(), **{key: value}))
    with pytest.raises(ConfigError, match=rf"engine\.{key}: the server would refuse .*--{key}.*'{value}'"):
        checked(wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a card lacks one")
def test_a_window_that_no_graph_holds_is_refused_by_its_key(drawn: CellSpec, tmp_path: Path) -> None:
    chain = SpeculationSpec(algorithm="nextn", num_steps=64)
    long = replace(drawn, speculation=chain)
    with pytest.raises(ConfigError, match=r"^speculation\.num_steps: .* 64: .* 1 to 63$"):
        checked(long)
    assert checked(replace(long, engine=replace(long.engine, device="cpu"))).speculation.window == 65
    assert checked(replace(long, speculation=replace(chain, num_steps=63))).speculation.window == 64
    path = str(write_draft(tmp_path / "draft", block_size=64))
    block = SpeculationSpec(algorithm="dspark", block_size=64, draft_path=path)
    with pytest.raises(ConfigError, match=r"^speculation\.block_size: .* 64: .* 1 to 63$"):
        checked(replace(drawn, speculation=block))


def test_a_variant_for_a_card_is_not_taken_for_a_slip_of_the_pen(drawn: CellSpec) -> None:
    with pytest.raises(ConfigError, match=r"kernels\.linear: 'cuda' is not one of .*; cuda variants are .* nvcc"):
        checked(replace(drawn, kernels={"linear": "cuda"}))
    with pytest.raises(ConfigError, match=r"kernels\.linear: 'slip' is not one of [^;]*$"):
        checked(replace(drawn, kernels={"linear": "slip"}))


def test_a_flag_reaches_the_command_line(cell: CellSpec) -> None:
    line = " ".join(words(checked(with_flags(cell, gc_threshold="50000", disable_gc_freeze=""))))
    assert "--gc-threshold 50000 --disable-gc-freeze" in line


def test_steps_of_a_card_must_have_been_replayed_ahead_of_the_host(cell: CellSpec) -> None:
    assert faults(cell) == []
    assert faults(cell, executor=DECODE | {"path": "eager"}) == ["engine.decode=graphs was asked for; active: eager"]
    assert faults(cell, executor=DECODE | {"replayed": 0}) == [
        "engine.decode=graphs was asked for; active: graphs, none replayed"
    ]
    crowded = DECODE | {"graph_memory": {"refused": ["VerifyStep of 2 x 9 rows", "InjectStep of 2 x 9 rows"]}}
    assert faults(cell, executor=crowded) == [
        "engine.unrecorded=none was asked for; active: VerifyStep of 2 x 9 rows, InjectStep of 2 x 9 rows"
    ]
    assert faults(cell, executor=DECODE | {"overlap": False}) == ["engine.overlap=True was asked for; active: False"]


@pytest.mark.parametrize(
    ("flags", "info", "fault"),
    [
        ({"disable_overlap_schedule": ""}, {"disable_overlap_schedule": True}, "engine.overlap=False"),
        ({"pdl": "late"}, {"pdl": "late"}, "engine.pdl=late"),
        ({"fused_verify_extend": ""}, {"fused_verify_extend": True}, "engine.fused_verify_extend=True"),
        (
            {"disable_draft_extend_cuda_graph": ""},
            {"disable_draft_extend_cuda_graph": True},
            "engine.extend_graph=False",
        ),
        ({"glue_graph": "on"}, {"glue_graph": "on"}, "engine.glue_graph=on"),
        ({"result_ring": ""}, {"result_ring": True}, "engine.result_ring=True"),
        ({"disable_cuda_graph": ""}, {"disable_cuda_graph": True}, "engine.decode=eager"),
        ({"engine_core": "3"}, {"engine_core": 3, "host": {"engine_cores": [0, 1]}}, "host.engine_cores=[3]"),
        (
            {"gc_threshold": "50000 20"},
            {"gc_threshold": [50000, 20], "host": {"gc_threshold": [700, 10, 10]}},
            "host.gc_threshold=[50000, 20]",
        ),
        (
            {"disable_gc_freeze": ""},
            {"disable_gc_freeze": True, "host": {"gc_frozen": True}},
            "host.gc_frozen=False",
        ),
        ({"pdl": "late"}, {"executor": DECODE | {"pdl": "late"}}, "--pdl=late"),
    ],
)
def test_a_switch_that_is_said_and_not_in_force_is_found(
    cell: CellSpec, flags: dict[str, str], info: dict[str, Any], fault: str
) -> None:
    (found,) = faults(with_flags(cell, **flags), **info)
    assert found.startswith(f"{fault} was asked for")


def test_switches_in_force_have_no_fault(cell: CellSpec) -> None:
    asked = with_flags(cell, gc_threshold="50000", engine_core="3", pdl="late")
    host = {"engine_cores": [3], "gc_threshold": [50000, 10, 10], "gc_frozen": True}
    said = {"gc_threshold": [50000], "engine_core": 3, "pdl": "late"}
    assert faults(asked, **said, host=host, executor=DECODE | {"pdl": "late"}) == []


def test_threads_are_what_torch_uses(cell: CellSpec) -> None:
    assert faults(cell, executor=DECODE | {"threads": 16}) == ["engine.num_threads=1 was asked for; active: 16"]
