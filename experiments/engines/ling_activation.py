"""What our runtime proves to run: kernels by their call counts, blocks of drafts by the rows that were verified. Pure.

The surprise: the server's word for a kernel variant is not its name but its call count, and for a block of drafts the
rows that it verified. What was chosen and never ran is inactive.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from experiments.engines.command_line import shown
from experiments.engines.simulation import simulated_accept
from gates.flags import parse_flags
from ling_runtime.arguments import ServerConfig
from ling_runtime.flags import ONLY, SWITCHES, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from experiments.spec import CellSpec, SpeculationSpec

CHAIN = ("num_steps", "num_draft_tokens")
BLOCK = {
    "block_size": "gamma",
    "draft_path": "draft_path",
    "verify_mode": "verify_mode",
    "acceptance": "acceptance",
    "scheduler": "scheduler",
}
"""Keys of the spec by their names under `speculation` in /server_info."""

ARTIFACTS = {"sts_path": "sts", "cost_table_path": "cost_table"}
IN_USE = "in use"
COUNTED = "counted"
NONE = "none"
"""Parts of a step that found no room among the recorded ones and ran launch by launch."""
GRAPHS, EAGER = "graphs", "eager"
REPLAY = ("overlap", "seq_lens_pin", "pdl", "fused_verify_extend", "extend_graph", "glue_graph", "result_ring")
"""How replayed steps run, by its names under `executor` in /server_info."""
FIELDS = {f"--{one.name.replace('_', '-')}": one.name for one in fields(ServerConfig)}
IDLE = {*SWITCHES, *VALUES, *ONLY}
"""Flags that the server takes and does nothing by."""


def expected(cell: CellSpec) -> dict[str, Any]:
    """By dotted key, what must be seen."""
    speculation = cell.speculation
    keys: dict[str, Any] = {"speculation.algorithm": speculation.algorithm, "engine.dtype": cell.engine.dtype}
    keys |= asked_flags(cell)
    if not cell.engine.command:  # another program may not say
        keys["engine.num_threads"] = cell.engine.num_threads
    if cell.engine.tp_size is not None:
        keys["engine.tp_size"] = cell.engine.tp_size
    if cell.model.weights == "drawn":
        keys["model.weights"] = "drawn"
    keys |= _host(cell)
    if cell.engine.device == "cuda":
        keys |= _path(cell)
    if length := simulated_accept(cell):
        keys["speculation.simulated_accept"] = length
    match speculation.algorithm:
        case "nextn":
            keys |= {f"speculation.{key}": getattr(speculation, key) for key in CHAIN}
        case "dspark":
            asked = [key for key in (*BLOCK, "greedy_draft") if getattr(speculation, key) is not None]
            keys |= {f"speculation.{key}": getattr(speculation, key) for key in asked}
            needed = [] if speculation.allow_fallback else [key for key in ARTIFACTS if getattr(speculation, key)]
            keys |= {f"speculation.{key}": IN_USE for key in needed} | {"speculation.verified_rows": COUNTED}
    return keys | {f"kernels.{operator}": variant for operator, variant in sorted(cell.kernels.items())}


def observed(cell: CellSpec, info: Mapping[str, Any]) -> dict[str, Any]:
    """The same keys as `/server_info` proves them."""
    algorithm = info.get("speculative_algorithm")
    ran = {row["operator"]: row for row in info.get("kernels", ())}
    keys: dict[str, Any] = {
        "speculation.algorithm": algorithm.lower() if algorithm else "none",
        "engine.dtype": info.get("dtype"),
        "engine.tp_size": _ranks(info),
        "model.weights": "drawn" if info.get("load_format") == "dummy" else "checkpoint",
        "speculation.simulated_accept": info.get("simulated_accept_length"),
        **{name: _flag(info, name, value) for name, value in asked_flags(cell).items()},
        **_in_force(cell, info.get("host") or {}),
        **_ran(info.get("executor") or {}),
        **{f"kernels.{operator}": _seen(ran.get(operator)) for operator in sorted(cell.kernels)},
    }
    match cell.speculation.algorithm:
        case "nextn":
            keys |= {f"speculation.{key}": info.get(f"speculative_{key}") for key in CHAIN}
        case "dspark":
            keys |= _block(info)
    return {key: keys.get(key) for key in expected(cell)}


def asked_flags(cell: CellSpec) -> dict[str, str]:
    """Those of `engine.flags` and `engine.extra_args` that our server knows, as text; the empty text for a bare one."""
    own = {f"--{name}": value for name, value in cell.engine.flags.items()}
    return {
        name: value
        for name, value in (own | parse_flags(cell.engine.extra_args)).items()
        if name in FIELDS or name in IDLE
    }


def _ranks(info: Mapping[str, Any]) -> int | str | None:
    """What is asked of the server, if as many ranks say that they did the same; one rank alone says nothing."""
    size, said = info.get("tp_size"), (info.get("executor") or {}).get("ranks") or ()
    if size in (None, 1):
        return size
    agree = len({(one["calls"], one["digest"]) for one in said}) == 1
    return (
        size if agree and [one["rank"] for one in said] == [*range(size)] else f"{size}, of which {len(said)} answered"
    )


def fallbacks(speculation: SpeculationSpec, info: Mapping[str, Any]) -> Iterator[str]:
    """Remarks on artifacts that were asked for, do not fit, and were allowed not to."""
    section = info.get("speculation") or {}
    for key, name in ARTIFACTS.items():
        if speculation.allow_fallback and getattr(speculation, key) and not section.get(name):
            yield f"speculation.{key} does not fit and is not in use; the server fell back to its default"


def _host(cell: CellSpec) -> dict[str, Any]:
    """What is in force where a flag of the host was given."""
    given = asked_flags(cell)
    keys: dict[str, Any] = {}
    if core := given.get("--engine-core"):
        keys["host.engine_cores"] = [int(core)]
    if threshold := given.get("--gc-threshold"):
        keys["host.gc_threshold"] = [int(number) for number in threshold.split()]
    if "--disable-gc-freeze" in given:
        keys["host.gc_frozen"] = False
    return keys


def _in_force(cell: CellSpec, host: Mapping[str, Any]) -> dict[str, Any]:
    """Of the collector's thresholds as many as were asked for."""
    asked = _host(cell)
    seen = {key: host.get(key.partition(".")[2]) for key in asked}
    if (threshold := seen.get("host.gc_threshold")) is not None:
        seen["host.gc_threshold"] = threshold[: len(asked["host.gc_threshold"])]
    return seen


