"""Ids to text while they arrive: whole characters only, and nothing that may turn out to be part of a stop string.

Two small machines in a row. The first joins the bytes of tokens into characters, the second holds back text that a
stop string may still complete. The surprise: the work per token does not grow with the text, and the pieces put
together are exactly what decoding the whole sequence gives, U+FFFD for broken bytes included.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ling_runtime.tokenizer import Tokenizer


class Detokenizer:
    """The text of one request."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: tuple[str, ...] = (),
        *,
        skip_special_tokens: bool = True,
        keep_stop: bool = False,
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._scanner = StopScanner(stops, keep_stop=keep_stop)

    def push(self, token: int) -> tuple[str, str | None]:
        """Text that can be shown now, and the stop string that this token completed."""
        if token in self._skipped:
            return "", None
        return self._scanner.push(self._characters.decode(self._token_bytes(token)))

    def close(self) -> str:
        """The rest: an unfinished character as U+FFFD, and text held for a stop string that did not come."""
        text, _ = self._scanner.push(self._characters.decode(b"", True))
        return text + self._scanner.close()


class StopScanner:
    """Passes text through up to the earliest stop string; `keep_stop` lets the stop string itself pass too."""

    def __init__(self, stops: tuple[str, ...], *, keep_stop: bool = False) -> None:
        self._stops = stops
        self._longest = max(map(len, stops), default=0)
        self._keep_stop = keep_stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        if not self._stops or not text:
            return text, None
        text = self._held + text
        found = min(((at, stop) for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        if found is not None:
            self._held = ""
            at, stop = found
            return text[: at + len(stop)] if self._keep_stop else text[:at], stop
        release = len(text) - self._overlap(text)
        self._held = text[release:]
        return text[:release], None

    def close(self) -> str:
        held, self._held = self._held, ""
        return held

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that some stop string begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
