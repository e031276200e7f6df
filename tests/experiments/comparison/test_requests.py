from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer

from analysis.pairs import Answer
from experiments.clients.generate import Generation
from experiments.comparison.load import answer, block_harness
from experiments.comparison.requests import Request, requests
from experiments.errors import MeasurementError
from experiments.ruler import harness
from experiments.spec import SpeculationSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.spec import CellSpec

TEXTS = ("one apple", "two pears and a plum", "three")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    path = tmp_path / "data.json"
    rows = [{"conversations": [{"value": text}, {"value": "answer"}]} for text in TEXTS]
    path.write_text(json.dumps([{"conversations": [{"value": "one turn only"}]}, *rows]))
    return path


def test_text_workloads_ask_the_first_turns_in_their_order(make_cell: Callable[..., CellSpec], dataset: Path) -> None:
    asked = requests(make_cell(), dataset)
    assert [request.text for request in asked] == ["one apple", "two pears and a plum"]
    assert len({request.name for request in asked}) == 2


def test_long_prompts_are_tiled_to_their_length(make_cell: Callable[..., CellSpec], dataset: Path) -> None:
    cell = make_cell()
    cell = replace(cell, workload=replace(cell.workload, dataset_name="random", input_len=40))
    asked = requests(cell, dataset)
    tokenizer = Tokenizer.from_file(f"{cell.model.path}/tokenizer.json")
    ids = tuple(tokenizer.encode(TEXTS[0]).ids)
    assert asked[0].input_ids is not None
    assert len(asked[0].input_ids) == 40
    assert asked[0].input_ids[: 2 * len(ids)] == ids * 2


def test_drawn_ids_are_the_seed_s(make_cell: Callable[..., CellSpec], dataset: Path) -> None:
    cell = make_cell()
    cell = replace(cell, workload=replace(cell.workload, dataset_name="random-ids", input_len=9))
    again = replace(cell, workload=replace(cell.workload, seed=2))
    assert requests(cell, dataset) == requests(cell, dataset) != requests(again, dataset)


def generation(**values: object) -> Generation:
    whole = {
        "text": "x",
        "output_ids": (1,) * 16,
        "prompt_tokens": 3,
        "completion_tokens": 16,
        "finish_reason": "length",
        "matched": None,
        "spec_verify_ct": 5,
        "ttft_s": 0.1,
        "latency_s": 0.6,
        "output_top_logprobs": None,
        "input_top_logprobs": None,
        "input_token_logprobs": None,
        "output_token_logprobs": None,
    }
    return Generation(**(whole | values))  # type: ignore[arg-type]


def test_an_answer_is_taken_only_with_its_counts(make_cell: Callable[..., CellSpec]) -> None:
    cell, request = make_cell(), Request(name="p", text="x")
    got = answer(request, generation(), cell, arm="candidate", block=2)
    assert got == Answer(arm="candidate", block=2, prompt="p", tokens=16, steps=5, decode_s=0.5)
    plain = replace(cell, speculation=SpeculationSpec())
    assert answer(request, generation(spec_verify_ct=None), plain, arm="baseline", block=0).steps == 15
    for broken in ({"spec_verify_ct": None}, {"completion_tokens": 15}, {"ttft_s": None}):
        with pytest.raises(MeasurementError):
            answer(request, generation(**broken), cell, arm="baseline", block=0)


def test_the_ruler_says_which_client_timed_the_blocks() -> None:
    assert block_harness().startswith(f"{harness()}+blocks-")
