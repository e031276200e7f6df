"""Choosing and counting variants."""

from __future__ import annotations

import pytest
import torch

from ling_runtime.config import ConfigError
from ling_runtime.ops.registry import Kernels, variants


def test_each_operator_has_one_reference_and_rounding_variants_say_why() -> None:
    for operator in {v.operator for v in variants()}:
        group = [v for v in variants() if v.operator == operator]
        assert [v.name for v in group if v.numerics == "reference"] == ["reference"]
        assert all(v.reason for v in group if v.numerics == "rounding")


def test_unknown_operator_and_variant_name_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match=r"kernels\.lmhead.*lm_head"):
        Kernels({"lmhead": "bf16"})
    with pytest.raises(ConfigError, match=r"kernels\.lm_head=fp8.*reference, bf16"):
        Kernels({"lm_head": "fp8"})


def test_calls_are_counted_for_the_variant_that_ran() -> None:
    kernels = Kernels({"lm_head": "bf16"})
    row = {r["operator"]: r for r in kernels.report()}["lm_head"]
    assert (row["variant"], row["numerics"], row["calls"]) == ("bf16", "rounding", 0)
    kernels["lm_head"](torch.ones(16, 4), torch.ones(5, 4))
    assert kernels.calls["lm_head"] == 1
    kernels.reset()
    assert kernels.calls["lm_head"] == 0
