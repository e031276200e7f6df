"""The body of a /generate answer, grown as JSON text: what each update adds is encoded once and never again.

A stream repeats the whole text, all ids and all logprobs in every chunk, because SGLang's protocol is cumulative. The
surprise: encoding them anew each step would cost more than the step's own Python, so the arrays are kept as JSON
fragments, and rendering a chunk only joins strings.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ling_runtime.api.meta import meta_info

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ling_runtime.executor.interface import TokenLogprob
    from ling_runtime.request import Request, Update


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
        assert self._last is not None, "nothing to render yet"
        arrays = "".join(f', "{name}": [{items}]' for name, items in self._arrays.items())
        meta = json.dumps(meta_info(self._request, self._last, self._tokens, self._weight_version))[:-1]
        return f'{{"text": "{self._text}", "output_ids": [{self._ids}], "meta_info": {meta}{arrays}}}}}'.encode()

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


def _entry(logprob: float, token: int) -> str:
    return f"[{json.dumps(logprob)}, {token}, null]"


def _joined(head: str, items: Iterable[str]) -> str:
    tail = ", ".join(items)
    return f"{head}, {tail}" if head and tail else head or tail
