"""The body of a /generate answer, grown as JSON text: what each update adds is encoded once and never again.

A stream repeats the whole text, all ids and all logprobs in every chunk, because SGLang's protocol is cumulative. The
surprise: encoding them anew each step would cost more than the step's own Python, so the arrays are kept as JSON
fragments, and rendering a chunk only joins strings.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ling_runtime.executor.interface import TokenLogprob
    from ling_runtime.request import Request, Speculation, Update


class Payload:
    def __init__(self, request: Request, *, weight_version: str) -> None:
        self._request = request
        self._weight_version = weight_version
        self._text = ""
        self._ids = ""
        self._tokens = 0
        self._last: Update | None = None
        self._arrays = _empty_arrays(request)

    def add(self, update: Update) -> None:
        self._text += json.dumps(update.text)[1:-1]
        self._ids = _joined(self._ids, map(str, update.tokens))
        self._tokens += len(update.tokens)
        self._last = update
        self._extend("input", update.prompt_logprobs)
        self._extend("output", update.logprobs)

    def render(self) -> bytes:
        """The answer so far."""
        arrays = "".join(f', "{name}": [{items}]' for name, items in self._arrays.items())
        meta = json.dumps(self._meta())[:-1]
        return f'{{"text": "{self._text}", "output_ids": [{self._ids}], "meta_info": {meta}{arrays}}}}}'.encode()

    def _meta(self) -> dict[str, object]:
        assert self._last is not None, "nothing to render yet"
        finish = self._last.finish
        meta: dict[str, object] = {
            "id": self._request.id,
            "finish_reason": None if finish is None else finish.to_json(),
            "prompt_tokens": len(self._request.prompt),
            "completion_tokens": self._tokens,
            "cached_tokens": 0,
            "weight_version": self._weight_version,
        }
        if finish is not None:
            meta["e2e_latency"] = self._last.latency_s
        if self._last.speculation is not None:
            meta |= speculation_json(self._last.speculation, self._tokens)
        return meta

    def _extend(self, side: str, scored: tuple[TokenLogprob, ...]) -> None:
        if not scored:
            return
        name = f"{side}_token_logprobs"
        self._arrays[name] = _joined(self._arrays[name], (_entry(item.logprob, item.token) for item in scored))
        name = f"{side}_top_logprobs"
        if name in self._arrays:
            rows = (f"[{', '.join(_entry(*pair) for pair in item.top)}]" for item in scored)
            self._arrays[name] = _joined(self._arrays[name], rows)


def _empty_arrays(request: Request) -> dict[str, str]:
    """The arrays that were asked for; the first prompt position has a token and no logprob, as with SGLang."""
    if request.logprobs is None:
        return {}
    arrays = dict.fromkeys(("input_token_logprobs", "output_token_logprobs"), "")
    if request.logprobs:
        arrays |= dict.fromkeys(("input_top_logprobs", "output_top_logprobs"), "")
    start = request.logprob_start
    if start is not None and start < len(request.prompt):
        arrays["input_token_logprobs"] = f"[null, {request.prompt[start]}, null]"
        if request.logprobs:
            arrays["input_top_logprobs"] = "null"
    return arrays


def speculation_json(counts: Speculation, completion_tokens: int) -> dict[str, object]:
    """SGLang's keys and meanings: its accept length counts the first token, which came from the prompt's last chunk.

    An answer that ended before its first decode step has counts of zero and no ratios.
    """
    meta: dict[str, object] = {
        "spec_num_correct_drafts": counts.correct_drafts,
        "spec_num_proposed_drafts": counts.proposed_drafts,
        "spec_verify_ct": counts.verify_steps,
        "spec_correct_drafts_histogram": list(counts.histogram),
    }
    if counts.proposed_drafts:
        meta["spec_accept_rate"] = counts.correct_drafts / counts.proposed_drafts
    if counts.verify_steps:
        meta["spec_accept_length"] = completion_tokens / counts.verify_steps
    return meta


def _entry(logprob: float, token: int) -> str:
    return f"[{json.dumps(logprob)}, {token}, null]"


def _joined(head: str, items: Iterable[str]) -> str:
    tail = ", ".join(items)
    return f"{head}, {tail}" if head and tail else head or tail
