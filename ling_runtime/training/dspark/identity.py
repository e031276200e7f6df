"""Which target something was made for: a hash of the files that decide what it says."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def target_identity(directory: Path) -> str:
    """sha256 over config.json, tokenizer.json and the weights, names and content; ConfigError where one is missing."""
    weights = sorted(directory.glob("*.safetensors"))
    digest = hashlib.sha256()
    for file in (directory / "config.json", directory / "tokenizer.json", *weights):
        if not file.is_file():
            raise ConfigError(f"model {str(directory)!r}: no {file.name} there")
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    if not weights:
        raise ConfigError(f"model {str(directory)!r}: no *.safetensors there")
    return digest.hexdigest()
