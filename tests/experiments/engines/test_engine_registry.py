"""Engines as everything else sees them: found by name, alike in what they answer, strangers' keys refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest

from experiments import ruler
from experiments.checks import checked
from experiments.child import ROOT
from experiments.clients.generate import GenerateClient
from experiments.engines.interface import OWN_KEYS
from experiments.engines.registry import ENGINES, engine_of
from experiments.errors import ConfigError
from experiments.spec import EngineSpec
from experiments.speculation import KEYS
from gates.change import classify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec


def test_every_engine_has_its_group_and_takes_known_keys_and_algorithms() -> None:
    for name, engine in ENGINES.items():
        assert engine.name == name
        assert (ROOT / "conf/engine" / f"{name}.yaml").is_file()
        assert set(engine.keys) <= set(OWN_KEYS) <= {field.name for field in fields(EngineSpec)}
        assert set(engine.algorithms) <= KEYS.keys()


def test_an_unknown_name_is_refused_with_those_there_are(make_cell: Callable[..., CellSpec]) -> None:
    with pytest.raises(ConfigError, match=r"engine\.name: 'mystery' is no engine; allowed: ling, sglang"):
        engine_of(make_cell(engine=EngineSpec(name="mystery")))


def test_an_algorithm_that_an_engine_lacks_is_refused_with_those_it_has(make_cell: Callable[..., CellSpec]) -> None:
    cell = make_cell()
    with pytest.raises(
        ConfigError, match=r"speculation\.algorithm: engine=ling has no ngram; allowed: none, nextn, ds"
    ):
        checked(replace(cell, speculation=replace(cell.speculation, algorithm="ngram")))


@pytest.mark.parametrize("name", ["ling", "sglang"])
def test_proof_has_the_same_keys_on_both_sides(make_cell: Callable[..., CellSpec], name: str) -> None:
    cell = checked(make_cell(engine=EngineSpec(name=name)))
    engine = engine_of(cell)
    assert engine.expected(cell).keys() == engine.observed(cell, {}, "").keys()
    assert set(engine.observed(cell, {}, "").values()) != set(engine.expected(cell).values())
    client = engine.client(cell, "http://127.0.0.1:1")
    assert isinstance(client, GenerateClient)
    client.close()


def test_keys_of_an_engine_change_what_their_flags_change(make_cell: Callable[..., CellSpec]) -> None:
    base = make_cell(engine=EngineSpec(name="sglang", tp_size=2))

    def class_of(**keys: object) -> str:
        return classify(base, replace(base, engine=replace(base.engine, **keys)), ()).class_  # type: ignore[arg-type]

    assert class_of() == "same"
    assert class_of(tp_size=4) == "model"
    assert class_of(quantization="fp8") == "model"
    assert class_of(attention_backend="fa3") == "rounding"
    assert class_of(flags={"decode-attention-backend": "fa3"}) == "rounding"
    assert class_of(flags={"disable-radix-cache": ""}) == "same"
    assert class_of(flags={"speculative-draft-attention-backend": "triton"}) == "speculation"


def test_a_source_is_known_by_its_content_or_by_its_revision(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert ruler.source_revision(str(tmp_path)) == ruler.model_revision(tmp_path)
    assert ruler.source_revision("org/name") == "org/name@main"
    assert ruler.source_revision("org/name", "v2") == "org/name@v2"
