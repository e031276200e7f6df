"""DSPARK on graphs: tokens of no speculation, drafts of the eager proposer, whatever is planned and whoever comes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.config import ConfigError
from ling_runtime.executor.build import ExecutorSettings, build_executor
from ling_runtime.executor.draft import DraftSettings
from ling_runtime.executor.dspark_graphs import BLOCK_VARIANTS, BlockStep, InjectStep
from ling_runtime.executor.graph_settings import GraphSettings
from ling_runtime.executor.graph_step import GraphExecutor
from ling_runtime.executor.graphs import VerifyStep
from ling_runtime.executor.interface import GREEDY, Admission
from ling_runtime.executor.switches import Switches
from ling_runtime.executor.tiered_step import TieredStep, tier
from ling_runtime.memory.window import Window
from ling_runtime.ops.triton.launch import Pdl, pdl
from ling_runtime.speculation.dspark.schedule import ScheduleSettings
from ling_runtime.weights import initialise
from tests.ling_runtime.executor.driving import prompt_of, warm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.config import ModelConfig
    from ling_runtime.executor.step import StepExecutor
    from ling_runtime.speculation.dspark.proposer import DsparkProposer
    from ling_runtime.speculation.interface import Reads
    from tests.ling_runtime.conftest import WriteDraft

pytestmark = [pytest.mark.usefixtures("interpreter")]
SLOW = pytest.mark.slow if DEVICE.type == "cpu" else pytest.mark.gpu
DRAFTS = 3


def build(config: ModelConfig, path: str | None, *, graphs: GraphSettings | None, **more: Any) -> StepExecutor:
    """Two layers, with a KDA and an MLA, dense and experts; the interpreter runs programs in turn."""
    limits = {"expert_swiglu_limit_list": (0.0, 0.4), "share_expert_swiglu_limit_list": (0.0, 0.7)}
    two = replace(config, num_hidden_layers=2, num_attention_heads=2, num_nextn_predict_layers=0, **limits)
    size = more.pop("size", DRAFTS)
    draft = DraftSettings(path=path, block_size=size, **more.pop("draft", {})) if path else None
    settings = ExecutorSettings(
        draft=draft, max_requests=3, context_length=96, device=str(DEVICE), graphs=graphs,
        kernels=BLOCK_VARIANTS if graphs else {}, **more,
    )  # fmt: skip
    return build_executor(two, initialise(two, seed=3), settings)


def drafts_of(write_draft: WriteDraft, **changes: Any) -> str:
    return write_draft(
        target_layer_ids=[0], num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, **changes
    )


def enter(executor: StepExecutor, seed: int, length: int, *, sampled: bool = False) -> tuple[int, int]:
    sampling = warm(1) if sampled else GREEDY
    slot = executor.admit(Admission(prompt_of(seed, length), 24, sampling))
    token = executor.prefill(slot).token
    assert token is not None
    return slot, token


def served(executor: StepExecutor, counts: Sequence[int]) -> list[list[int]]:
    """Greedy requests of so many tokens, two at a time: each leaves when it has them, and the next takes its place."""
    waiting, running = list(range(len(counts))), dict[int, int]()
    found: list[list[int]] = [[] for _ in counts]
    while waiting or running:
        while waiting and len(running) < 2:
            i = waiting.pop(0)
            slot, token = enter(executor, i, 3 + 2 * i)
            running[slot], found[i] = i, [token]
        for slot, out in executor.decode(tuple(running)).items():
            found[running[slot]] += out.tokens
        for slot in [slot for slot, i in running.items() if len(found[i]) >= counts[i]]:
            executor.release(slot)
            del running[slot]
    return [tokens[:count] for tokens, count in zip(found, counts, strict=True)]


STRUCTURES: dict[str, dict[str, Any]] = {
    "vanilla": {},
    "gated-causal": {"markov_head_type": "gated", "is_causal": True, "partial_rotary_factor": 0.5},
    "rnn-past-the-anchor": {"markov_head_type": "rnn", "sample_from_anchor": False, "rope_interleave": True},
}


@SLOW
@pytest.mark.parametrize("structure", STRUCTURES)
def test_drafts_cache_and_confidence_are_those_of_the_eager_proposer(
    small_config: ModelConfig, write_draft: WriteDraft, structure: str
) -> None:
    """Step by step beside the eager executor: the same tokens to verify, and the same rows injected for what came."""
    path = drafts_of(write_draft, **STRUCTURES[structure])
    wished = {"draft": {"confidence": True}}
    graphs, eager = (build(small_config, path, graphs=on, **wished) for on in (GraphSettings(), None))
    (slot, _), (other, _) = enter(graphs, 1, 14), enter(eager, 1, 14)
    assert slot == other
    for _ in range(2):
        length, bonus = eager._slots[slot].length, eager._slots[slot].bonus
        window = Window(slots=(slot,), starts=(length,), rows=DRAFTS + 1, device=DEVICE)
        with torch.inference_mode():
            proposal = eager._proposer.propose(window, torch.tensor([bonus], device=DEVICE), [GREEDY])  # type: ignore[union-attr]
        assert graphs.decode([slot])[slot].tokens == eager.decode([slot])[slot].tokens
        step = graphs._graphs[1]  # type: ignore[attr-defined]
        assert isinstance(step, TieredStep)
        assert torch.equal(graphs._relay.drafts[slot], proposal.drafts[0])  # type: ignore[attr-defined]
        assert proposal.confidence is not None
        torch.testing.assert_close(step._draft.confidence, proposal.confidence, rtol=1e-4, atol=1e-4)
        length = eager._slots[slot].length
        torch.testing.assert_close(context(graphs, slot, length), context(eager, slot, length), rtol=1e-4, atol=1e-4)


def context(executor: StepExecutor, slot: int, length: int) -> Tensor:
    proposer: DsparkProposer = executor._proposer  # type: ignore[assignment]
    return proposer._pool.context(slot, length)[:length]


COUNTS = (2, 5, 3)


@SLOW
@pytest.mark.parametrize("overlap", [False, True])
def test_tokens_are_those_of_no_speculation(small_config: ModelConfig, write_draft: WriteDraft, overlap: bool) -> None:
    graphs = build(small_config, drafts_of(write_draft), graphs=GraphSettings(overlap=overlap))
    assert served(graphs, COUNTS) == served(build(small_config, None, graphs=None), COUNTS)
    calls = {row["operator"]: row["calls"] for row in graphs.kernel_report()}
    assert all(calls[operator] for operator in BLOCK_VARIANTS)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="too many steps for the interpreter")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_long_answers_on_a_card_are_those_of_no_speculation(
    small_config: ModelConfig, write_draft: WriteDraft, dtype: str
) -> None:
    """In bf16, too: both run the device's operators, which give a row the same bits in every window."""
    counts, path = (20, 60, 33, 41, 8), drafts_of(write_draft)
    plain = served(build(small_config, None, graphs=GraphSettings(), dtype=dtype), counts)
    for overlap in (False, True):
        assert served(build(small_config, path, graphs=GraphSettings(overlap=overlap), dtype=dtype), counts) == plain


