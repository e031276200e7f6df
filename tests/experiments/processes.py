"""Finding what a test left behind: every process that carries a mark in its environment, or belongs to a family.

The surprise: the mark alone does not find every process. One that gives itself a title, as SGLang's do, writes over its
environment, so the family of a driver is noted while it lives.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Family:
    """All that ran below a process at one moment."""

    members: tuple[psutil.Process, ...]
    sessions: frozenset[int]
    """Their own; the process's is not among them."""
    ports: frozenset[int]
    """On which they listened."""

    @classmethod
    def below(cls, pid: int) -> Family:
        members, sessions, ports = psutil.Process(pid).children(recursive=True), set(), set()
        for member in members:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ended since
                sessions.add(os.getsid(member.pid))
                listening = [one for one in member.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
                ports |= {one.laddr.port for one in listening}
        return cls(tuple(members), frozenset(sessions - {os.getsid(pid)}), frozenset(ports))

    def left(self, timeout_s: float) -> list[psutil.Process]:
        """What lives on of them, or of their sessions, after at most `timeout_s`."""
        _, alive = psutil.wait_procs(self.members, timeout_s)
        return [*alive, *(one for one in psutil.process_iter() if session(one) in self.sessions)]


def session(process: psutil.Process) -> int | None:
    """None for a process that has ended."""
    try:
        return None if process.status() == psutil.STATUS_ZOMBIE else os.getsid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError, PermissionError):
        return None
