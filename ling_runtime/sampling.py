"""How one request wants its tokens: SGLang's key names, checked once at the border and frozen.

The surprise: penalties, grammars and n > 1 are known keys although the runtime has none of them. Their neutral values
are accepted, because SGLang's clients send them by default, and any other value is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

from ling_runtime.fields import Fields
from ling_runtime.refusal import Refusal

GREEDY_BELOW = 1e-6
"""SGLang's threshold: a temperature below it is greedy."""

MAX_STOP_STRINGS = 32
"""SGLang's limit; each stop string is searched for after every token."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_new_tokens": (0,),
    "n": (1,),
    "beam_width": (1,),
    "json_schema": ("",),
    "regex": ("",),
    "ebnf": ("",),
    "structural_tag": ("",),
    "stop_regex": ("", []),
    "logit_bias": ({},),
    "custom_params": ({},),
    "watermark": (),
}

WITHOUT_EFFECT = ("spaces_between_special_tokens", "stream_interval")
"""Byte-level tokenizers put no spaces between tokens, and every decode step is streamed."""


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    max_new_tokens: int | None = None
    """As asked for: a context without room for it refuses the request."""
    default_new_tokens: int | None = 128
    """Limit when `max_new_tokens` is None, or what the context has room for if that is less; None: no other limit."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    """Switches `stop_token_ids` off too, as SGLang does."""
    sampling_seed: int | None = None
    skip_special_tokens: bool = True
    no_stop_trim: bool = False

    def __post_init__(self) -> None:
        _require("temperature", self.temperature, self.temperature >= 0.0, "at least 0")
        _require("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "in (0, 1]")
        _require("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "in [0, 1]")
        _require("top_k", self.top_k, self.top_k == -1 or self.top_k >= 1, "-1 (off) or at least 1")
        _require("stop", len(self.stop), len(self.stop) <= MAX_STOP_STRINGS, f"at most {MAX_STOP_STRINGS} strings")
        _require("stop", "''", "" not in self.stop, "non-empty strings")
        _require("stop", "half a surrogate pair", all(map(_is_unicode, self.stop)), "Unicode text")

    @classmethod
    def from_json(cls, raw: object) -> SamplingParams:
        """Read SGLang's `sampling_params`; Refusal for unknown keys, wrong types and values that are not supported."""
        fields = Fields("sampling_params", {} if raw is None else raw)
        explicit_null = isinstance(raw, dict) and "max_new_tokens" in raw
        fields.neutral(NEUTRAL)
        fields.ignore(WITHOUT_EFFECT)
        params = cls(
            max_new_tokens=fields.integer("max_new_tokens", None, low=0),
            default_new_tokens=None if explicit_null else cls.default_new_tokens,
            temperature=fields.number("temperature", cls.temperature),
            top_p=fields.number("top_p", cls.top_p),
            top_k=fields.integer("top_k", cls.top_k),
            min_p=fields.number("min_p", cls.min_p),
            stop=fields.strings("stop"),
            stop_token_ids=fields.integers("stop_token_ids"),
            ignore_eos=fields.boolean("ignore_eos", cls.ignore_eos),
            sampling_seed=fields.integer("sampling_seed", cls.sampling_seed),
            skip_special_tokens=fields.boolean("skip_special_tokens", cls.skip_special_tokens),
            no_stop_trim=fields.boolean("no_stop_trim", cls.no_stop_trim),
        )
        fields.finish()
        return params

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _require(key: str, value: object, holds: bool, allowed: str) -> None:
    if not holds:
        raise Refusal(f"sampling_params: {key}={value} is not allowed; {key} must be {allowed}", param=key)
