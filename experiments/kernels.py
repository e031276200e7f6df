"""Kernel variants that a cell names, against those that the runtime has.

The surprise: asking for the registry imports torch, which a run without kernel overrides need not wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ling_runtime.ops.registry import Variant


def check_kernels(kernels: Mapping[str, str]) -> None:
    """Raises ConfigError."""
    if not kernels:
        return
    known: dict[str, list[str]] = {}
    for variant in registered_variants():
        known.setdefault(variant.operator, []).append(variant.name)
    for operator, name in kernels.items():
        if operator not in known:
            raise ConfigError(f"kernels.{operator}", f"no such operator; allowed: {', '.join(sorted(known))}")
        if name not in known[operator]:
            from ling_runtime.ops.registry import needs  # noqa: PLC0415 - imported by now

            raise ConfigError(
                f"kernels.{operator}", f"{name!r} is not one of {', '.join(known[operator])}{needs(name)}"
            )


def registered_variants() -> tuple[Variant, ...]:
    """The kernel registry."""
    from ling_runtime.ops.registry import variants  # noqa: PLC0415 - imports torch

    return variants()
