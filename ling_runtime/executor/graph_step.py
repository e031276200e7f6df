"""The executor whose greedy steps are graph replays; whatever a graph does not cover runs eagerly on the same state.

One set of graphs per number of requests, recorded when that number first comes up: the first step of a set runs launch
by launch, and its recording serves all later ones. Both paths may alternate from step to step: the device holds lengths
and tokens by slot, and an eager step puts back what it changed. The surprise is `overlap`: a call queues a step and
returns the one before, so the device never waits for the host; a request that has ended runs one step too many, which
is dropped. `seq_lens_pin` keeps that and reads lengths back before each step all the same, as a backend that plans on
the host must: what it costs is what this executor saves.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ling_runtime.config import ConfigError
from ling_runtime.executor.dspark_graphs import BLOCK_VARIANTS
from ling_runtime.executor.glue import Glue
from ling_runtime.executor.graph_memory import MIB, GraphMemory
from ling_runtime.executor.graphs import DEVICE_VARIANTS, RANK_VARIANTS, Recorded, Replays, VerifyStep, missing_variants
from ling_runtime.executor.interface import StepOutput
from ling_runtime.executor.nextn_graphs import DraftStep, ExtendStep, Seeds
from ling_runtime.executor.parts import Fused, KeepStep, RefillStep, Unrecorded
from ling_runtime.executor.relay import Emitted, Outbox, Relay, Ring
from ling_runtime.executor.slack import Slack
from ling_runtime.executor.step import Slot, StepExecutor
from ling_runtime.executor.tiered_step import TieredStep
from ling_runtime.ops.triton.launch import fastest, pdl
from ling_runtime.speculation.dspark.proposer import DsparkProposer
from ling_runtime.speculation.verification import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ling_runtime.executor.graph_settings import GraphSettings
    from ling_runtime.executor.interface import PrefillOutput
    from ling_runtime.memory.caches import Caches
    from ling_runtime.model.ling import Ling
    from ling_runtime.speculation.interface import Schedule
    from ling_runtime.speculation.nextn import NextnProposer
    from ling_runtime.speculation.verification import Rule


class GreedyStep:
    """Draft, verify and extend for `batch` requests, in the order in which they are replayed."""

    def __init__(
        self,
        model: Ling,
        caches: Caches,
        relay: Relay,
        proposer: NextnProposer | None,
        batch: int,
        settings: GraphSettings,
        memory: GraphMemory,
        glue: Glue,
    ) -> None:
        rows, switches = 1 + (proposer.steps if proposer else 0), settings.switches
        simulated, fed = settings.simulated_accept_length, switches.glue_graph is not None
        self._verify = VerifyStep(model, caches, relay, batch=batch, rows=rows, simulated=simulated, fed=fed)
        self._before: list[Recorded] = []
        self._after: list[Recorded] = []
        self._outbox: Outbox | Ring = Outbox(batch, rows, model.device)
        middle: list[Recorded] = [self._verify]
        if switches.result_ring:
            self._outbox = Ring(batch, rows, model.device)
            middle.append(KeepStep(self._verify, self._outbox))
        if proposer:
            draft, seeds = proposer.draft, Seeds(*proposer.seeds)
            extend: Recorded = ExtendStep(model, draft, seeds, self._verify)
            self._before.append(DraftStep(model, draft, relay, seeds, self._verify, proposer.steps))
            following = middle if switches.fused_verify_extend else self._after
            following.append(extend if switches.extend_graph else Unrecorded(extend))
        if fed:
            by = glue if switches.glue_graph else None
            drafting = [RefillStep(self._verify, "draft", by), *self._before] if proposer else []
            self._before = [*drafting, RefillStep(self._verify, "verify", by)]
        self._middle = middle[0] if len(middle) == 1 else Fused(*middle)
        self._replays, self._sent = Replays(model.kernels, memory), Emitted(*self._verify.results, None)
        self._slots: tuple[int, ...] = ()

    def __call__(
        self,
        slots: Sequence[int],
        requests: Sequence[Slot] = (),  # noqa: ARG002
        schedule: Schedule | None = None,  # noqa: ARG002
    ) -> Emitted:
        """Queue one step of `slots`; nothing is planned here."""
        if tuple(slots) != self._slots:
            self._slots = tuple(slots)
            self._verify.slots.copy_(torch.tensor(slots))
        for part in self._before:
            self._replays.step(part)
        self._sent.before_overwriting()
        self._replays.step(self._middle)
        self._sent = self._outbox.send(*self._verify.results)
        for part in self._after:
            self._replays.step(part)
        return self._sent


@dataclass(frozen=True)
class Flight:
    """A queued step: whose it is, by request and not by slot, which may be another's by the time it is read."""

    requests: tuple[tuple[int, Slot], ...]
    emitted: Emitted

    def of_any(self, running: Sequence[Slot]) -> bool:
        """Whether the step before is theirs, and not the one too many of requests that have ended."""
        return any(request is one for _, request in self.requests for one in running)


