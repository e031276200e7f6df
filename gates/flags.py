"""Engine flags and environment names known to touch numerics, with the class they belong to.

A short list on purpose: what is not here is `same`, and the gates of `same` are the strictest. So a name that is
missing can cost an undeclared rounding change its verdict, and can never let one through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gates.change import ChangeClass

FLAGS: dict[str, ChangeClass] = {
    "--attention-backend": "rounding",
    "--decode-attention-backend": "rounding",
    "--prefill-attention-backend": "rounding",
    "--dtype": "rounding",
    "--enable-fp32-lm-head": "rounding",
    "--flashinfer-allreduce-fusion-backend": "rounding",
    "--kv-cache-dtype": "rounding",
    "--linear-attn-backend": "rounding",
    "--linear-attn-decode-backend": "rounding",
    "--linear-attn-prefill-backend": "rounding",
    "--linear-attn-verify-backend": "rounding",
    "--mamba-ssm-dtype": "rounding",
    "--moe-runner-backend": "rounding",
    "--quantization": "model",
    "--load-format": "model",
    "--tokenizer-path": "model",
    "--revision": "model",
    "--tp": "model",
    "--tp-size": "model",
    "--tensor-parallel-size": "model",
    "--ep-size": "model",
}
ENVIRONMENT: dict[str, ChangeClass] = {
    "ATEN_CPU_CAPABILITY": "rounding",
    "MKL_CBWR": "rounding",
    "MKL_ENABLE_INSTRUCTIONS": "rounding",
    "NVIDIA_TF32_OVERRIDE": "rounding",
    "ONEDNN_MAX_CPU_ISA": "rounding",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "rounding",
    "SGLANG_DSPARK_USE_GREEDY_DRAFT": "speculation",
    "SGLANG_RAGGED_VERIFY_MODE": "speculation",
}
SPECULATION_PREFIX = "--speculative-"


def flag_class(name: str) -> ChangeClass:
    return "speculation" if name.startswith(SPECULATION_PREFIX) else FLAGS.get(name, "same")


def environment_class(name: str) -> ChangeClass:
    return ENVIRONMENT.get(name, "same")


def parse_flags(args: tuple[str, ...]) -> dict[str, str]:
    """`--flag value ...` and `--flag=value` as a mapping; several values are joined, none is the empty text."""
    flags: dict[str, list[str]] = {}
    name = ""
    for arg in args:
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            flags[name] = [value] if equals else []
        else:
            flags.setdefault(name, []).append(arg)
    return {flag: " ".join(values) for flag, values in flags.items()}
