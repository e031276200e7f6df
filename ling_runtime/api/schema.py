"""The JSON Schema of every request body, for GET /openapi.json.

A client can be generated from it, and a fuzzer learns from it what to break. The surprise: nothing is validated with
it. Bodies are read key by key (fields.py), whose errors name what is allowed; the tables of keys that are accepted
without effect are shared with the readers, and a test holds the keys and types of the rest to what the readers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ling_runtime import profiler, sampling
from ling_runtime.api import generate, openai
from ling_runtime.api.service import MAX_PROMPTS
from ling_runtime.fields import INT64

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Schema = dict[str, Any]

BOOLEAN: Schema = {"type": ["boolean", "null"]}
STRING: Schema = {"type": ["string", "null"]}
OBJECT: Schema = {"type": ["object", "null"]}
NULL: Schema = {"type": "null"}
ANYTHING: Schema = {"description": "Accepted and ignored."}
ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": STRING,
                "code": {"type": "integer"},
            },
        }
    },
}


def integer(low: int = -INT64, high: int = INT64 - 1) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def any_of(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def array(items: Schema, **limits: object) -> Schema:
    return {"type": "array", "items": items, **limits}


def neutral(values: Mapping[str, tuple[object, ...]]) -> dict[str, Schema]:
    """Keys of features that the server lacks, each at the values that mean "off"."""
    return {key: {"enum": [None, *allowed], "description": "Not supported here."} for key, allowed in values.items()}


def ignored(keys: Iterable[str]) -> dict[str, Schema]:
    return dict.fromkeys(keys, ANYTHING)


def closed(properties: Mapping[str, Schema], *required: str, **rest: object) -> Schema:
    """An object without other keys."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
        **rest,
    }


PROMPT: Schema = {"type": "string", "minLength": 1}
BATCH = {"minItems": 1, "maxItems": MAX_PROMPTS}
STOP_STRING: Schema = {"type": "string", "minLength": 1}
STOP = any_of(STOP_STRING, array(STOP_STRING, maxItems=sampling.MAX_STOP_STRINGS), NULL)
TEXT_PART: Schema = {"type": "object", "properties": {"type": {"enum": ["text"]}, "text": STRING}, "required": ["type"]}
CONTENT = any_of({"type": "string"}, array(TEXT_PART))
PROFILE = closed(
    {
        "output_dir": STRING,
        "profile_prefix": STRING,
        "activities": any_of({"enum": list(profiler.ACTIVITIES)}, array({"enum": list(profiler.ACTIVITIES)}), NULL),
        "with_stack": BOOLEAN,
        "record_shapes": BOOLEAN,
        **neutral(profiler.NEUTRAL),
        **ignored(("profile_id",)),
    }
)


@dataclass(frozen=True)
class Bodies:
    """The bodies that one server takes, with the limits of its model."""

    vocab_size: int
    model: str

    def generate(self) -> Schema:
        params, rid = self._sampling(), STRING | {"maxLength": generate.MAX_RID}
        prompts = {
            "text": any_of(PROMPT, array(PROMPT, **BATCH), NULL),
            "input_ids": any_of(self._ids(), array(self._ids(), **BATCH), NULL),
        }
        rest = {
            "sampling_params": any_of(params, array(any_of(params, NULL)), NULL),
            "rid": any_of(array(rid), rid),
            "stream": BOOLEAN,
            "return_logprob": BOOLEAN,
            "top_logprobs_num": integer(0, self.vocab_size),
            "logprob_start_len": integer(-1),
            **neutral(generate.NEUTRAL),
            **ignored(generate.WITHOUT_EFFECT),
        }
        return closed(prompts | rest, oneOf=[_given("text", without="input_ids"), _given("input_ids", without="text")])

    def completions(self) -> Schema:
        prompt = any_of(PROMPT, self._ids(), array(any_of(PROMPT, self._ids()), **BATCH))
        return closed({"prompt": prompt, "max_tokens": integer(1), **self._openai()}, "prompt")

    def chat(self) -> Schema:
        message = closed({"role": {"type": "string"}, "content": CONTENT, "name": ANYTHING}, "role", "content")
        own = {
            "messages": array(message, minItems=1),
            "chat_template_kwargs": OBJECT,
            "max_tokens": integer(1),
            "max_completion_tokens": integer(1),
        }
        return closed(own | self._openai(), "messages")

    def _ids(self) -> Schema:
        return array({"type": "integer", "minimum": 0, "maximum": self.vocab_size - 1}, minItems=1)

    def _wishes(self) -> dict[str, Schema]:
        """The keys of sampling that all three calls spell alike."""
        return {
            "temperature": {"type": ["number", "null"], "minimum": 0, "description": "Below 1e-6: greedy."},
            "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
            "top_k": any_of({"type": "integer", "minimum": 1, "maximum": INT64 - 1}, {"enum": [-1, None]}),
            "min_p": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
            "stop": STOP,
            "stop_token_ids": any_of(self._ids() | {"minItems": 0}, NULL),
            "ignore_eos": BOOLEAN,
            "skip_special_tokens": BOOLEAN,
            "no_stop_trim": BOOLEAN,
        }

    def _sampling(self) -> Schema:
        own = {"max_new_tokens": integer(0), "sampling_seed": integer()}
        return closed(own | self._wishes() | neutral(sampling.NEUTRAL) | ignored(sampling.WITHOUT_EFFECT))

    def _openai(self) -> dict[str, Schema]:
        options = closed({"include_usage": BOOLEAN, "continuous_usage_stats": {"enum": [None, False]}})
        own = {
            "model": {"enum": [self.model, None]},
            "stream": BOOLEAN,
            "stream_options": any_of(options, NULL),
            "return_meta_info": BOOLEAN,
            "seed": integer(),
        }
        return own | self._wishes() | neutral(openai.NEUTRAL) | ignored(openai.WITHOUT_EFFECT)


def _given(key: str, *, without: str) -> Schema:
    """One of two keys that exclude each other; null is not given."""
    return {"required": [key], "properties": {key: {"not": NULL}, without: NULL}}
