"""What every route needs, and the one way from a prompt to a request.

Both APIs end here, so a prompt that is too long, an id outside the vocabulary or an impossible logprob position is
refused in one place and in the same words. The surprise: a stop string that spells a special token becomes a stop
token, because special tokens have no text to be found in.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from typing import TYPE_CHECKING

from ling_runtime.profiler import Profiler
from ling_runtime.refusal import Refusal
from ling_runtime.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ling_runtime.arguments import ServerConfig
    from ling_runtime.engine import Engine
    from ling_runtime.sampling import SamplingParams
    from ling_runtime.tokenizer import Tokenizer


MAX_PROMPTS = 4096
"""In one call; each is a request of its own, and a body of megabytes could ask for millions."""


def require_few(key: str, prompts: Sequence[object]) -> None:
    if len(prompts) > MAX_PROMPTS:
        raise Refusal(f"{key}: {len(prompts)} prompts in one call; allowed: {MAX_PROMPTS}", param=key)


class Service:
    """`architecture` holds config.json's `model_type` and `architectures`."""

    def __init__(
        self, config: ServerConfig, engine: Engine, tokenizer: Tokenizer, architecture: Mapping[str, object]
    ) -> None:
        self.config = config
        self.engine = engine
        self.tokenizer = tokenizer
        self.architecture = architecture
        self.profiler = Profiler()
        self.started = time.time()
        self._seeds = random.Random(config.random_seed)

    def request(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        logprobs: int | None = None,
        logprob_start: int = -1,
        add_special_tokens: bool = True,
    ) -> Request:
        """Resolve and check everything that depends on the model; Refusal names what does not fit."""
        ids = prompt if not isinstance(prompt, str) else self._encode(prompt, add_special_tokens=add_special_tokens)
        max_new_tokens = self._new_tokens(len(ids), sampling)
        self._check_ids("prompt", ids)
        self._check_ids("stop_token_ids", sampling.stop_token_ids)
        seed = self._seeds.getrandbits(63) if sampling.sampling_seed is None else sampling.sampling_seed
        return Request(
            id=request_id or uuid.uuid4().hex,
            prompt=tuple(ids),
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            seed=seed,
            stop_tokens=dict(self._stop_tokens(sampling)),
            logprobs=self._alternatives(logprobs),
            logprob_start=_logprob_start(logprobs, logprob_start, len(ids)),
        )

    def _encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]:
        """Text that cannot fit is refused before the seconds that encoding megabytes would hold up everybody else."""
        context = self.engine.executor.max_context
        if len(text) > context * self.tokenizer.longest_token:
            message = (
                f"The input ({len(text)} characters) is longer than the model's context length ({context} tokens)."
            )
            raise Refusal(message, param="prompt")
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _check_ids(self, key: str, ids: Sequence[int]) -> None:
        vocab_size = self.engine.executor.vocab_size
        for token in ids:
            if not 0 <= token < vocab_size:
                raise Refusal(f"{key}: id {token} is outside the vocabulary; allowed: 0 to {vocab_size - 1}", param=key)

    def _new_tokens(self, prompt_tokens: int, sampling: SamplingParams) -> int:
        context = self.engine.executor.max_context
        room = context - prompt_tokens
        if prompt_tokens == 0:
            raise Refusal("the prompt is empty; at least one token is needed", param="prompt")
        if room <= 0:
            raise Refusal(
                f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens).",
                param="prompt",
            )
        if sampling.max_new_tokens is None:
            return room if sampling.default_new_tokens is None else min(room, sampling.default_new_tokens)
        if sampling.max_new_tokens > room:
            raise Refusal(
                f"Requested token count exceeds the model's maximum context length of {context} tokens: "
                f"{prompt_tokens} tokens of input and max_new_tokens={sampling.max_new_tokens}.",
                param="max_new_tokens",
            )
        return sampling.max_new_tokens

    def _stop_tokens(self, sampling: SamplingParams) -> Iterable[tuple[int, int | str]]:
        if not sampling.ignore_eos:
            for token in itertools.chain(self.tokenizer.eos_ids, sampling.stop_token_ids):
                yield token, token
        for text in sampling.stop:
            special = self.tokenizer.special_id(text)
            if special is not None:
                yield special, text

    def _alternatives(self, logprobs: int | None) -> int | None:
        vocab_size = self.engine.executor.vocab_size
        if logprobs is not None and not 0 <= logprobs <= vocab_size:
            raise Refusal(f"top_logprobs_num={logprobs}: allowed: 0 to {vocab_size}", param="top_logprobs_num")
        return logprobs


def _logprob_start(logprobs: int | None, start: int, prompt_tokens: int) -> int | None:
    """None without prompt logprobs, which SGLang spells -1."""
    if logprobs is None or start == -1:
        return None
    if not 0 <= start <= prompt_tokens:
        raise Refusal(
            f"logprob_start_len={start}: allowed: -1 (no prompt logprobs) or 0 to {prompt_tokens}, the prompt's length",
            param="logprob_start_len",
        )
    return start