class Wish:
    """A schedule that asks for so many rows in turn, and remembers what it was shown."""

    packed = True
    about: ClassVar = MappingProxyType({"wish": True})

    def __init__(self, reads: Reads, rows: Sequence[int]) -> None:
        self.reads, self._rows, self.shown = reads, list(rows), list[Tensor]()

    def lengths(self, slots: Sequence[int], confidence: Tensor) -> tuple[int, ...]:
        self.shown.append(confidence.clone())
        rows = self._rows[(len(self.shown) - 1) % len(self._rows)]
        return (rows,) + (1,) * (len(slots) - 1)

    def forget(self, slot: int) -> None:
        pass


@SLOW
@pytest.mark.parametrize(("reads", "overlap"), [("this", True), ("earlier", True), ("earlier", False)])
def test_planned_windows_change_no_token(
    small_config: ModelConfig, write_draft: WriteDraft, reads: Reads, overlap: bool
) -> None:
    """Windows of one to four rows in turn, for two requests that come and go."""
    executor = build(
        small_config, drafts_of(write_draft), graphs=GraphSettings(overlap=overlap), draft={"confidence": True}
    )
    executor.schedule = Wish(reads, (2, 1, 4, 3))
    assert served(executor, COUNTS) == served(build(small_config, None, graphs=None), COUNTS)
    report = executor.speculation_report()
    assert report is not None
    assert report["verify_requests"] < report["verified_rows"] < (DRAFTS + 1) * report["verify_requests"]