def _path(cell: CellSpec) -> dict[str, Any]:
    """How a card must have run the decode steps: what was not counted did not happen."""
    given = asked_flags(cell)
    if "--disable-cuda-graph" in given:
        return {"engine.decode": EAGER}
    if cell.speculation.verify_mode == "cap-accept":  # computes every row to try a plan out
        return {"engine.decode": EAGER}
    switches = {
        "engine.overlap": "--disable-overlap-schedule" not in given,
        "engine.seq_lens_pin": "--seq-lens-pin" in given,
        "engine.pdl": given.get("--pdl"),
        "engine.fused_verify_extend": "--fused-verify-extend" in given,
        "engine.extend_graph": "--disable-draft-extend-cuda-graph" not in given,
        "engine.glue_graph": given.get("--glue-graph"),
        "engine.result_ring": "--result-ring" in given,
        "engine.unrecorded": NONE,
    }
    return {"engine.decode": GRAPHS, **{name: value for name, value in switches.items() if value is not None}}


def _ran(decode: Mapping[str, Any]) -> dict[str, Any]:
    """What /server_info counted since the last flush; a path that no step took is none."""
    path = decode.get("path")
    if path == GRAPHS and not decode.get("replayed"):
        path = f"{GRAPHS}, none replayed"
    switches = {f"engine.{name}": decode.get(name) for name in REPLAY}
    switches["engine.unrecorded"] = ", ".join((decode.get("graph_memory") or {}).get("refused", ())) or NONE
    return {"engine.decode": path, "engine.num_threads": decode.get("threads"), **switches}


def _flag(info: Mapping[str, Any], name: str, asked: str) -> str | None:
    """As /server_info shows it, spelled as on a command line; a number as it was asked for."""
    if name in IDLE:
        return "nothing: ling_runtime takes it without effect"
    value = info.get(FIELDS[name])
    seen = shown([f"{key}={of}" for key, of in sorted(value.items())] if isinstance(value, dict) else value)
    try:
        return asked if float(asked) == float(seen or "") else seen
    except ValueError:
        return seen


def _block(info: Mapping[str, Any]) -> dict[str, Any]:
    section = info.get("speculation") or {}
    keys = {f"speculation.{key}": section.get(name) for key, name in BLOCK.items()}
    keys |= {f"speculation.{key}": IN_USE for key, name in ARTIFACTS.items() if section.get(name)}
    keys["speculation.greedy_draft"] = info.get("speculative_dspark_greedy_draft")
    return keys | {"speculation.verified_rows": _verified(section)}


def _verified(section: Mapping[str, Any]) -> str:
    """Every row where the mode is static, else at least the anchor's."""
    rows, requests = section.get("verified_rows") or 0, section.get("verify_requests") or 0
    least = section.get("window", 1) if section.get("verify_mode") == "static" else 1
    return COUNTED if rows >= requests * least > 0 else f"{rows} rows in {requests} verifications"


def _seen(row: Mapping[str, Any] | None) -> str | None:
    if row is None:
        return None
    return str(row["variant"]) if row["calls"] > 0 else f"{row['variant']}, never called"
