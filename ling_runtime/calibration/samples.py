"""What the confidence head said and what came of it, on disk in SGLang's form with an identity added.

A row is one verify step of one request: raw logits of all drafts, and a mask that is 1 while the drafts up to there
agree with the target. SGLang's own shards lack the request and the identity; they are read too.
"""

from __future__ import annotations

import pickle
import zipfile
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from ling_runtime.speculation.dspark.identity import Identity

BOUND = ("target", "draft", "gamma")


@dataclass(frozen=True, kw_only=True)
class Samples:
    raw: Tensor
    """[n, g] fp32, not calibrated"""
    correct: Tensor
    """[n, g] of 0 and 1, falling along a row"""
    request: Tensor
    """[n] the number of the request"""

    def of_requests(self, wanted: Tensor) -> Samples:
        """The rows where `wanted` [n] is true."""
        return Samples(raw=self.raw[wanted], correct=self.correct[wanted], request=self.request[wanted])


def write(path: Path, samples: Samples, identity: Identity, dataset: str) -> None:
    tensors = {"logits": samples.raw, "prefix_mask": samples.correct, "request": samples.request}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({**tensors, "identity": asdict(identity), "dataset": dataset}, path)


def read(paths: Sequence[Path], identity: Identity) -> tuple[Samples, str]:
    """All rows of the files, and the name of their data; ConfigError for files that do not belong here."""
    parts, names, requests = [], [], 0
    for path in paths:
        raw = _checked(path, identity)
        rows = len(raw["logits"])
        request = raw.get("request", torch.arange(rows)) + requests
        requests = int(request.max()) + 1
        parts.append(Samples(raw=raw["logits"].float(), correct=raw["prefix_mask"].long(), request=request))
        names.append(str(raw.get("dataset", path.name)))
    columns = (torch.cat([getattr(part, key) for part in parts]) for key in ("raw", "correct", "request"))
    joined = dict(zip(("raw", "correct", "request"), columns, strict=True))
    return Samples(**joined), ", ".join(dict.fromkeys(names))


def _checked(path: Path, identity: Identity) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"--samples {path}: no file that torch has saved")
    try:
        raw = torch.load(path, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise ConfigError(f"--samples {path}: cannot be read ({error})") from error
    keys = ("logits", "prefix_mask")
    if not isinstance(raw, dict) or not all(isinstance(raw.get(key), torch.Tensor) for key in keys):
        raise ConfigError(f"--samples {path}: expected the tensors logits and prefix_mask")
    ours = asdict(identity)
    shape = tuple(raw["logits"].shape)
    if len(shape) != 2 or not shape[0] or shape[1] != identity.gamma or raw["prefix_mask"].shape != shape:
        raise ConfigError(f"--samples {path}: logits of shape {shape}; expected rows of {identity.gamma}")
    for key in BOUND:
        if raw.get("identity") and raw["identity"].get(key) != ours[key]:
            raise ConfigError(
                f"--samples {path}: made with {key} {raw['identity'].get(key)!r}, here it is {ours[key]!r}"
            )
    return raw
