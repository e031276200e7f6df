"""The border of sampling parameters: SGLang's names and defaults, and refusals that name the key."""

from __future__ import annotations

from typing import Any

import pytest

from ling_runtime.refusal import Refusal
from ling_runtime.sampling import SamplingParams


def test_defaults_are_sglangs() -> None:
    params = SamplingParams.from_json(None)
    assert (params.max_new_tokens, params.default_new_tokens) == (None, 128)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1.0, 1.0, -1, 0.0)
    assert params == SamplingParams.from_json({})


def test_null_means_not_given_except_for_the_length() -> None:
    params = SamplingParams.from_json({"temperature": None, "stop": None, "ignore_eos": None, "max_new_tokens": None})
    assert params == SamplingParams(default_new_tokens=None)


def test_reads_every_effective_key() -> None:
    params = SamplingParams.from_json(
        {
            "max_new_tokens": 5,
            "temperature": 0,
            "top_p": 0.5,
            "top_k": 3,
            "min_p": 0.1,
            "stop": "end",
            "stop_token_ids": [4],
            "ignore_eos": True,
            "sampling_seed": -9,
            "skip_special_tokens": False,
            "no_stop_trim": True,
        }
    )
    assert params == SamplingParams(
        max_new_tokens=5,
        default_new_tokens=None,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        stop=("end",),
        stop_token_ids=(4,),
        ignore_eos=True,
        sampling_seed=-9,
        skip_special_tokens=False,
        no_stop_trim=True,
    )
    assert params.greedy


def test_neutral_penalties_are_accepted() -> None:
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0, "repetition_penalty": 1.0, "n": 1, "min_new_tokens": 0}
    assert SamplingParams.from_json({**neutral, "regex": None, "json_schema": ""}) == SamplingParams()


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"n": 2}, "n"),
        ({"regex": "a+"}, "regex"),
        ({"temprature": 0.0}, "temprature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"stop": [1]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 33}, "stop"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"sampling_seed": 2**63}, "sampling_seed"),
    ],
)
def test_refusals_name_the_key(raw: dict[str, Any], key: str) -> None:
    with pytest.raises(Refusal, match=key) as refusal:
        SamplingParams.from_json(raw)
    assert refusal.value.param == key
    assert refusal.value.status == 400


def test_an_unknown_key_is_told_the_allowed_ones() -> None:
    with pytest.raises(Refusal, match=r"unknown key 'max_tokens'; allowed: .*max_new_tokens.*temperature"):
        SamplingParams.from_json({"max_tokens": 4})
