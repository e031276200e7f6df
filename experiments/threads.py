"""Threads that ask a server several things at once, and that nobody waits for once the asking has been stopped.

The surprise: this is no `with ThreadPoolExecutor`, which would wait at its end for every answer under way. A server
that hangs would then hold up the signal or the limit that is to end the phase.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def asking(count: int) -> Iterator[ThreadPoolExecutor]:
    """Who wants the answers collects them inside."""
    pool = ThreadPoolExecutor(count)
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
