"""The tensors of a Ling checkpoint: names, shapes, precision and how tensor parallelism splits each of them.

One table serves loading, saving, sharding and counting. The surprise: `q_proj` and `g_proj`
name different shapes in KDA and MLA layers, so the table is built per layer kind and never by suffix.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ling_runtime.config import ConfigError, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

Split = Literal["replicate", "column", "row"]


@dataclass(frozen=True)
class TensorSpec:
    """Shape [out, in] (or 1-D), split over tensor-parallel ranks, and whether the file keeps fp32."""

    shape: tuple[int, ...]
    split: Split = "replicate"
    fp32: bool = False

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.fp32 else torch.bfloat16

    @property
    def dim(self) -> int | None:
        """The dimension that ranks divide; None where every rank holds the whole tensor."""
        return {"replicate": None, "column": 0, "row": 1}[self.split]


def tensor_specs(config: ModelConfig, *, nextn: bool = True) -> dict[str, TensorSpec]:
    """Every tensor of the checkpoint under its Hugging Face name, with the NEXTN layer's if there is one."""
    vocab = TensorSpec((config.vocab_size, config.hidden_size), "column")
    specs = {"model.word_embeddings.weight": vocab}
    for layer in range(config.num_hidden_layers):
        specs.update(_layer(config, layer))
    specs["model.norm.weight"] = TensorSpec((config.hidden_size,))
    specs["lm_head.weight"] = vocab
    if nextn and config.num_nextn_predict_layers:
        specs.update(nextn_specs(config))
    return specs


def nextn_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """The NEXTN layer, stored as one layer after the last; it shares embedding and head with the target."""
    hidden, prefix = config.hidden_size, f"model.layers.{config.num_hidden_layers}."
    specs = {f"{prefix}{name}.weight": TensorSpec((hidden,)) for name in ("enorm", "hnorm", "final_layernorm")}
    specs[f"{prefix}eh_proj.weight"] = TensorSpec((hidden, 2 * hidden))
    return specs | _layer(config, config.num_hidden_layers)


def _layer(config: ModelConfig, layer: int) -> dict[str, TensorSpec]:
    hidden = config.hidden_size
    attention = _mla(config) if config.is_mla(layer) else _kda(config)
    mlp = _swiglu(hidden, config.intermediate_size) if config.is_dense(layer) else _moe(config)
    return {
        f"model.layers.{layer}.input_layernorm.weight": TensorSpec((hidden,)),
        f"model.layers.{layer}.post_attention_layernorm.weight": TensorSpec((hidden,)),
        **{f"model.layers.{layer}.attention.{name}": spec for name, spec in attention.items()},
        **{f"model.layers.{layer}.mlp.{name}": spec for name, spec in mlp.items()},
    }


def _kda(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden, width, heads = config.hidden_size, config.kda_width, config.num_attention_heads
    conv = TensorSpec((width, 1, config.short_conv_kernel_size), "column", fp32=True)
    return {
        **{f"{x}_proj.weight": TensorSpec((width, hidden), "column") for x in "qkvfg"},
        **{f"{x}_conv1d.weight": conv for x in "qkv"},
        "b_proj.weight": TensorSpec((heads, hidden), "column"),
        "A_log": TensorSpec((heads,), "column", fp32=True),
        "dt_bias": TensorSpec((width,), "column", fp32=True),
        "o_norm.weight": TensorSpec((config.head_dim,)),
        "o_proj.weight": TensorSpec((hidden, width), "row"),
    }


def _mla(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    return {
        "q_proj.weight": TensorSpec((heads * config.qk_head_dim, hidden), "column"),
        "kv_a_proj_with_mqa.weight": TensorSpec((config.latent_width, hidden)),
        "kv_a_layernorm.weight": TensorSpec((rank,)),
        "kv_b_proj.weight": TensorSpec((heads * (config.qk_nope_head_dim + config.v_head_dim), rank), "column"),
        "g_proj.weight": TensorSpec((heads, hidden), "column"),
        "dense.weight": TensorSpec((hidden, heads * config.v_head_dim), "row"),
    }


def _moe(config: ModelConfig) -> dict[str, TensorSpec]:
    hidden = config.hidden_size
    specs = {
        "gate.weight": TensorSpec((config.num_experts, hidden)),
        "gate.expert_bias": TensorSpec((config.num_experts,), fp32=True),
    }
    expert = _swiglu(hidden, config.moe_intermediate_size)
    for index in range(config.num_experts):
        specs |= {f"experts.{index}.{name}": spec for name, spec in expert.items()}
    if config.num_shared_experts:
        shared = _swiglu(hidden, config.moe_shared_expert_intermediate_size * config.num_shared_experts)
        specs |= {f"shared_experts.{name}": spec for name, spec in shared.items()}
    return specs


def _swiglu(hidden: int, width: int) -> dict[str, TensorSpec]:
    column, row = TensorSpec((width, hidden), "column"), TensorSpec((hidden, width), "row")
    return {"gate_proj.weight": column, "up_proj.weight": column, "down_proj.weight": row}


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
