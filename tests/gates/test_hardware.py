"""The fingerprint of a machine's arithmetic: stable, and different where the library computes differently."""

from __future__ import annotations

import platform

import pytest

from gates.hardware import UNKNOWN, Hardware, here

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def machine() -> Hardware:
    return here("cpu", {})


def test_the_same_machine_gives_the_same_bits_every_time(machine):
    again = here("cpu", {})
    assert machine == again
    assert machine.same_bits(again)
    assert platform.machine() in machine.name


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library's switch is for x86")
def test_another_instruction_set_is_another_class(machine):
    plain = here("cpu", {"ATEN_CPU_CAPABILITY": "default"})
    assert not machine.same_bits(plain)
    assert machine.name != plain.name


def test_nothing_is_known_to_have_the_bits_of_the_unknown():
    assert not UNKNOWN.same_bits(UNKNOWN)
