"""A CPU as SGLang sees an accelerator that it does not know: every operator in plain PyTorch, nothing captured.

SGLang's own CPU platform wants kernels of a build for AMX. The surprise: being out of tree is what avoids them. Code
that asks for CUDA, or for a CPU of SGLang's own, gets a no, and layers fall back to their `forward_native`.
"""

from __future__ import annotations

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform


class SmallCpu(CpuDeviceMixin, SRTPlatform):  # type: ignore[misc]  # SGLang is untyped
    """Capabilities stay at the interface's defaults: no Triton, no graphs, no speculation."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def get_dispatch_key_name(self) -> str:
        return "native"
