"""The device-resident verify step: plain decoding's tokens whatever is accepted, and a graph equal to its launches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

from tests.ling_runtime.interpreted import DEVICE  # isort: skip - before anything of Triton

from ling_runtime.executor.graphs import DEVICE_VARIANTS, VerifyStep
from ling_runtime.executor.nextn_graphs import DraftStep, ExtendStep, Seeds
from ling_runtime.executor.relay import Outbox, Relay
from ling_runtime.memory.caches import Caches
from ling_runtime.memory.window import Window
from ling_runtime.model.ling import Ling, TargetRows
from ling_runtime.model.nextn import Nextn
from ling_runtime.ops.registry import Kernels
from ling_runtime.ops.triton.launch import Pdl, pdl
from ling_runtime.speculation.acceptance import correct_drafts
from ling_runtime.speculation.nextn import NextnProposer
from ling_runtime.weights import initialise

if TYPE_CHECKING:
    from torch import Tensor

    from ling_runtime.config import ModelConfig

pytestmark = [pytest.mark.usefixtures("interpreter"), *([] if DEVICE.type == "cuda" else [pytest.mark.slow])]
LONGEST, PROMPT, ROWS = 64, 26, 4


class Host:
    """A model and its memory with one request past its prompt."""

    def __init__(self, config: ModelConfig, selection: dict[str, str], dtype: torch.dtype, *, keep: bool = False):
        self.model = Ling(
            config, initialise(config, seed=3), Kernels(selection), positions=LONGEST, dtype=dtype, device=DEVICE
        )
        self.caches = Caches(config, max_requests=3, pages=4, dtype=dtype, device=DEVICE)
        self.caches.reserve(LONGEST)
        self.slot = self.caches.reserve(LONGEST)
        prompt = torch.randint(config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(2)).to(DEVICE)
        self.length = 0
        if keep:
            window = Window(slots=(self.slot,), starts=(0,), rows=PROMPT, device=DEVICE)
            self.kept = (window, prompt, self.model(prompt, self.caches.begin(window)))
            self.caches.recurrent.discard()
        self.token = self.run(prompt)

    def run(self, ids: Tensor) -> int:
        """All of `ids` accepted; the greedy token after them."""
        window = Window(slots=(self.slot,), starts=(self.length,), rows=len(ids), device=DEVICE)
        hidden = self.model(ids, self.caches.begin(window))
        self.caches.recurrent.commit(window, torch.tensor([len(ids)], device=DEVICE))
        self.length += len(ids)
        return int(self.model.greedy(hidden[len(ids) - 1 : len(ids)]))

    def plain(self, count: int) -> list[int]:
        """`count` tokens one at a time, the prompt's own first."""
        tokens = [self.token]
        while len(tokens) < count:
            tokens.append(self.run(torch.tensor([tokens[-1]], device=DEVICE)))
        return tokens

    def step(self, rows: int = ROWS) -> tuple[VerifyStep, Relay]:
        relay = Relay(4, drafts=rows - 1, longest=LONGEST, device=DEVICE)
        relay.admit(self.slot, self.caches, length=self.length, token=self.token)
        step = VerifyStep(self.model, self.caches, relay, batch=1, rows=rows)
        step.slots.fill_(self.slot)
        return step, relay


@pytest.fixture
def two_layers(small_config: ModelConfig) -> ModelConfig:
    """KDA with a dense layer and MLA with experts; few heads, for the interpreter runs programs in turn."""
    limits = {"expert_swiglu_limit_list": (0.0, 0.4), "share_expert_swiglu_limit_list": (0.0, 0.7)}
    return replace(small_config, num_hidden_layers=2, num_attention_heads=2, num_nextn_predict_layers=0, **limits)


def test_verify_commits_what_plain_decoding_says(two_layers: ModelConfig) -> None:
    """Drafts right for 0, 1, 2, 3 rows in turn, over the end of a chunk of 16."""
    want = Host(two_layers, {}, torch.float32).plain(13)
    host = Host(two_layers, DEVICE_VARIANTS, torch.float32)
    step, relay = host.step()
    got = [host.token]
    for right in (2, 0, 3, 1):
        drafts = want[len(got) : len(got) + ROWS - 1]
        drafts[right:] = [(token + 1) % two_layers.vocab_size for token in drafts[right:]]
        relay.drafts[host.slot] = torch.tensor(drafts, device=DEVICE)
        step.run()
        assert int(step.results.accepted) == right + 1
        got += step.results.choices[0, : right + 1].tolist()
        assert int(relay.lengths[host.slot]) == PROMPT + len(got) - 1
        assert int(relay.tokens[host.slot]) == got[-1]
    assert got == want[: len(got)]


def test_commit_leaves_the_state_of_the_reference(two_layers: ModelConfig) -> None:
    """After the same accepted rows the pools hold what the eager commit leaves, and other slots what they held."""
    eager = Host(two_layers, DEVICE_VARIANTS, torch.float32)
    other = Host(two_layers, DEVICE_VARIANTS, torch.float32)
    want = eager.plain(9)
    step, relay = other.step(rows=9)
    relay.drafts[other.slot] = torch.tensor(want[1:], device=DEVICE)
    before = other.caches.recurrent.snapshot(1)
    step.run()
    eager.run(torch.tensor(want[-1:], device=DEVICE))
    assert int(step.results.accepted) == 9
    for got, expected in zip(
        other.caches.recurrent.snapshot(other.slot), eager.caches.recurrent.snapshot(eager.slot), strict=True
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(before, other.caches.recurrent.snapshot(1), strict=True))


