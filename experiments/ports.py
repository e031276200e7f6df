"""A TCP port of this host that nobody answers on.

The surprise: there is no way to keep it for a child, so the proof is made twice: here the port is closed, and at
readiness the answer must carry the name that only our server was given.
"""

from __future__ import annotations

import socket

HOST = "127.0.0.1"


def free_port() -> int:
    """A port the kernel gave out and that then refused a connection."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    assert is_closed(port)
    return port


def is_closed(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) != 0
