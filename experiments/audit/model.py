"""What a checkpoint is, as far as a launch depends on it: experts, quantisation, bytes, and a draft's trained block.

Read from its own config.json where it lies on this machine, else from models.json, which has the public models of the
presets by their hub names. The surprise: models.json holds no answers but parts of config.json, so that one reading
serves both; and sizes there are the least there can be, since a rule may only call impossible what surely is.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
DSPARK_SUBFOLDER = "dspark"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
"""A parameter's, by dtype or quantisation; others have 4 bits."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    count: int
    active: int
    """Routed ones, for each token."""
    width: int
    hidden: int
    bytes: float
    """Of one, whole."""

    def most_mb(self, rows: int, ranks: int) -> float:
        """Upper bound of what a layer's routed experts make one rank read for `rows` tokens, in MB (1e6)."""
        return min(self.active * rows, self.count) * self.bytes / ranks / 1e6

    def expected_mb(self, rows: int, ranks: int) -> float:
        """The same for uniform and independent routing."""
        distinct = self.count * (1 - (1 - self.active / self.count) ** rows)
        return distinct * self.bytes / ranks / 1e6


@dataclass(frozen=True, kw_only=True)
class Model:
    name: str
    source: str
    weight_bytes: int | None
    nextn_bytes: int = 0
    """Of its own draft layers, which only NEXTN loads; 0 where they are among the others."""
    experts: Experts | None = None
    quant_block: tuple[int, int] | None = None
    linear_attention: bool = False
    """Layers with a recurrent state (KDA)."""
    nextn_layers: int | None = None
    """Its own draft layers; None: its config does not say."""
    bundles_dspark: bool = False
    block_size: int | None = None
    """A draft's, as trained."""
    causal: bool = False
    """A draft whose rows see only those before them."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """Published accuracies by harness."""


@functools.cache
def model(path: str | None) -> Model | None:
    """Of a directory or a hub name; None where nothing is known."""
    if path is None:
        return None
    if (Path(path) / CONFIG).is_file():
        return local(Path(path))
    entry = next((one for name, one in published().items() if path.lower().endswith(name.lower())), None)
    if entry is None:
        return None
    sizes = {key: entry[key] for key in ("weight_bytes", "nextn_bytes", "scores")}
    return read(entry["config"], name=path, source=f"{path}: config.json as published", **sizes)


def local(directory: Path) -> Model:
    config = json.loads((directory / CONFIG).read_text())
    known = next((one for one in published().values() if same(one["config"], config)), None)
    return read(
        config,
        name=directory.name,
        source=f"{directory.name}: its config.json",
        weight_bytes=stored_bytes(directory),
        scores=known["scores"] if known else {},
        bundles_dspark=(directory / DSPARK_SUBFOLDER / CONFIG).is_file(),
    )


def same(known: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """A local copy of a public model, with the same quantisation or none."""
    quantised = [one.get("quantization_config") is not None for one in (known, config)]
    return known.items() <= config.items() and quantised[0] == quantised[1]


def read(config: Mapping[str, Any], **given: Any) -> Model:
    """From a config.json's content, with what is known beside it."""
    text = config.get("text_config") or config
    quantisation = config.get("quantization_config") or {}
    nested = {**(config.get("dspark_config") or {}), **(config.get("dflash_config") or {})}
    block = quantisation.get("weight_block_size")
    return Model(
        experts=experts(text, quantisation),
        quant_block=(block[0], block[1]) if block else None,
        linear_attention="bailing_hybrid" in (text.get("model_type"), config.get("model_type")),
        nextn_layers=text.get("num_nextn_predict_layers"),
        block_size=config.get("block_size") or config.get("dspark_block_size") or nested.get("block_size"),
        causal=config.get("is_causal") is True,
        **{"bundles_dspark": "dspark_block_size" in config, **given},
    )


def experts(config: Mapping[str, Any], quantisation: Mapping[str, Any]) -> Experts | None:
    count = config.get("num_experts") or config.get("n_routed_experts")
    width, hidden = config.get("moe_intermediate_size"), config.get("hidden_size")
    if not (count and width and hidden):
        return None
    stored = quantisation.get("quant_method") or config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    active = config.get("num_experts_per_tok") or 1
    return Experts(
        count=count, active=active, width=width, hidden=hidden, bytes=3 * hidden * width * BYTES.get(stored, 0.5)
    )


def stored_bytes(directory: Path) -> int | None:
    if (directory / INDEX).is_file():
        total = json.loads((directory / INDEX).read_text()).get("metadata", {}).get("total_size")
        return int(total) if total else None
    return sum(path.stat().st_size for path in directory.glob("*.safetensors")) or None


@functools.cache
def published() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("models.json").read_text())
    return entries
