"""The state of one request inside the engine: counts, text in the making, and the rules that end an answer.

The rules are applied token by token in order, so an answer does not depend on how many tokens a step delivered; those
after the end are dropped. The surprise: SGLang lets a stop string beat an end-of-sequence token that came earlier in
the same step. That would make the text depend on the speculation window, so here the earlier one wins.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ling_runtime.detokenizer import Detokenizer
from ling_runtime.request import Abort, Length, Speculation, Stop, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ling_runtime.executor.interface import PrefillOutput, StepOutput, TokenLogprob
    from ling_runtime.request import Finish, Request
    from ling_runtime.tokenizer import Tokenizer


class Completion:
    """Made on arrival, then touched by the engine thread only; `sink` receives its updates."""

    def __init__(self, request: Request, tokenizer: Tokenizer, window: int, sink: Callable[[Update], None]) -> None:
        self.request = request
        self.sink = sink
        self.slot: int | None = None
        self.arrived = time.perf_counter()
        self.first_token_at: float | None = None
        self.tokens = 0
        self.finished = False
        self._text = Detokenizer(
            tokenizer,
            request.sampling.stop,
            skip_special_tokens=request.sampling.skip_special_tokens,
            keep_stop=request.sampling.no_stop_trim,
        )
        self._prompt_logprobs: list[TokenLogprob] = []
        self._histogram = [0] * window
        self._verify_steps = self._correct = self._proposed = 0

    def prefilled(self, chunk: PrefillOutput) -> Update | None:
        """Take one chunk of the prompt; the last one gives the first token."""
        self._prompt_logprobs.extend(chunk.prompt_logprobs or ())
        if not chunk.done:
            return None
        assert chunk.token is not None
        self.first_token_at = time.perf_counter()
        return self._extend((chunk.token,), None if chunk.logprob is None else (chunk.logprob,))

    def decoded(self, step: StepOutput) -> Update:
        self._verify_steps += 1
        self._correct += step.correct_drafts
        self._proposed += step.proposed_drafts
        self._histogram[step.correct_drafts] += 1
        return self._extend(step.tokens, step.logprobs)

    def abort(self, message: str, status: int) -> Update:
        return self._update("", (), None, Abort(message, status))

    def _extend(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None) -> Update:
        if self.request.max_new_tokens == 0:  # scoring a prompt: the executor's token was not asked for
            return self._update("", (), None, Length(0))
        pieces: list[str] = []
        finish: Finish | None = None
        taken = 0
        while finish is None and taken < len(tokens):
            piece, finish = self._take(tokens[taken])
            pieces.append(piece)
            taken += 1
        return self._update("".join(pieces), tokens[:taken], None if logprobs is None else logprobs[:taken], finish)

    def _take(self, token: int) -> tuple[str, Finish | None]:
        self.tokens += 1
        matched = self.request.stop_tokens.get(token)
        if matched is not None:
            shown = self._text.push(token)[0] if self.request.sampling.no_stop_trim else ""
            return shown + self._text.close(), Stop(matched)
        text, stop = self._text.push(token)
        if stop is not None:
            return text, Stop(stop)
        if self.tokens >= self.request.max_new_tokens:
            return text + self._text.close(), Length(self.tokens)
        return text, None

    def _update(
        self, text: str, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] | None, finish: Finish | None
    ) -> Update:
        prompt_logprobs, self._prompt_logprobs = tuple(self._prompt_logprobs), []
        self.finished = finish is not None
        return Update(
            text=text,
            tokens=tuple(tokens),
            logprobs=tuple(logprobs or ()),
            prompt_logprobs=prompt_logprobs,
            finish=finish,
            latency_s=time.perf_counter() - self.arrived if self.finished else None,
            speculation=self._speculation() if self.finished else None,
        )

    def _speculation(self) -> Speculation | None:
        if len(self._histogram) == 1:
            return None
        return Speculation(
            verify_steps=self._verify_steps,
            correct_drafts=self._correct,
            proposed_drafts=self._proposed,
            histogram=tuple(self._histogram),
        )
