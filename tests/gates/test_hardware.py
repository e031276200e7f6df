"""The fingerprint of a machine's arithmetic: stable, and different where the library computes differently."""

from __future__ import annotations

import platform

import pytest

from gates.hardware import UNKNOWN, here

pytestmark = pytest.mark.process


def test_the_same_machine_gives_the_same_bits_every_time():
    first, second = here("cpu", {}), here("cpu", {})
    assert first == second
    assert first.same_bits(second)
    assert platform.machine() in first.name


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library's switch is for x86")
def test_another_instruction_set_is_another_class():
    fused, plain = here("cpu", {}), here("cpu", {"ATEN_CPU_CAPABILITY": "default"})
    assert not fused.same_bits(plain)
    assert fused.name != plain.name


def test_nothing_is_known_to_have_the_bits_of_the_unknown():
    assert not UNKNOWN.same_bits(UNKNOWN)