@SLOW
def test_windows_recorded_ahead_leave_no_trace(small_config: ModelConfig, write_draft: WriteDraft) -> None:
    """All of them, on padding's slot, with a request in flight; nothing of it is counted."""
    executor = build(small_config, drafts_of(write_draft), graphs=GraphSettings(), draft={"confidence": True})
    assert isinstance(executor, GraphExecutor)
    executor.schedule = Wish("this", (2, 4))
    slot, token = enter(executor, 1, 5)
    tokens = [token, *executor.decode([slot])[slot].tokens]
    step, calls = executor._graphs[1], executor.kernel_report()
    assert isinstance(step, TieredStep)
    step.prepare()
    assert set(step._windows) == {1, 2, 3, 4}
    assert executor.kernel_report() == calls
    tokens += executor.decode([slot])[slot].tokens
    plain = build(small_config, None, graphs=None)
    other, first = enter(plain, 1, 5)
    want = [first]
    while len(want) < len(tokens):
        want += plain.decode([other])[other].tokens
    assert tokens == want[: len(tokens)]


@SLOW
def test_a_plan_from_an_earlier_step_sees_the_step_before(small_config: ModelConfig, write_draft: WriteDraft) -> None:
    """And nothing of another request: the first step of each verifies every row."""
    path = drafts_of(write_draft)
    executor = build(small_config, path, graphs=GraphSettings(), draft={"confidence": True})
    executor.schedule = wish = Wish("earlier", (1,))
    assert isinstance(executor, GraphExecutor)
    for seed in (1, 2):
        slot, _ = enter(executor, seed, 5)
        said: list[Tensor] = []
        for number in range(3):
            executor.decode([slot])
            step = executor._graphs[1]
            assert isinstance(step, TieredStep)
            said.append(step._draft.confidence.cpu().clone())
            assert len(wish.shown) == (seed - 1) * 2 + number
        assert torch.equal(torch.stack(wish.shown[-2:]), torch.stack(said[:2]))
        assert not torch.equal(said[0], said[1])
        executor.release(slot)


@SLOW
def test_sampled_guests_leave_the_greedy_tokens(small_config: ModelConfig, write_draft: WriteDraft) -> None:
    """A step with a sampled request runs eagerly on the same state, and the next one is replayed again."""
    found = []
    for path in (None, drafts_of(write_draft)):
        executor = build(small_config, path, graphs=GraphSettings() if path else None)
        slot, token = enter(executor, 1, 5)
        tokens = [token]
        for number in range(4):
            guest = [enter(executor, 3, 5, sampled=True)[0]] if number == 1 else []
            tokens += executor.decode([slot, *guest])[slot].tokens
            for other in guest:
                executor.release(other)
        found.append(tokens[:5])
    assert found[0] == found[1]