def test_padding_beside_a_request_changes_nothing(two_layers: ModelConfig) -> None:
    """Slot 0 in the second place, as a graph of two requests has it when there is one."""
    alone, padded = (Host(two_layers, DEVICE_VARIANTS, torch.float32) for _ in range(2))
    (one, _), (_, relay) = alone.step(rows=2), padded.step(rows=2)
    two = VerifyStep(padded.model, padded.caches, relay, batch=2, rows=2)
    two.slots[0] = padded.slot
    for _ in range(2):
        one.run()
        two.run()
        assert torch.equal(one.results.accepted, two.results.accepted[:1])
        assert torch.equal(one.results.choices, two.results.choices[:1])
        assert int(relay.lengths[0]) == 0


class NextnHost(Host):
    """The same with a NEXTN layer, whose seed and cache the prompt has filled."""

    steps = 3

    def __init__(self, config: ModelConfig, selection: dict[str, str]) -> None:
        super().__init__(config, selection, torch.float32, keep=True)
        tensors = initialise(config, seed=3)
        self.draft = Nextn(self.model, tensors, index=len(config.layers(mla=True)))
        self.proposer = NextnProposer(self.model, self.draft, self.caches, steps=self.steps, slots=4)
        window, prompt, hidden = self.kept
        following = torch.cat([prompt[1:], torch.tensor([self.token], device=DEVICE)])
        accepted = torch.tensor([len(prompt)], device=DEVICE)
        self.proposer.extend(self.caches.begin(window), following, TargetRows(hidden, ()), accepted)


def test_three_steps_draft_and_accept_what_the_eager_proposer_does(two_layers: ModelConfig) -> None:
    """Drafts, accepted tokens and seeds over two whole steps, against the eager path on reference operators."""
    config = replace(two_layers, num_nextn_predict_layers=1)
    eager, device = NextnHost(config, {}), NextnHost(config, DEVICE_VARIANTS)
    verify, relay = device.step(rows=NextnHost.steps + 1)
    seeds = Seeds(device.proposer._seed, device.proposer._hidden)
    draft = DraftStep(device.model, device.draft, relay, seeds, verify, NextnHost.steps)
    extend = ExtendStep(device.model, device.draft, seeds, verify)
    for _ in range(2):
        window = Window(slots=(eager.slot,), starts=(eager.length,), rows=NextnHost.steps + 1, device=DEVICE)
        drafts = eager.proposer.propose(window, torch.tensor([eager.token]), ()).drafts
        ids = torch.cat([torch.tensor([[eager.token]], device=DEVICE), drafts], dim=1).flatten()
        pass_ = eager.caches.begin(window)
        hidden = eager.model(ids, pass_)
        choices = eager.model.logits(hidden[: len(ids)]).argmax(-1)
        accepted = correct_drafts(drafts, choices[None]) + 1
        eager.caches.recurrent.commit(window, accepted)
        eager.proposer.extend(pass_, choices, TargetRows(hidden, ()), accepted)
        for graph in (draft, verify, extend):
            graph.run()
        assert torch.equal(relay.drafts[device.slot], drafts[0])
        assert torch.equal(verify.results.choices[0], choices)
        assert int(verify.results.accepted) == int(accepted)
        assert int(seeds.tokens[device.slot]) == int(eager.proposer._seed[eager.slot])
        torch.testing.assert_close(seeds.hidden[device.slot], eager.proposer._hidden[eager.slot], rtol=0, atol=1e-4)
        eager.length += int(accepted)
        eager.token = int(choices[int(accepted) - 1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mode", ["off", "late", "early"])
@pytest.mark.parametrize("rows", [1, 4, 6, 9, 17])
def test_graph_and_eager_are_equal_bit_for_bit(two_layers: ModelConfig, rows: int, mode: Pdl) -> None:
    """Whichever way the graph's kernels are launched; the eager ones start when the one before has ended."""
    hosts = [Host(two_layers, DEVICE_VARIANTS, torch.bfloat16) for _ in range(2)]
    (eager, eager_relay), (graph, graph_relay) = (host.step(rows) for host in hosts)
    eager.run()
    with pdl(mode):
        graph.capture()
    outbox = Outbox(1, rows, DEVICE)
    for _ in range(20):
        eager.run()
        graph.replay()
        sent = outbox.send(*graph.results)
        assert torch.equal(eager.results.choices, graph.results.choices)
        assert torch.equal(eager.results.accepted, graph.results.accepted)
        assert sent.read()[0] == eager.results.choices[0, : int(eager.results.accepted)].tolist()
    assert torch.equal(eager_relay.lengths, graph_relay.lengths)
    for one, two in zip(*(host.caches.recurrent.snapshot(host.slot) for host in hosts), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(hosts[0].caches.latent.rows, hosts[1].caches.latent.rows)
