"""A server known by its address alone, as a cell: what it says of itself, and no more.

The surprise: it is a stranger even if it happens to be ours, because nothing is promised that we did not launch; only
the caller can vouch for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from experiments.clients.generate import ProtocolError
from experiments.spec import EngineSpec, ModelSpec, SpeculationSpec
from gates.hardware import UNKNOWN, Hardware, here

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.clients.generate import GenerateClient
    from experiments.spec import Algorithm, CellSpec

ALGORITHMS: dict[str | None, Algorithm] = {None: "none", "NEXTN": "nextn", "EAGLE": "nextn", "DSPARK": "dspark"}
"""SGLang reports EAGLE for a NEXTN layer."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def described(client: GenerateClient, asked: CellSpec, engine: str) -> CellSpec:
    """`asked` with engine, model, speculation and kernels as the server reports them. Raises ProtocolError."""
    info, model = client.server_info(), client.model_info()
    path = str(model.get("model_path"))
    return replace(
        asked,
        engine=EngineSpec(name=engine, dtype=str(info.get("dtype", "auto")), device=str(info.get("device", "cpu"))),
        model=ModelSpec(name=path.rpartition("/")[2], path=path, tokenizer_path=model.get("tokenizer_path")),
        speculation=_speculation(info),
        env={},
        kernels={row["operator"]: row["variant"] for row in info.get("kernels", ()) if row["variant"] != "reference"},
    )


def hardware(url: str, cell: CellSpec) -> Hardware:
    """This machine's for a server on it, else nothing is known."""
    return here(cell.engine.device, {}) if urlsplit(url).hostname in LOOPBACK else UNKNOWN


def _speculation(info: Mapping[str, Any]) -> SpeculationSpec:
    name = info.get("speculative_algorithm")
    if name not in ALGORITHMS:
        raise ProtocolError(f"GET /server_info: speculative_algorithm={name} is none that the gates know")
    match ALGORITHMS[name]:
        case "none":
            return SpeculationSpec()
        case "nextn":
            return SpeculationSpec(
                algorithm="nextn",
                num_steps=info.get("speculative_num_steps"),
                num_draft_tokens=info.get("speculative_num_draft_tokens"),
            )
        case _:
            return _block(info)


def _block(info: Mapping[str, Any]) -> SpeculationSpec:
    """SGLang tells the window alone, and of its verify mode nothing."""
    section = info.get("speculation") or {"window": info.get("speculative_num_draft_tokens")}
    if not section["window"]:
        raise ProtocolError("GET /server_info: DSPARK without speculative_num_draft_tokens has no known window")
    return SpeculationSpec(
        algorithm="dspark",
        block_size=section["window"] - 1,
        draft_path=info.get("speculative_draft_model_path"),
        verify_mode=section.get("verify_mode"),
        acceptance=section.get("acceptance"),
        scheduler=section.get("scheduler"),
    )
