"""Where servers of ours listen: a TCP port that nobody answers on, at an address that nobody else reaches.

The surprise: there is no way to keep a port for a child, so the proof is made twice: here the port is closed, and at
readiness the answer must carry the name that only our server was given.
"""

from __future__ import annotations

import ipaddress
import socket

HOST = "127.0.0.1"


def free_port(host: str = HOST) -> int:
    """A port the kernel gave out and that then refused a connection."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = int(probe.getsockname()[1])
    assert is_closed(port, host)
    return port


def is_closed(port: int, host: str = HOST) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) != 0


def is_address(host: str) -> bool:
    """Of this machine, as IPv4 has it."""
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        return False
    with socket.socket() as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def is_loopback(host: str) -> bool:
    return ipaddress.IPv4Address(host).is_loopback


def reached(host: str) -> str:
    """Where a client on this machine finds a server that listens at `host`."""
    return HOST if ipaddress.IPv4Address(host).is_unspecified else host
