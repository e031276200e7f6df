"""All rules, each a function of a launch that yields what it has to say; by subject, one file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.audit.rules import attention, communication, flags, memory, speculation, variables, verification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.audit.finding import Finding
    from experiments.audit.launch import Launch

    Rule = Callable[[Launch], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    *flags.RULES,
    *variables.RULES,
    *speculation.RULES,
    *verification.RULES,
    *attention.RULES,
    *communication.RULES,
    *memory.RULES,
)
