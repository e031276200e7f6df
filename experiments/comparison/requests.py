"""What the blocks of a comparison ask: the workload's prompts as bodies of /generate, each named by its own hash.

The surprise: a name is a hash of what is asked, so "the same prompt" in two arms, two blocks or two records is never a
matter of position in a file.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.spec import CellSpec


@dataclass(frozen=True, kw_only=True)
class Request:
    """Either text or ids."""

    name: str
    text: str | None = None
    input_ids: tuple[int, ...] | None = None


def requests(spec: CellSpec, dataset: Path) -> tuple[Request, ...]:
    """As many as the workload has prompts, in the order of its data."""
    load = spec.workload
    if load.dataset_name == "sharegpt":
        return tuple(Request(name=digest(text), text=text) for text in islice(_texts(dataset), load.num_prompts))
    assert load.input_len is not None, "checked with the configuration"
    rows = _drawn(spec, load.input_len) if load.dataset_name == "random-ids" else _tiled(spec, dataset, load.input_len)
    return tuple(Request(name=digest(json.dumps(ids)), input_ids=ids) for ids in islice(rows, load.num_prompts))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _texts(dataset: Path) -> Iterator[str]:
    """The first turns of conversations that have two."""
    for row in json.loads(dataset.read_text()):
        turns = row.get("conversations", row.get("conversation", ()))
        if len(turns) >= 2:
            yield turns[0]["value"]


def _tiled(spec: CellSpec, dataset: Path, length: int) -> Iterator[tuple[int, ...]]:
    """Each text's ids, repeated up to `length`, as SGLang's client does it."""
    tokenizer = _tokenizer(spec)
    for text in _texts(dataset):
        if ids := tokenizer.encode(text).ids:
            yield tuple((ids * (length // len(ids) + 1))[:length])


def _drawn(spec: CellSpec, length: int) -> Iterator[tuple[int, ...]]:
    size, generator = _tokenizer(spec).get_vocab_size(), random.Random(spec.workload.seed)
    while True:
        yield tuple(generator.randrange(size) for _ in range(length))


def _tokenizer(spec: CellSpec) -> Tokenizer:
    """Raises ConfigError for an id of a hub that cannot be reached and has not been reached before."""
    source = spec.model.tokenizer_path or spec.model.path
    if Path(source).is_dir():
        return Tokenizer.from_file(str(Path(source) / "tokenizer.json"))
    try:
        return Tokenizer.from_pretrained(source, revision=spec.model.revision or "main")
    except Exception as error:  # the tokenizers package raises Exception itself
        raise ConfigError("model.path", f"the tokenizer of {source} cannot be read here ({error})") from error
