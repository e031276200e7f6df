"""The switches of a replayed step: what is refused, what glue does call by call, and that no token changes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from experiments.ablation_table import SWITCHES
from experiments.step_subject import STACKS, Setting
from ling_runtime.config import ConfigError
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.glue import WARM, Glue
from ling_runtime.executor.graph_memory import GraphMemory
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graph_step import GraphExecutor
from ling_runtime.executor.graphs import DEVICE_VARIANTS, VerifyStep, device_selection, missing_variants
from ling_runtime.executor.parts import RefillStep
from ling_runtime.executor.relay import Ring
from ling_runtime.executor.switches import Switches
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.triton.launch import Pdl, pdl
from ling_runtime.ops.triton.ring import keep
from ling_runtime.weights import initialise
from tests.ling_runtime.executor.test_graph_step import drive, served, smaller
from tests.ling_runtime.executor.test_graphs import Host

if TYPE_CHECKING:
    from collections.abc import Callable

    from ling_runtime.config import ModelConfig

pytestmark = pytest.mark.usefixtures("interpreter")
ON_A_CARD = DEVICE.type == "cuda"
ROUNDS = 8 if ON_A_CARD else 2
SIDES = [*STACKS.values(), *(side for switch in SWITCHES for side in (switch.off, switch.on))]
MEASURED = [side for i, side in enumerate(SIDES) if side.kernels and side.runs_here and side not in SIDES[:i]]


def build(config: ModelConfig, steps: int, **graphs: Any) -> GraphExecutor:
    config = smaller(config)
    executor = build_executor(
        config,
        initialise(config, seed=3),
        ExecutorSettings(
            num_steps=steps, max_requests=3, context_length=96, device=str(DEVICE), graphs=GraphSettings(**graphs),
            kernels=DEVICE_VARIANTS,
        ),
    )  # fmt: skip
    assert isinstance(executor, GraphExecutor)
    return executor


@cache
def plain(config: ModelConfig) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Tokens and kernel calls of the step as it is by default."""
    executor = build(config, 2)
    return drive(executor, ROUNDS), executor.kernel_report()


@pytest.mark.slow
@pytest.mark.parametrize(
    "switches",
    [
        Switches(fused_verify_extend=True),
        Switches(extend_graph=False),
        Switches(glue_graph=False),
        Switches(glue_graph=True),
        Switches(result_ring=True),
        Switches(glue_graph=True, fused_verify_extend=True, result_ring=True),
    ],
    ids=str,
)
def test_no_switch_changes_a_token(small_config: ModelConfig, switches: Switches) -> None:
    """While a sampled guest comes and goes, and while requests end and slots are taken over a step late."""
    want, calls = plain(small_config)
    other = build(small_config, 2, switches=switches)
    assert drive(other, ROUNDS) == want
    assert other.kernel_report() == calls
    if ON_A_CARD:
        counts = [3, 9, 4, 6]
        ahead = served(build(small_config, 2, switches=switches, overlap=True), counts)
        assert ahead == served(build(small_config, 2), counts)
        if switches.glue_graph:
            assert other._glue.replays > 0
            assert not other._glue.disabled


@pytest.mark.slow
def test_without_speculation_a_step_may_be_fed_too(small_config: ModelConfig) -> None:
    usual, fed = build(small_config, 0), build(small_config, 0, switches=Switches(glue_graph=False))
    assert drive(fed, 2) == drive(usual, 2)


@pytest.mark.parametrize(
    ("steps", "switches", "named"),
    [
        (0, Switches(fused_verify_extend=True), "fused_verify_extend: allowed under .*NEXTN"),
        (0, Switches(extend_graph=False), "extend_graph: allowed under .*NEXTN"),
        (2, Switches(fused_verify_extend=True, extend_graph=False), "allowed with extend_graph only"),
    ],
)
def test_a_switch_without_its_subject_is_refused(
    small_config: ModelConfig, steps: int, switches: Switches, named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        build(small_config, steps, switches=switches)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_A_CARD, reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["late", "early"])
@pytest.mark.parametrize("setting", MEASURED, ids=lambda setting: ",".join(setting.kernels.values()))
def test_variants_launched_before_their_turn_leave_the_bits_of_their_turn(
    small_config: ModelConfig, setting: Setting, mode: Pdl
) -> None:
    """Every variant that the ablation measures, replayed under PDL against launches that wait for each other."""
    config = replace(smaller(small_config), num_nextn_predict_layers=0)
    for rows in (1, 6):
        hosts = [Host(config, setting.selection, torch.bfloat16) for _ in range(2)]
        (eager, _), (graph, _) = (host.step(rows) for host in hosts)
        eager.run()
        with pdl(mode):
            graph.capture()
        for _ in range(12):
            eager.run()
            graph.replay()
            assert torch.equal(eager.results.choices, graph.results.choices)
            assert torch.equal(eager.hidden, graph.hidden)
        for one, two in zip(*(host.caches.recurrent.snapshot(host.slot) for host in hosts), strict=True):
            assert torch.equal(one, two)
        assert torch.equal(hosts[0].caches.latent.rows, hosts[1].caches.latent.rows)


