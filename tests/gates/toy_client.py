"""An engine in twenty lines, in process: ids are bytes, and logits are a pure function of the context and the fault.

The gates must catch each fault; the ones that only leak between requests need the load of the pollution gate to show.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.clients.generate import Generation, ProtocolError

LETTERS = 26


def decode(ids: tuple[int, ...]) -> str:
    return bytes(ids).decode("latin-1")


@dataclass(kw_only=True)
class ToyClient:
    """Stands in for a GenerateClient. Faults: noise, rotate_after, pollute, jitter, plain, empty,
    no_logprobs, dead."""

    fault: str = ""
    amount: float = 0.0
    sampled: int = 0
    calls: list[dict[str, Any]] = field(default_factory=list)
    flushes: int = 0

    def flush_cache(self) -> None:
        self.flushes += 1
        self.sampled = 0

    def generate(self, **call: Any) -> Generation:
        self.calls.append(call)
        if self.fault == "dead":
            raise ProtocolError("POST /generate: the toy is dead")
        prompt = tuple(call["input_ids"]) if call.get("input_ids") else tuple(call["text"].encode("latin-1", "replace"))
        if call.get("temperature", 0.0) > 0:
            self.sampled += 1
        ids, rows = self.continuation(prompt, 0 if self.fault == "empty" else call["max_new_tokens"])
        start, top = call.get("logprob_start_len", -1), call.get("top_logprobs_num", 0)
        scored = range(start, len(prompt)) if call.get("return_logprob") and start >= 0 else range(0)
        before = {i: self.logprobs(prompt[:i]) for i in scored if i > start}
        asked = call.get("return_logprob") and self.fault != "no_logprobs"
        return Generation(
            text=decode(ids),
            output_ids=ids,
            prompt_tokens=len(prompt),
            completion_tokens=len(ids),
            finish_reason="length",
            matched=None,
            spec_verify_ct=None,
            ttft_s=None,
            latency_s=0.0,
            output_top_logprobs=tuple(best(row, top) for row in rows) if asked else None,
            input_top_logprobs=tuple(best(before[i], top) if i in before else () for i in scored) if asked else None,
            input_token_logprobs=tuple(
                (float(before[i][prompt[i]]) if i in before else None, prompt[i]) for i in scored
            ),
            output_token_logprobs=None,
        )

    def continuation(self, prompt: tuple[int, ...], length: int) -> tuple[tuple[int, ...], list[np.ndarray]]:
        ids: tuple[int, ...] = ()
        rows: list[np.ndarray] = []
        for position in range(length):
            rows.append(self.logprobs(prompt + ids))
            rotated = self.fault == "rotate_after" and position >= self.amount
            ids = (*ids, int(np.argsort(-rows[-1])[1 if rotated else 0]))
        return ids, rows

    def logprobs(self, context: tuple[int, ...]) -> np.ndarray:
        logits = noise(context, "logits")
        if self.fault == "noise":
            logits = logits + np.float32(self.amount) * noise(context, "noise")
        if self.fault == "pollute" and self.sampled:
            logits = logits + noise(context, f"left over from {self.sampled} requests")
        if self.fault == "jitter":
            logits = logits + noise(context, str(len(self.calls)))
        if self.fault == "plain" and not self.calls[-1].get("return_logprob"):
            logits = logits + noise(context, "on the path without logprobs")
        return (logits - np.log(np.exp(logits.astype(np.float64)).sum())).astype(np.float32)


def noise(context: tuple[int, ...], salt: str) -> np.ndarray:
    """256 float32 logits, of which only the letters are likely."""
    seed = hashlib.sha256(salt.encode() + bytes(context[-12:])).digest()
    logits = np.full(256, -30, np.float32)
    logits[97 : 97 + LETTERS] = np.random.default_rng(list(seed)).normal(0, 2, LETTERS)
    return logits


def best(row: np.ndarray, count: int) -> tuple[tuple[float, int], ...]:
    return tuple((float(row[i]), int(i)) for i in np.argsort(-row, kind="stable")[:count])
