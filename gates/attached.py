"""A server known by its address alone, as a cell: what it says of itself, and no more.

The surprise: it is a stranger even if it happens to be ours, because nothing is promised that we did not launch; only
the caller can vouch for it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from experiments.clients.generate import ProtocolError
from experiments.spec import EngineSpec, ModelSpec, SpeculationSpec
from gates.hardware import UNKNOWN, Hardware, here, launched_on

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.clients.generate import GenerateClient
    from experiments.spec import Algorithm, CellSpec

ALGORITHMS: dict[str | None, Algorithm] = {
    None: "none",
    "NEXTN": "nextn",
    "EAGLE": "nextn",
    "EAGLE3": "eagle3",
    "STANDALONE": "standalone",
    "NGRAM": "ngram",
    "DSPARK": "dspark",
}
"""SGLang reports EAGLE for a NEXTN layer."""

UNTOLD = (
    *("host", "port", "nccl_port", "dist_init_addr", "served_model_name", "launch_command", "startup_time", "version"),
    *("random_seed", "log_level", "max_total_num_tokens", "max_req_input_len"),
)
"""Differs from launch to launch, and changes no answer that is compared; the version has a place of its own."""

SECRET = re.compile(r"(^|_)(keys?|secret|password|credentials?|(auth|hf|access|api)_token)$")
"""Names whose values are nobody's business."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def described(client: GenerateClient, asked: CellSpec, engine: str) -> CellSpec:
    """`asked` with engine, model, speculation and kernels as the server reports them. Raises ProtocolError."""
    info, model = client.server_info(), client.model_info()
    path = str(model.get("model_path"))
    return replace(
        asked,
        engine=EngineSpec(
            name=engine,
            dtype=str(info.get("dtype", "auto")),
            device=str(info.get("device", "cpu")),
            reported=reported(info),
        ),
        model=ModelSpec(name=path.rpartition("/")[2], path=path, tokenizer_path=model.get("tokenizer_path")),
        speculation=speculation(info),
        env={},
        kernels={row["operator"]: row["variant"] for row in info.get("kernels", ()) if row["variant"] != "reference"},
    )


def reported(info: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that a server says it runs with, as text: what tells it from another one."""
    told = {key: info[key] for key in sorted(info) if key not in UNTOLD and not SECRET.search(key)}
    plain = {key: str(value) for key, value in told.items() if isinstance(value, str | int | float)}
    return {"version": str(info.get("version", "unknown")), **plain}


def hardware(url: str, cell: CellSpec) -> Hardware:
    """This machine's for a server on it, else nothing is known."""
    return here(cell.engine.device, {}) if urlsplit(url).hostname in LOOPBACK else UNKNOWN


def hardware_of(cell: CellSpec) -> Hardware:
    """That of the cell's server, launched here or found at its URL."""
    return hardware(cell.engine.url, cell) if cell.engine.url else launched_on(cell)


def speculation(info: Mapping[str, Any]) -> SpeculationSpec:
    name = info.get("speculative_algorithm")
    if name not in ALGORITHMS:
        raise ProtocolError(f"GET /server_info: speculative_algorithm={name} is none that the gates know")
    match ALGORITHMS[name]:
        case "none":
            return SpeculationSpec()
        case "ngram":
            return SpeculationSpec(algorithm="ngram", num_draft_tokens=_number(info, "speculative_num_draft_tokens"))
        case "dspark":
            return _block(info)
        case chain:
            return SpeculationSpec(
                algorithm=chain,
                num_steps=_number(info, "speculative_num_steps"),
                num_draft_tokens=_number(info, "speculative_num_draft_tokens"),
                draft_path=None if chain == "nextn" else info.get("speculative_draft_model_path"),
            )


def _number(info: Mapping[str, Any], key: str) -> int:
    if not isinstance(info.get(key), int):
        raise ProtocolError(f"GET /server_info: {key}={info.get(key)} beside {info.get('speculative_algorithm')}")
    return int(info[key])


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