def test_graphs_take_the_device_variants_and_their_switches() -> None:
    assert missing_variants(Kernels(DEVICE_VARIANTS)) == []
    assert missing_variants(Kernels(DEVICE_VARIANTS | {"kda_window": "triton_bv4", "moe": "triton_align_two"})) == []
    assert missing_variants(Kernels(DEVICE_VARIANTS | {"router": "bf16"})) == ["router"]
    assert missing_variants(Kernels(DEVICE_VARIANTS | {"lm_head": "bf16"})) == ["lm_head"], (
        "eager steps would choose apart"
    )


def test_no_default_is_fused_over_an_operator_that_was_asked_for() -> None:
    assert device_selection({}) == DEVICE_VARIANTS
    assert device_selection({"kda_window": "triton_bv4"}) == DEVICE_VARIANTS | {"kda_window": "triton_bv4"}
    for asked in ({"moe": "triton_align_two"}, {"router": "triton_bf16"}):
        selection = device_selection(asked)
        assert "moe_block" not in selection
        assert asked.items() <= selection.items()
        assert missing_variants(Kernels(selection)) == []
    both = {"moe": "triton", "moe_block": "triton_gate_norm_bf16"}
    assert both.items() <= device_selection(both).items()


def looked_up(step: VerifyStep) -> list[torch.Tensor]:
    return [step.starts, step._verified, step._table, step._recurrent.walked]


def test_a_refill_by_operations_finds_what_the_kernel_finds_in_the_same_buffers(small_config: ModelConfig) -> None:
    """Also after glue has been told to record anew: graphs that read the buffers know them by address."""
    host = Host(replace(smaller(small_config), num_nextn_predict_layers=0), {}, torch.float32)
    step, relay = host.step()
    glue = Glue(Desk().record)
    refill = RefillStep(step, "verify", glue)
    where = [buffer.data_ptr() for buffer in looked_up(step)]
    for turn in range(2 * (WARM + 2)):
        relay.drafts.random_(90)
        relay.put(host.slot, length=20 + turn, token=turn)
        host.caches.recurrent.pools.walked[host.slot] = turn
        step.look_up()
        want = [buffer.clone() for buffer in looked_up(step)]
        for buffer in looked_up(step):
            buffer.fill_(-7)
        refill.step(GraphMemory())
        assert all(torch.equal(one, other) for one, other in zip(looked_up(step), want, strict=True))
        if turn == WARM + 1:
            glue.reset()
    assert [buffer.data_ptr() for buffer in looked_up(step)] == where
    assert glue.replays == 4


def test_a_ring_is_written_in_turns_that_the_device_counts() -> None:
    ring = Ring(2, 3, DEVICE)
    sent = []
    for step in range(5):
        choices = torch.arange(6, device=DEVICE).view(2, 3) + 10 * step
        accepted = torch.tensor([1 + step % 3, 3], device=DEVICE)
        keep(choices, accepted, ring.slots, ring.turn)
        sent.append(ring.send(choices, accepted))
    assert int(ring.turn) == 5
    assert [one.read() for one in sent[2:]] == [
        [[20, 21, 22], [23, 24, 25]], [[30], [33, 34, 35]], [[40, 41], [43, 44, 45]]
    ]  # fmt: skip


class Desk:
    """A refill that counts its runs, and a recorder that replays it and fails when told to."""

    def __init__(self) -> None:
        self.runs, self.recordings, self.fails = 0, 0, False

    def refill(self) -> None:
        self.runs += 1

    def record(self, refill: Callable[[], None]) -> Callable[[], None]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recordings += 1
        return refill


def test_glue_is_eager_twice_then_recorded_once_per_key() -> None:
    desk = Desk()
    glue = Glue(desk.record)
    for _ in range(WARM + 3):
        glue.run((1, "verify"), desk.refill)
    assert (desk.runs, desk.recordings, glue.replays, glue.eager_after_warm) == (WARM + 3, 1, 3, 0)
    glue.run((2, "verify"), desk.refill)
    glue.run((1, "draft"), desk.refill)
    assert desk.recordings == 1, "another key has its own warm runs"
    glue.reset()
    for _ in range(WARM + 1):
        glue.run((1, "verify"), desk.refill)
    assert desk.recordings == 2


def test_a_failed_recording_turns_glue_off_for_good_and_loses_no_refill(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    glue = Glue(desk.record)
    for _ in range(WARM + 1):
        glue.run((1, "verify"), desk.refill)
    desk.fails = True
    for _ in range(WARM + 1):
        glue.run((1, "draft"), desk.refill)
    desk.fails = False
    for key in ((1, "verify"), (1, "draft"), (3, "draft")):
        for _ in range(WARM + 1):
            glue.run(key, desk.refill)
    assert glue.disabled
    assert (glue.replays, desk.recordings) == (1, 1)
    assert desk.runs == 5 * (WARM + 1)
    assert caplog.text.count("could not be recorded") == 1


def test_what_is_fed_by_the_host_is_never_recorded() -> None:
    desk = Desk()
    glue = Glue(desk.record)
    for _ in range(WARM + 4):
        glue.run((1, "plan"), desk.refill, host_fed=True)
    assert (desk.runs, desk.recordings, glue.eager_after_warm) == (WARM + 4, 0, 4)
