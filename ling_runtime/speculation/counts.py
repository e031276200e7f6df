"""What verification did since the last reset, for `/server_info`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Counts:
    """`accepted[k]` counts the verifications in which draft k and all before it were right."""

    drafts: int
    verify_requests: int = 0
    verified_rows: int = 0
    """Computed by the target."""
    planned_rows: int = 0
    """Considered by acceptance: fewer where it is capped."""
    committed_tokens: int = 0
    accepted: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.accepted = [0] * self.drafts

    def add(self, rows: int, planned: Sequence[int], committed: Sequence[int]) -> None:
        """One step: rows verified of all requests, rows planned and tokens committed of each."""
        self.verify_requests += len(committed)
        self.verified_rows += rows
        self.planned_rows += sum(planned)
        self.committed_tokens += sum(committed)
        for count in committed:
            for k in range(count - 1):
                self.accepted[k] += 1

    def report(self) -> dict[str, Any]:
        """With the share of verifications that got as far as each draft."""
        return {
            "verified_rows": self.verified_rows,
            "planned_rows": self.planned_rows,
            "committed_tokens": self.committed_tokens,
            "verify_requests": self.verify_requests,
            "accept_by_position": [count / max(self.verify_requests, 1) for count in self.accepted],
        }
