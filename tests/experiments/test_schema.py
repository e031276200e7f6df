"""The public keys, frozen: a new or renamed one needs an edit to a list that a reviewer sees."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.comparison.spec import CampaignSpec, Entry
from experiments.composition import build, refuse_unknown
from experiments.errors import ConfigError
from experiments.schema import Cells, schema_of
from experiments.spec import CellSpec, ChangeSpec, StudySpec, TaskSpec

KEYS = Path(__file__).parent / "golden/keys.txt"


def keys(node: Any, prefix: str = "") -> list[str]:
    if not OmegaConf.is_dict(node):
        return [prefix[:-1]]
    inner = [
        key
        for name in node
        for key in keys(None if OmegaConf.is_missing(node, name) else node[name], f"{prefix}{name}.")
    ]
    return inner or [prefix[:-1]]


def test_the_public_keys_are_the_listed_ones() -> None:
    schema = OmegaConf.structured(schema_of(CellSpec, StudySpec, Cells))
    assert sorted(keys(schema)) == KEYS.read_text().split()


def test_the_schema_has_every_field_of_the_spec_with_its_default() -> None:
    schema = OmegaConf.structured(schema_of(ChangeSpec))
    assert {field.name: schema[field.name] for field in fields(ChangeSpec)} == vars(ChangeSpec())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("gate.parity_token", 4, "Key 'parity_token' not in"),
        ("gate.parity_tokens", "many", "could not be converted to Integer"),
        ("engine.extra_args", "--flag", "[Ii]nvalid value"),
        ("task.floor", "high", "could not be converted to Float"),
    ],
)
def test_a_key_or_a_type_that_is_not_there_is_refused(key: str, value: object, message: str) -> None:
    schema = OmegaConf.structured(schema_of(CellSpec))
    OmegaConf.set_struct(schema, True)
    with pytest.raises(OmegaConfBaseException, match=message):
        OmegaConf.update(schema, key, value)


def test_choices_are_checked_and_optional_ones_may_be_null() -> None:
    values = vars(ChangeSpec())
    assert build(ChangeSpec, values) == ChangeSpec()
    assert build(ChangeSpec, values | {"rounding": "declared"}).rounding == "declared"
    with pytest.raises(ConfigError, match=r"change\.expect: 'slower' is not one of faster, equal"):
        build(ChangeSpec, values | {"expect": "slower"}, "change.")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_quantity_may_be_infinite_or_none(value: float) -> None:
    for spec, key in [(TaskSpec, "floor"), (TaskSpec, "timeout_s"), (ChangeSpec, "accept_bound")]:
        with pytest.raises(ConfigError, match=rf"group\.{key}: -?(nan|inf) is no quantity; allowed: finite numbers"):
            build(spec, asdict(spec()) | {key: value}, "group.")
    changes = [asdict(Entry(name="a", overrides=())) | {"accept_bound": value}]
    with pytest.raises(ConfigError, match=r"campaign\.changes\[0\]\.accept_bound: .* is no quantity"):
        build(CampaignSpec, {"changes": changes, "leave_one_out": True}, "campaign.")


def test_a_key_forced_in_with_a_plus_is_refused_if_nobody_reads_it() -> None:
    refuse_unknown({"study": "s", "cells": []}, StudySpec, Cells)
    with pytest.raises(ConfigError, match=r"kernel: no such key; allowed: .*kernels"):
        refuse_unknown({"kernel": {"lm_head": "bf16"}}, StudySpec, CellSpec)
    with pytest.raises(ConfigError, match=r"tracking\.retries: no such key; allowed: enabled, uri"):
        build(StudySpec, {"study": "s", "output_dir": "outputs", "tracking": {"retries": 3}})
