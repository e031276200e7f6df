"""Token sequences for training drafts, mostly written by the target itself: what a directory of them holds.

One safetensors file per row length (ids as uint16, the first token that counts, the setting it was written under), and
manifest.json with the target they belong to. The surprise: reading has no position. Batch k is a function of seed and k
alone, drawn by share with replacement, so a resumed run and every rank know their data without being told.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from ling_runtime.config import ConfigError
from ling_runtime.training.choice import Sampling

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Setting:
    """A way to continue prompts, and its share of the rows; `sampling` None is generated text, not the target's."""

    name: str
    share: float
    sampling: Sampling | None


SETTINGS = (
    Setting("greedy", 0.5, Sampling()),
    Setting("narrow", 0.25, Sampling(temperature=0.7, top_p=0.8, top_k=20)),
    Setting("wide", 0.15, Sampling(temperature=1.0)),
    Setting("text", 0.1, None),
)


class Rows(NamedTuple):
    """N sequences of T tokens; tokens at and after `first` [N] are the target's own (or text that counts)."""

    ids: np.ndarray[tuple[int, int], np.dtype[np.uint16]]
    first: np.ndarray[tuple[int], np.dtype[np.int32]]
    setting: np.ndarray[tuple[int], np.dtype[np.uint8]]
    """Index into the manifest's settings."""

    @property
    def length(self) -> int:
        return self.ids.shape[1]

    @property
    def loss_mask(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        return np.arange(self.length) >= self.first[:, None]

    def take(self, index: np.ndarray[Any, Any]) -> Rows:
        return Rows(self.ids[index], self.first[index], self.setting[index])

    @classmethod
    def join(cls, parts: Iterable[Rows]) -> Rows:
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@dataclass(frozen=True, kw_only=True)
class Trajectories:
    """`target` is the identity of the checkpoint that wrote them; `rows` by length."""

    target: str
    seed: int
    split: str
    settings: tuple[Setting, ...]
    rows: Mapping[int, Rows]

    def save(self, directory: Path) -> None:
        """Write the files and then the manifest, without which the directory does not count."""
        directory.mkdir(parents=True, exist_ok=True)
        files = []
        for length, rows in self.rows.items():
            name = f"rows-{length}.safetensors"
            save_file(rows._asdict(), directory / name)
            counts = np.bincount(rows.setting, minlength=len(self.settings)).tolist()
            files.append({"file": name, "length": length, "rows": len(rows.ids), "by_setting": counts})
        head = {"version": VERSION, "target": self.target, "seed": self.seed, "split": self.split}
        manifest = {**head, "settings": [asdict(setting) for setting in self.settings], "files": files}
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")

    @classmethod
    def open(cls, directory: Path, *, target: str) -> Trajectories:
        """Read what was written for the target with identity `target`; ConfigError where there is nothing that fits."""
        file = directory / MANIFEST
        if not file.is_file():
            raise ConfigError(f"trajectories {str(directory)!r}: no {MANIFEST} there; make them with `generate`")
        manifest = json.loads(file.read_text())
        if manifest["version"] != VERSION:
            raise ConfigError(f"{file}: version={manifest['version']}: allowed: {VERSION}")
        if manifest["target"] != target:
            raise ConfigError(f"{file}: target={manifest['target'][:12]}: written by another target than {target[:12]}")
        rows = {one["length"]: Rows(**load_file(directory / one["file"])) for one in manifest["files"]}
        settings = tuple(_setting(one) for one in manifest["settings"])
        return cls(target=target, seed=manifest["seed"], split=manifest["split"], settings=settings, rows=rows)

    def shared(self, shares: Mapping[str, float]) -> Trajectories:
        """The same rows to be drawn in other shares; ConfigError for a setting that has no rows."""
        names = [setting.name for setting in self.settings]
        if unknown := sorted(set(shares) - set(names)):
            raise ConfigError(f"shares: {', '.join(unknown)}: not in these trajectories; allowed: {', '.join(names)}")
        settings = tuple(replace(setting, share=shares.get(setting.name, 0.0)) for setting in self.settings)
        return replace(self, settings=settings)

    def batch(self, index: int, *, rows: int, length: int, seed: int) -> Rows:
        """Batch `index` of the endless stream: `rows` sequences of `length` tokens, settings mixed by share."""
        if length not in self.rows:
            raise ConfigError(f"length={length}: allowed: {', '.join(map(str, sorted(self.rows)))}")
        source = self.rows[length]
        of_setting = [np.flatnonzero(source.setting == s) for s in range(len(self.settings))]
        shares = np.array([s.share * (len(of) > 0) for s, of in zip(self.settings, of_setting, strict=True)])
        if not shares.sum():
            raise ConfigError(f"shares: none of the rows of length {length} has a share above 0")
        rng = np.random.default_rng([seed, length, index])
        drawn = rng.choice(len(shares), size=rows, p=shares / shares.sum())
        return source.take(np.array([rng.choice(of_setting[s]) for s in drawn]))


def _setting(stored: dict[str, Any]) -> Setting:
    sampling = stored["sampling"]
    return Setting(stored["name"], stored["share"], None if sampling is None else Sampling(**sampling))