@SLOW
def test_simulated_acceptance_commits_and_injects_what_it_emits(
    small_config: ModelConfig, write_draft: WriteDraft
) -> None:
    """Several rows a step, and the draft's cache of a prompt that is made of the answer."""
    executor = build(small_config, drafts_of(write_draft), graphs=GraphSettings(simulated_accept_length=2.5))
    slot, token = enter(executor, 1, 5)
    tokens, accepted = [*prompt_of(1, 5), token], []
    for _ in range(4):
        tokens += (emitted := executor.decode([slot])[slot].tokens)
        accepted.append(len(emitted))
    assert set(accepted) == {2, 3}
    length = executor._slots[slot].length
    assert length == len(tokens) - 1
    again = executor.admit(Admission(tokens[:-1], 24))
    executor.prefill(again)
    torch.testing.assert_close(context(executor, slot, length), context(executor, again, length), rtol=1e-3, atol=1e-4)
    report = executor.speculation_report()
    assert report is not None
    assert report["simulated_accept_length"] == 2.5


def test_tiers_hold_what_is_asked_and_never_more_than_the_window() -> None:
    assert [tier(rows, 17) for rows in range(1, 18)] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 11, 13, 13, 15, 15, 17, 17]
    assert [tier(rows, 12) for rows in (9, 10, 11, 12)] == [9, 11, 11, 12]


def test_what_graphs_cannot_hold_is_refused_by_name(small_config: ModelConfig, write_draft: WriteDraft) -> None:
    widths = {"kv_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
    with pytest.raises(ConfigError, match="attention_type=mla of the draft; allowed: mha"):
        build(small_config, drafts_of(write_draft, attention_type="mla", **widths), graphs=GraphSettings())
    with pytest.raises(ConfigError, match="verify mode cap-accept; allowed: static, compact"):
        build(
            small_config,
            drafts_of(write_draft),
            graphs=GraphSettings(),
            draft={"schedule": ScheduleSettings(mode="cap-accept")},
        )
    with pytest.raises(ConfigError, match=r"result_ring: not under .* DSPARK; allowed: NEXTN or none"):
        build(small_config, drafts_of(write_draft), graphs=GraphSettings(switches=Switches(result_ring=True)))
    with pytest.raises(ConfigError, match=r"simulated accept length 4\.5: allowed: 1 to 4"):
        build(small_config, drafts_of(write_draft), graphs=GraphSettings(simulated_accept_length=4.5))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="nothing is recorded without a device")
@pytest.mark.parametrize("mode", ["off", "late", "early"])
@pytest.mark.parametrize("drafts", [8, 16])
@pytest.mark.parametrize("head", ["vanilla", "rnn"])
def test_graphs_and_their_launches_are_equal_bit_for_bit(
    small_config: ModelConfig, write_draft: WriteDraft, mode: Pdl, drafts: int, head: str
) -> None:
    """Draft, verify and inject, replayed under each way of launching against launch by launch, over 20 steps."""
    path = drafts_of(write_draft, block_size=16, markov_head_type=head)
    parts, executors = [], []
    for _ in range(2):
        executor = build(
            small_config, path, graphs=GraphSettings(), dtype="bfloat16", draft={"confidence": True}, size=drafts
        )
        assert isinstance(executor, GraphExecutor)
        slot, _ = enter(executor, 1, 14)
        proposer: DsparkProposer = executor._proposer  # type: ignore[assignment]
        verify = VerifyStep(
            executor._model, executor._caches, executor._relay, batch=1, rows=drafts + 1, capture=proposer.capture
        )
        verify.slots.fill_(slot)
        block = BlockStep(executor._model, proposer, executor._relay, verify)
        parts.append((block, verify, InjectStep(proposer, verify)))
        executors.append(executor)
    for one in parts[0]:
        one.run()
    with pdl(mode):
        for one in parts[1]:
            one.capture()
    for _ in range(20):
        for eager, graph in zip(*parts, strict=True):
            eager.run()
            graph.replay()
        assert torch.equal(executors[0]._relay.drafts, executors[1]._relay.drafts)
        assert torch.equal(parts[0][0].confidence, parts[1][0].confidence)
        assert all(torch.equal(*both) for both in zip(*(p[1].results for p in parts), strict=True))
    first, second = (e._proposer.cache for e in executors)  # type: ignore[union-attr]
    assert torch.equal(first, second)
    assert torch.equal(executors[0]._relay.lengths, executors[1]._relay.lengths)
