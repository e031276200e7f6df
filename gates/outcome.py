"""What one call of the command line came to: the exit code with its reason, and all that a report may show of it.

The surprise: a call that failed before any gate is an outcome as well, so that whoever reads a report in a CI run finds
there what went wrong, and never an empty page that looks like a pass.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from gates.engine import engine_traits
from gates.parting import partings
from gates.verdict import CONFIGURATION, INVALID, OK, REJECTED, exit_code

if TYPE_CHECKING:
    from pathlib import Path

    from experiments.spec import CellSpec
    from gates.evidence import GateResult, Probe
    from gates.golden import Reference
    from gates.parting import Parting
    from gates.verdict import Verdict

Word = Literal["passed", "rejected", "refused", "invalid"]
WORDS: dict[int, Word] = {OK: "passed", REJECTED: "rejected", CONFIGURATION: "refused", INVALID: "invalid"}


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The two sides of a check."""

    cell: CellSpec
    file: Path
    reference: Reference
    live: Probe | None
    """None: the server did not answer."""

    def partings(self) -> tuple[Parting, ...]:
        known = self.reference.golden.evidence.probe
        assert known is not None, "a golden record has a probe"
        return partings(known, self.live, self.cell.model) if self.live else ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    exit: int
    reason: str
    verdict: Verdict | None = None
    """None: it ended before the gates."""
    gates: tuple[GateResult, ...] = ()
    compared: Compared | None = None

    @property
    def word(self) -> Word:
        return WORDS[self.exit]

    @property
    def bits_excused(self) -> bool:
        """Exact equality was wanted and could not be asked for: another processor."""
        forced = any(gate.required for gate in self.gates if gate.name == "lossless")
        if self.compared is None or not forced:
            return False
        speculates = self.compared.reference.change.class_ == "speculation"
        return not speculates or engine_traits(self.compared.cell.engine.name).row_invariant

    def line(self) -> dict[str, Any]:
        """For programs."""
        verdict = asdict(self.verdict) if self.verdict else {"status": "invalid", "verdict": None}
        gates = {
            gate.name: {"status": gate.status, "required": gate.required, "reason": gate.reason} for gate in self.gates
        }
        return verdict | {"reason": self.reason, "gates": gates, "exit": self.exit}


def judged(verdict: Verdict, gates: tuple[GateResult, ...], compared: Compared | None = None) -> Outcome:
    return Outcome(exit=exit_code([verdict]), reason=verdict.reason, verdict=verdict, gates=gates, compared=compared)
