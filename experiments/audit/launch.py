"""One launch of SGLang as the audit sees it: its command line in pieces, and what is known of all that it names.

Every rule is a function of this value and of nothing else. The surprise: the flags come from the finished command line
and not from the cell's keys, so that what is audited is what would run, whichever way a flag got there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from experiments.audit.hardware import Gpus
    from experiments.audit.installed import Installed
    from experiments.audit.model import Model

Written = tuple[str, tuple[str, ...]]
"""A flag as it stands on the command line, and the words behind it."""

RAGGED = "SGLANG_RAGGED_VERIFY_MODE"
RAGGED_MODES = ("static", "cap-accept", "compact")
BLOCK_FAMILY = ("DSPARK", "DFLASH")
CHAIN_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
DEFAULT_STEPS = 3
DEFAULT_GAMMA = 7


@dataclass(frozen=True, kw_only=True)
class Launch:
    written: tuple[Written, ...]
    env: Mapping[str, str]
    installed: Installed | None = None
    borrowed: bool = False
    """The command's interpreter has no SGLang; `installed` is this program's."""
    gpus: Gpus | None = None
    target: Model | None = None
    draft: Model | None = None
    inherited: Mapping[str, str] = field(default_factory=dict)
    """SGLANG_* variables that the server gets from the shell, and no record knows of."""

    @cached_property
    def flags(self) -> dict[str, tuple[str, ...]]:
        """By canonical name; of a flag given twice the last counts, as for argparse."""
        return {self.canonical(name): values for name, values in self.written}

    def canonical(self, written: str) -> str:
        flag = self.installed.flag(written) if self.installed else None
        return flag.name if flag else written

    def overridden(self, field: str, by: str) -> bool:
        """Whether the installed SGLang has a function that replaces what is given; taken for granted without one."""
        return self.installed is None or by in self.installed.overrides.get(field, ())

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def text(self, flag: str) -> str | None:
        return next(iter(self.flags.get(flag, ())), None)

    def number(self, flag: str) -> int | None:
        """None also for what is no number; rules about values say that."""
        value = self.text(flag)
        return int(value) if value and value.removeprefix("-").isdecimal() else None

    def size(self, flag: str) -> int:
        return max(self.number(flag) or 1, 1)

    def enabled(self, variable: str) -> bool:
        """As SGLang reads booleans."""
        return self.env.get(variable, "").lower() in ("true", "1", "yes", "y")

    @property
    def algorithm(self) -> str | None:
        """As SGLang resolves it: NEXTN is EAGLE on the target's own draft layers."""
        given = (self.text("--speculative-algorithm") or "").upper()
        return "EAGLE" if given == "NEXTN" else given or None

    @property
    def topk(self) -> int:
        return self.number("--speculative-eagle-topk") or 1

    @property
    def ragged(self) -> str:
        return self.env.get(RAGGED, RAGGED_MODES[0])

    @property
    def gamma(self) -> int | None:
        """Drafts of a block; None where SGLang would read them from a draft that we know nothing of."""
        asked = self.number("--speculative-dspark-block-size") or (self.draft and self.draft.block_size)
        if asked or self.draft is None:
            return asked or None
        tokens = self.number("--speculative-num-draft-tokens")
        return tokens - 1 if tokens else DEFAULT_GAMMA

    @property
    def window(self) -> int | None:
        """Rows the target verifies in a step, as SGLang resolves them; None where that takes an unknown draft."""
        if self.algorithm is None:
            return 1
        if self.algorithm == "DSPARK":
            return self.gamma + 1 if self.gamma else self.number("--speculative-num-draft-tokens")
        steps, tokens = self.number("--speculative-num-steps"), self.number("--speculative-num-draft-tokens")
        if self.algorithm in CHAIN_FAMILY:
            return (steps or DEFAULT_STEPS) + 1 if self.topk == 1 else tokens
        return tokens

    @property
    def attention_backends(self) -> tuple[str | None, str | None]:
        """For prefill and for decode; None: SGLang's choice."""
        both = self.text("--attention-backend")
        return self.text("--prefill-attention-backend") or both, self.text("--decode-attention-backend") or both

    @property
    def ranks(self) -> int:
        """Over which one copy of the weights is divided."""
        return self.size("--tp-size") * self.size("--pp-size")


def written_flags(argv: Sequence[str]) -> tuple[Written, ...]:
    """Of the server alone: what stands before its module's name belongs to an interpreter or a wrapper."""
    found: list[tuple[str, list[str]]] = []
    for word in argv[_begin(argv) :]:
        if word.startswith("--"):
            name, assigned, value = word.partition("=")
            found.append((name, [value] if assigned else []))
        elif found:
            found[-1][1].append(word)
    return tuple((name, tuple(values)) for name, values in found)


def _begin(argv: Sequence[str]) -> int:
    return next((index + 1 for index, word in enumerate(argv) if word.startswith("sglang") or "/sglang" in word), 0)
