"""A stand-in for `sglang.launch_server`: it takes any flag, and answers and logs as SGLang 0.5.23 does.

The surprise: each thing that proves a setting can be left out by itself (`--without`, `--resolve`), because what is
tested is that its absence is noticed.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import server

VERSION = "0.5.23"
OWN = ("--without", "--resolve", "--record", "--version")
"""Flags of the stand-in: a line of the log to leave out, FIELD:VALUE to resolve differently, a file for the command."""
DEFAULTS = {"dtype": "auto", "device": "cuda", "tp_size": 1, "attention_backend": "fa3", "speculative_algorithm": None}
BLOCK = 8
"""Of the draft, where no flag says."""


def split(argv: list[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The stand-in's own flags, and SGLang's by name; the empty text for a bare one."""
    own: dict[str, list[str]] = {name: [] for name in OWN}
    flags: dict[str, str] = {}
    words = iter([*argv, "--"])
    word = next(words)
    while word != "--":
        name, word = word, next(words)
        value = ""
        if not word.startswith("--"):
            value, word = word, next(words)
        if name in OWN:
            own[name].append(value)
        else:
            flags[name] = value
    return own, flags


def resolved(flags: dict[str, str]) -> dict[str, Any]:
    """As SGLang's argument record has them."""
    info: dict[str, Any] = dict(DEFAULTS)
    for name, value in flags.items():
        info[name.removeprefix("--").replace("-", "_")] = _typed(value)
    match info["speculative_algorithm"]:
        case "NEXTN":
            info["speculative_algorithm"] = "EAGLE"
        case "DSPARK":
            info |= {"speculative_num_steps": 1, "speculative_eagle_topk": 1}
            info["speculative_num_draft_tokens"] = info.get("speculative_dspark_block_size", BLOCK) + 1
    return info


def _typed(value: str) -> Any:
    if value == "":
        return True
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def log_lines(info: dict[str, Any], env: dict[str, str]) -> dict[str, str]:
    """By a name for `--without`: what rank 0 writes while it starts."""
    lines = {}
    if env.get("SGLANG_OPT_FUSED_KDA_VERIFY") == "1":
        lines["kda"] = "KDA fused chain-verify kernel enabled (topk==1 path)."
    if info["speculative_algorithm"] != "DSPARK":
        return lines
    rows = info["speculative_num_draft_tokens"]
    backend = info.get("speculative_draft_attention_backend", "flashinfer")
    lines["draft"] = (
        f"Initialized DSpark draft runner. attention_backend={backend}, model=Ling3DSparkModel, gamma={rows - 1}, "
        f"verify_num_draft_tokens={rows}, query_token_num={rows}, sample_from_anchor=False, mask_token_id=1, "
        "markov_head=VanillaMarkovHead"
    )
    mode = env.get("SGLANG_RAGGED_VERIFY_MODE", "static")
    if mode != "static":
        table = info.get("speculative_dspark_sps_table_path", "uninitialized")
        lines["ragged"] = (
            f"DSpark ragged-verify scheduler enabled (mode={mode}, lag=0, relay_lag=1, sps_table={table}, "
            "graph_tier=dynamic)."
        )
    if path := info.get("speculative_dspark_confidence_sts_path"):
        lines["sts"] = f"DSpark STS calibration loaded from {path} (gamma={rows - 1}); per-position temperatures"
    if env.get("SGLANG_ENABLE_METADATA_GLUE_GRAPH") == "1":
        lines["glue"] = "SGLANG_ENABLE_METADATA_GLUE_GRAPH is incompatible with DFlash-family speculative decoding"
    return lines


class Engine(server.Engine):
    info: dict[str, Any]
    version: str

    @property
    def window(self) -> int:
        algorithm = self.info["speculative_algorithm"]
        return int(self.info["speculative_num_draft_tokens"]) if algorithm else 1

    def server_info(self) -> dict[str, Any]:
        accept = self.accepted / max(1, self.verifies)
        return self.info | {"version": self.version, "internal_states": [{"avg_spec_accept_length": accept}]}


def main() -> None:
    own, flags = split(sys.argv[1:])
    shown = resolved(flags)
    base = ("--model-path", "--host", "--port", "--served-model-name")
    engine = Engine(server.arguments([word for name in base for word in (name, flags[name])]))
    lines = log_lines(shown, dict(os.environ))
    engine.info = shown | {name: _typed(value) for name, _, value in (one.partition(":") for one in own["--resolve"])}
    engine.version = (own["--version"] or [VERSION])[0]
    for record in own["--record"]:
        env = {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")}
        Path(record).write_text(json.dumps({"flags": flags, "env": env}))
    for name, line in lines.items():
        if name not in own["--without"]:
            print(f"[2026-01-01 00:00:00 TP0] {line}", flush=True)
    server.Handler.engine = engine
    ThreadingHTTPServer((engine.options.host, engine.options.port), server.Handler).serve_forever()


if __name__ == "__main__":
    main()
