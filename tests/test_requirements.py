"""What is pinned for a GPU host is what is pinned elsewhere: a client of another version would be another ruler."""

from __future__ import annotations

from pathlib import Path

REQUIREMENTS = Path(__file__).parents[1] / "requirements"


def pins(name: str) -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in (REQUIREMENTS / name).read_text().splitlines()]
    return dict(line.split("==") for line in lines if "==" in line)


def test_a_gpu_host_has_the_client_s_versions() -> None:
    host, client = pins("gpu-host.txt"), pins("client-nodeps.txt") | pins("client.txt")
    shared = host.keys() & client.keys()
    assert {"sglang", "compressed-tensors", "apache-tvm-ffi"} <= shared
    assert {name: host[name] for name in shared} == {name: client[name] for name in shared}
