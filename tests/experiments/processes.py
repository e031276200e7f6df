"""Finding what a test left behind: every process that carries a mark in its environment."""

from __future__ import annotations

import time

import psutil

MARK = "LING_BENCH_TEST_MARK"


def marked(mark: str) -> list[psutil.Process]:
    """Living processes started (at any depth) with `MARK` set to `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_gone(mark: str, timeout_s: float) -> list[psutil.Process]:
    """What is left of them after at most `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
