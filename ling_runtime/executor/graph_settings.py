"""All that can be chosen about an executor whose steps are graph replays, as one object that is validated in one place.

Nothing here imports torch: the server reads its flags into it before it loads anything.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from ling_runtime.config import WINDOW_ROWS, ConfigError
from ling_runtime.executor.switches import DEFAULT, Switches

if TYPE_CHECKING:
    from ling_runtime.ops.triton.launch import Pdl


@dataclass(frozen=True, kw_only=True)
class GraphSettings:
    overlap: bool = False
    """Queue each step before the one before has been read."""
    seq_lens_pin: bool = False
    """Wait for the lengths before each step all the same."""
    pdl: Pdl | None = None
    """None: the mode that was fastest on this kind of card."""
    memory_mib: int | None = None
    """Bound of what recordings hold; None: no bound."""
    simulated_accept_length: float | None = None
    """Replaces acceptance, the bonus counted."""
    switches: Switches = DEFAULT

    def check(self, *, window: int, blocks: bool, fastest: Pdl) -> None:
        """ConfigError for what steps of `window` rows do not have, under DSPARK (`blocks`) or else; `fastest` is the
        card's mode of launch.
        """
        if window > WINDOW_ROWS:
            raise ConfigError(
                f"a window of {window} rows: graphs hold {WINDOW_ROWS}, so up to {WINDOW_ROWS - 1} drafts"
            )
        length = self.simulated_accept_length
        if length is not None and not 1 <= length <= window:
            raise ConfigError(f"simulated accept length {length}: allowed: 1 to {window}, the rows of a window")
        self.check_switches(drafting=window > 1, blocks=blocks)
        if self.pdl not in (None, "off") and fastest == "off":
            raise ConfigError(f"pdl={self.pdl}: needs a card of compute capability 9.0 or more; allowed here: off")

    def check_switches(self, *, drafting: bool, blocks: bool) -> None:
        """The part that needs no card: ConfigError for switches that exclude each other, or the kind of drafts."""
        changed = [one.name for one in fields(Switches) if getattr(self.switches, one.name) != one.default]
        if blocks and changed:
            raise ConfigError(f"{', '.join(changed)}: not under speculative_algorithm DSPARK; allowed: NEXTN or none")
        if self.switches.fused_verify_extend and not self.switches.extend_graph:
            raise ConfigError("fused_verify_extend: the extension is part of its graph; allowed with extend_graph only")
        for name in ("fused_verify_extend", "extend_graph"):
            if name in changed and not drafting:
                raise ConfigError(f"{name}: allowed under speculative_algorithm NEXTN, whose drafts are extended")