class GraphExecutor(StepExecutor):
    """Kernels must be the device variants: of DSPARK's operators, too, where `proposer` is its."""

    def __init__(
        self,
        model: Ling,
        caches: Caches,
        proposer: NextnProposer | DsparkProposer | None,
        *,
        max_context: int,
        chunk: int,
        rule: Rule = RULES["classic"],
        settings: GraphSettings,
    ) -> None:
        super().__init__(model, caches, proposer, max_context=max_context, chunk=chunk, rule=rule)
        blocks = isinstance(proposer, DsparkProposer)
        one = BLOCK_VARIANTS if blocks else DEVICE_VARIANTS
        if missing := missing_variants(model.kernels, one if model.ranks.size == 1 else RANK_VARIANTS):
            raise ConfigError(f"graphs need the device variants of {', '.join(missing)}: kernels.OPERATOR=triton")
        settings.check(window=self.window, blocks=blocks, fastest=fastest())
        self._settings, self._drafting, self._pdl = settings, proposer, settings.pdl or fastest()
        self._memory = GraphMemory(None if settings.memory_mib is None else settings.memory_mib * MIB)
        self._glue = Glue(self._memory.record)
        longest = max_context + 3 * self.window
        self._relay = Relay(caches.slots + 1, drafts=self.window - 1, longest=longest, device=model.device)
        self._graphs: dict[int, GreedyStep | TieredStep] = {}
        self._flight: Flight | None = None
        self._slack, self._replayed, self._eager_steps = Slack(), 0, 0

    def prefill(self, slot: int) -> PrefillOutput:
        out = super().prefill(slot)
        if out.done:
            request = self._slots[slot]
            self._relay.admit(slot, self._caches, length=request.length, token=request.bonus)
        return out

    def decode(self, slots: Sequence[int]) -> dict[int, StepOutput]:
        """One step of `slots`; under overlap what returns is the step before, of those still running."""
        requests = [self._slots[slot] for slot in slots]
        if any(one.asked.sampling.temperature > 0 or one.asked.logprobs is not None for one in requests):
            return self._land() if self._flight else self._eager(slots, requests)
        if self._settings.seq_lens_pin:
            self._relay.lengths.tolist()
        behind = self._flight is not None and self._flight.of_any(requests)
        dry = behind and self._idle()
        with pdl(self._pdl):
            emitted = self._step_of(len(slots))(slots, requests, self.schedule)
        flight = Flight(tuple(zip(slots, requests, strict=True)), emitted)
        self._replayed += 1
        begin = time.perf_counter()
        outputs = self._land()
        if behind:
            self._slack.note((time.perf_counter() - begin) * 1e3, dry=dry)
        self._flight = flight
        return outputs if self._settings.overlap else self._land()

    def _idle(self) -> bool:
        """Whether the device has done all that was queued; asking makes nobody wait."""
        return self._model.device.type != "cuda" or torch.cuda.current_stream().query()

    def executor_report(self) -> dict[str, Any]:
        """How steps ran since the last reset, and what the host had to spare beside those that were replayed."""
        settings = self._settings
        chosen = {
            "overlap": settings.overlap,
            "seq_lens_pin": settings.seq_lens_pin,
            "pdl": self._pdl,
            "fused_verify_extend": settings.switches.fused_verify_extend,
            "extend_graph": settings.switches.extend_graph,
            "glue_graph": self._refilled(),
            "result_ring": settings.switches.result_ring,
        }
        counted = {"replayed": self._replayed, "eager": self._eager_steps, "slack": self._slack.report()}
        return super().executor_report() | {
            "path": "graphs",
            "graph_memory": self._memory.report(),
            **chosen,
            **counted,
        }

    def _refilled(self) -> str:
        """How what a step looks up by slot came to be there; a glue graph that could not be recorded is none."""
        wanted = self._settings.switches.glue_graph
        if wanted is None:
            return "inside"
        return "on" if wanted and self._glue.replays and not self._glue.disabled else "off"

    def reset_counters(self) -> None:
        super().reset_counters()
        self._replayed = self._eager_steps = 0
        self._slack = Slack()

    def _eager(self, slots: Sequence[int], requests: list[Slot]) -> dict[int, StepOutput]:
        self._eager_steps += 1
        outputs = super().decode(slots)
        for slot, request in zip(slots, requests, strict=True):
            self._relay.put(slot, length=request.length, token=request.bonus)
        return outputs

    def _step_of(self, batch: int) -> GreedyStep | TieredStep:
        if batch not in self._graphs:
            self._graphs[batch] = self._new_step(batch)
        return self._graphs[batch]

    def _new_step(self, batch: int) -> GreedyStep | TieredStep:
        model, caches, relay, drafting = self._model, self._caches, self._relay, self._drafting
        settings, memory = self._settings, self._memory
        if not isinstance(drafting, DsparkProposer):
            return GreedyStep(model, caches, relay, drafting, batch, settings, memory, self._glue)
        step = TieredStep(model, caches, relay, drafting, batch, settings, memory)
        if model.device.type == "cuda" and self.schedule and self.schedule.reads != "nothing":
            step.prepare()
        return step

    def speculation_report(self) -> dict[str, Any] | None:
        """Marked where acceptance is simulated."""
        report, length = super().speculation_report(), self._settings.simulated_accept_length
        return report and (report | ({"simulated_accept_length": length} if length else {}))

    def _land(self) -> dict[int, StepOutput]:
        """Read the step in flight, for the requests that are still there."""
        flight, self._flight = self._flight, None
        if flight is None:
            return {}
        outputs = {}
        for (slot, request), tokens in zip(flight.requests, flight.emitted.read(), strict=True):
            if self._slots.get(slot) is request:
                request.length += len(tokens)
                request.bonus = tokens[-1]
                outputs[slot] = StepOutput(tuple(tokens), None, len(tokens) - 1, self.window - 1)
        rows = flight.emitted.tokens.shape[1]
        self._counts.add(len(outputs) * rows, (rows,) * len(outputs), [len(out.tokens) for out in outputs.values()])
        return outputs

    def _worst_case(self, prompt_tokens: int, max_new_tokens: int) -> int:
        """A step more than an eager executor's: an ended request may run one too many."""
        return super()._worst_case(prompt_tokens, max_new_tokens) + self.window * self._settings.overlap
