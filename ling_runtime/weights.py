"""The files of a Ling checkpoint: reading them whole or a rank's part, writing them, random ones in their place.

The surprise: a tensor that is missing, of another shape or stored by nobody's name is an error before any is used, so
a model never runs on half of somebody else's weights.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ling_runtime.config import ConfigError, ModelConfig
from ling_runtime.tensor_table import tensor_specs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from ling_runtime.tensor_table import TensorSpec


def shard(spec: TensorSpec, tensor: Tensor, rank: int, size: int) -> Tensor:
    """Rank `rank`'s part of a whole tensor; ConfigError where `size` does not divide the split dimension."""
    if spec.dim is None:
        return tensor
    if spec.shape[spec.dim] % size:
        raise ConfigError(f"tp_size={size}: does not divide dimension {spec.dim} of shape {spec.shape}")
    return tensor.chunk(size, dim=spec.dim)[rank]


def unshard(spec: TensorSpec, parts: Sequence[Tensor]) -> Tensor:
    """The whole tensor from every rank's part, in rank order."""
    return parts[0] if spec.dim is None else torch.cat(list(parts), dim=spec.dim)


def load(path: str | Path, specs: Mapping[str, TensorSpec], *, rank: int = 0, size: int = 1) -> dict[str, Tensor]:
    """Read and shard every tensor of `specs` from the safetensors files under `path`.

    Raises ConfigError naming what is missing, unreadable, of a wrong shape, or stored by nobody's name.
    """
    tensors: dict[str, Tensor] = {}
    surplus: list[str] = []
    for stored, tensor in stored_tensors(Path(path)):
        name = stored.replace("e_score_correction_bias", "expert_bias")
        if name in specs:
            if tuple(tensor.shape) != specs[name].shape:
                raise ConfigError(f"{stored}: shape {tuple(tensor.shape)}, expected {specs[name].shape}")
            tensors[name] = shard(specs[name], tensor, rank, size).contiguous()
        elif not _ignored(name):
            surplus.append(stored)
    missing = [name for name in specs if name not in tensors]
    if missing or surplus:
        raise ConfigError(f"checkpoint {path}: missing {listed(missing)}; not part of this model {listed(surplus)}")
    return tensors


def save(path: str | Path, tensors: Mapping[str, Tensor], config: ModelConfig) -> None:
    """Write model.safetensors under `path` in the file's precision: bf16, and fp32 where the table says so."""
    specs = tensor_specs(config)
    save_file({n: t.to(specs[n].dtype).contiguous() for n, t in tensors.items()}, Path(path) / "model.safetensors")


def initialise(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Random weights of a sane scale (fan-in for matrices), reproducible by `seed`; for tests and dry runs."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, spec, generator) for name, spec in tensor_specs(config).items()}


def _random(name: str, spec: TensorSpec, generator: torch.Generator) -> Tensor:
    noise = torch.randn(spec.shape, generator=generator)
    if "norm.weight" in name or name.endswith(("layernorm.weight", "o_norm.weight")):
        value = 1.0 + 0.1 * noise
    elif name.endswith(("A_log", "dt_bias")):
        value = 0.5 * noise
    elif name.endswith("expert_bias"):
        value = 0.01 * noise
    else:
        value = noise * spec.shape[-1] ** -0.5
    return value.to(spec.dtype)


def stored_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"model path {str(path)!r}: no *.safetensors there")
    for file in files:
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 - the handle is no mapping
                    yield name, handle.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file}: cannot be read ({error})") from error


def _ignored(name: str) -> bool:
    return name.startswith(("model.mtp", "model.layers.")) and ("inv_freq" in name or name.startswith("model.mtp"))


def listed(names: Sequence[str]) -> str:
    return "nothing" if not names else f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint of random weights for a config.json.")
    parser.add_argument("--init", required=True, metavar="CONFIG_DIR", help="directory with the config.json to follow")
    parser.add_argument("--out", required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = ModelConfig.from_pretrained(arguments.init)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text((Path(arguments.init) / "config.json").read_text())
    save(out, initialise(config, arguments.seed), config)
    print(json.dumps({"path": str(out), "tensors": len(tensor_specs(config))}))


if __name__ == "__main__":
    main()
