"""A small engine that speaks the protocol and can fail on demand, one `--fault` per way an engine lies or dies.

Run it as a child process: `python tests/fakes/server.py --port P --model-path DIR --served-model-name N [--fault F]`.
It takes the flags of the real one. The surprise: it sleeps `--step-ms` per verify step, so times are predictable too.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, quote_plus

import language

FAULTS = {
    "late": "answers only after half a second",
    "hang": "listens and never answers",
    "errors": "generations are HTTP 500",
    "stall": "generations never end",
    "trickle": "answers come a byte at a time, for ever",
    "die": "kills itself in a generation",
    "eat_memory": "takes memory in a generation until the kernel kills it",
    "no_cuda_memory": "generations are HTTP 500, with CUDA's words in the log",
    "no_memory_at_start": "exits with the words of PyTorch's allocator",
    "die_at_start": "prints a message and exits with 7",
    "die_mid_stream": "kills itself in the third streamed answer",
    "drop_mid_stream": "closes streams after two chunks and lives on",
    "zero_tokens": "answers without a token",
    "wrong_counts": "completion_tokens is one too high",
    "no_verify_counts": "speculation without spec_verify_ct",
    "impossible_counts": "one verify step, whatever was accepted",
    "other_name": "serves under another model name",
    "speculation_ignored": "runs without the speculation asked for",
    "mode_ignored": "verifies every row whatever mode was asked for",
    "artifacts_ignored": "runs without the artifacts that it was given",
    "uncounted": "counts no verified row",
    "kernel_ignored": "kernel variants asked for have zero calls",
    "other_tokens": "other tokens from position 40 on",
    "pollute": "other tokens once a sampled request has run, until a flush",
    "wrong_steps": "reports step times twice as long as they are",
    "ignore_term": "does not stop on TERM",
    "leak": "repeats its command line and environment in its log, in answers, in errors and in /server_info",
    "grandchild": "starts a grandchild in a session of its own",
}

IN_ANSWERS = ("errors", "stall", "trickle", "die", "eat_memory", "no_cuda_memory", "zero_tokens", "wrong_counts")
"""Those that begin with generation number `--fault-from`."""

NO_MEMORY = "RuntimeError: [enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried"
NO_CUDA_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
MOST_MEMORY_MIB = 512


class Engine:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.generations = self.streams = self.steps = self.verifies = self.accepted = 0
        self.polluted = False

    @property
    def window(self) -> int:
        options = self.options
        if options.speculative_algorithm is None or self.has("speculation_ignored"):
            return 1
        return options.speculative_num_draft_tokens or options.speculative_dspark_block_size + 1

    def has(self, fault: str) -> bool:
        begun = fault not in IN_ANSWERS or self.generations >= self.options.fault_from
        return begun and fault in self.options.fault

    def flush(self) -> None:
        self.polluted = False
        self.steps = self.verifies = self.accepted = 0

    def server_info(self) -> dict[str, Any]:
        options = vars(self.options)
        if self.has("speculation_ignored"):
            options = options | {k: None for k in options if k.startswith("speculative")}
        seconds = self.steps * self.options.step_ms / 1e3 * (2 if self.has("wrong_steps") else 1)
        calls = 0 if self.has("kernel_ignored") else self.generations
        kernels = dict(pair.split("=") for pair in self.options.kernel)
        return options | {
            "leaked": leaked() if self.has("leak") else None,
            "internal_states": [{"avg_spec_accept_length": self.accepted / max(1, self.verifies)}],
            "kernels": [
                {"operator": op, "variant": variant, "numerics": "bitwise", "calls": calls}
                for op, variant in kernels.items()
            ],
            "steps": {"count": self.steps, "total_s": seconds, "bucket_edges_ms": [1.0], "buckets": [self.steps, 0]},
            "speculation": self.speculation() if options["speculative_algorithm"] == "DSPARK" else None,
        }

    def speculation(self) -> dict[str, Any]:
        options, known = self.options, not self.has("artifacts_ignored")
        mode = "static" if self.has("mode_ignored") else options.speculative_dspark_verify_mode
        return {
            "algorithm": "DSPARK",
            "gamma": self.window - 1,
            "window": self.window,
            "verify_mode": mode,
            "scheduler": None if mode == "static" else options.speculative_dspark_scheduler,
            "acceptance": "block" if options.speculative_use_block_verification else "classic",
            "draft_path": options.speculative_draft_model_path,
            "sts": {"given": True} if known and options.speculative_dspark_confidence_sts_path else None,
            "cost_table": {"given": True} if known and options.speculative_dspark_sps_table_path else None,
            "verified_rows": 0 if self.has("uncounted") else self.verifies * self.window,
            "committed_tokens": self.accepted,
            "verify_requests": self.verifies,
            "accept_by_position": [1.0 / (k + 1) for k in range(1, self.window)],
        }

    def answer(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Cumulative payloads, one per step."""
        sampling = body["sampling_params"]
        prompt = tuple(body["input_ids"]) if "input_ids" in body else language.encode(body["text"])
        changed = self.has("other_tokens") or (self.has("pollute") and self.polluted)
        ids = language.continuation(prompt, sampling["max_new_tokens"], salt="changed" if changed else "")
        text, ids, reason = stopped(language.decode(ids), ids, sampling.get("stop", ()))
        if sampling.get("temperature", 0.0) > 0:
            self.polluted = True
        steps = language.steps(len(ids), self.window) if ids else []
        return [self.payload(body, prompt, ids[: s.tokens], s.verifies, reason, text) for s in steps]

    def payload(
        self,
        body: dict[str, Any],
        prompt: tuple[int, ...],
        ids: tuple[int, ...],
        verifies: int,
        reason: dict,
        text: str,
    ) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": f"fake-{self.generations}",
            "finish_reason": reason,
            "prompt_tokens": len(prompt),
            "completion_tokens": len(ids) + self.has("wrong_counts"),
            "cached_tokens": 0,
            "weight_version": "default",
        }
        if self.window > 1 and not self.has("no_verify_counts"):
            count = min(verifies, 1) if self.has("impossible_counts") else verifies
            meta |= {"spec_verify_ct": count, "spec_accept_length": (len(ids) - 1) / max(1, count)}
        if body.get("return_logprob"):
            top, start = body.get("top_logprobs_num", 0), body.get("logprob_start_len", -1)
            meta |= {"output_token_logprobs": language.logprobs(ids), "input_token_logprobs": []}
            if start >= 0:
                meta["input_token_logprobs"] = language.logprobs(prompt[start:])
            if top:
                meta["output_top_logprobs"] = language.alternatives(ids, top)
                meta["input_top_logprobs"] = language.alternatives(prompt[start:], top) if start >= 0 else []
        text = leaked() if self.has("leak") else text[: len(ids)]
        return {"text": text, "output_ids": list(ids), "meta_info": meta}


def leaked() -> str:
    """As JSON, as Python prints it, line by line, and as a header would have it."""
    secrets = [value for name, value in os.environ.items() if "PLANTED" in name]
    headers = [f"Authorization: Basic {base64.b64encode(secret.encode()).decode()}" for secret in secrets]
    urls = [f"http://user:{quote(secret, safe='')}@host/?token={quote_plus(secret)}" for secret in secrets]
    return "\n".join([json.dumps(secrets), repr(secrets), *secrets, *headers, *urls, *sys.argv])


def stopped(text: str, ids: tuple[int, ...], stop: list[str] | str) -> tuple[str, tuple[int, ...], dict[str, Any]]:
    """Text without the first stop string, ids up to and with it."""
    for string in [stop] if isinstance(stop, str) else stop or ():
        if string in text:
            end = text.index(string)
            return text[:end], ids[: end + len(string)], {"type": "stop", "matched": string}
    return text, ids, {"type": "length", "length": len(ids)}


class Handler(BaseHTTPRequestHandler):
    engine: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        print(f"{self.command} {self.path}", leaked() if self.engine.has("leak") else "", flush=True)

    def refused(self) -> bool:
        """Whoever brings no key is turned away; /server_info says which it would be, as SGLang's does."""
        key = self.engine.options.api_key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        self.send({"error": "Unauthorized"}, 401)
        return True

    def do_GET(self) -> None:
        if self.refused():
            return
        if self.engine.has("hang"):
            time.sleep(3600)
        options = self.engine.options
        name = "somebody-else" if self.engine.has("other_name") else options.served_model_name
        match self.path.split("?")[0]:
            case "/health" | "/health_generate":
                self.send({})
            case "/v1/models":
                self.send({"object": "list", "data": [{"id": name, "object": "model"}]})
            case "/model_info" | "/get_model_info":
                self.send({"model_path": options.model_path, "tokenizer_path": options.model_path})
            case "/server_info" | "/get_server_info":
                self.send(self.engine.server_info())
            case _:
                self.send({"error": "not found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.refused():
            return
        if self.path.startswith("/flush_cache"):
            self.engine.flush()
            self.send({})
        elif self.path == "/generate":
            self.generate(body)
        else:
            self.send({"error": "not found"}, 404)

    def generate(self, body: dict[str, Any]) -> None:
        engine = self.engine
        engine.generations += 1
        disturb(engine)
        if engine.has("trickle"):
            self.trickle()
        if engine.has("errors") or engine.has("no_cuda_memory"):
            self.send({"error": leaked() if engine.has("leak") else "the fake fails on purpose"}, 500)
            return
        if engine.has("zero_tokens"):
            reason = {"type": "stop", "matched": 0}
            payloads = [engine.payload(body, language.encode(body.get("text", "")), (), 0, reason, "")]
        else:
            payloads = engine.answer(body)
        if body.get("stream"):
            self.stream(payloads)
        else:
            for _ in payloads[1:]:
                self.step()
            self.account(payloads[-1])
            self.send(payloads[-1])

    def step(self) -> None:
        time.sleep(self.engine.options.step_ms / 1e3)
        self.engine.steps += 1

    def account(self, payload: dict[str, Any]) -> None:
        meta = payload["meta_info"]
        self.engine.verifies += meta.get("spec_verify_ct", 0)
        self.engine.accepted += meta["completion_tokens"] - 1

    def stream(self, payloads: list[dict[str, Any]]) -> None:
        self.engine.streams += 1
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number, payload in enumerate(payloads):
            if number:
                self.step()
            if number == 2 and self.engine.has("die_mid_stream") and self.engine.streams == 3:
                print("the fake dies in mid-stream on purpose", flush=True)
                signal.raise_signal(signal.SIGKILL)
            if number == 2 and self.engine.has("drop_mid_stream"):
                return
            self.wfile.write(f"data: {json.dumps(payload)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.account(payloads[-1])

    def trickle(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(2**20))
        self.end_headers()
        while True:
            self.wfile.write(b" ")
            time.sleep(0.1)

    def send(self, payload: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def disturb(engine: Engine) -> None:
    """What happens to a generation, or to the whole server, before there is an answer."""
    if engine.has("stall"):
        time.sleep(3600)
    if engine.has("no_cuda_memory"):
        print(NO_CUDA_MEMORY, flush=True)
    if engine.has("die"):
        signal.raise_signal(signal.SIGKILL)
    if engine.has("eat_memory"):
        eaten = [b"x" * 2**20 for _ in range(MOST_MEMORY_MIB)]
        sys.exit(f"{len(eaten)} MiB, and nobody killed us")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-num-steps", type=int)
    parser.add_argument("--speculative-eagle-topk", type=int)
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    parser.add_argument("--speculative-draft-model-path")
    parser.add_argument("--speculative-use-block-verification", action="store_true")
    parser.add_argument("--speculative-dspark-block-size", type=int)
    parser.add_argument("--speculative-dspark-verify-mode", default="static")
    parser.add_argument("--speculative-dspark-scheduler", default="causal")
    parser.add_argument("--speculative-dspark-confidence-sts-path")
    parser.add_argument("--speculative-dspark-sps-table-path")
    parser.add_argument("--speculative-dspark-greedy-draft", action="store_true")
    parser.add_argument("--speculative-dspark-allow-fallback", action="store_true")
    parser.add_argument("--max-running-requests", type=int, default=8)
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--random-seed", type=int)
    parser.add_argument("--admin-api-key")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--kernel", action="append", default=[])
    parser.add_argument("--api-key")
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS))
    parser.add_argument("--fault-from", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=0.2)
    return parser.parse_args(argv)


def main() -> None:
    options = arguments()
    engine = Engine(options)
    if engine.has("die_at_start"):
        print("the fake dies at start on purpose", flush=True)
        sys.exit(7)
    if engine.has("no_memory_at_start"):
        sys.exit(NO_MEMORY)
    if engine.has("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if engine.has("grandchild"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if engine.has("late"):
        time.sleep(0.5)
    Handler.engine = engine
    print(f"fake engine ready on port {options.port}", flush=True)
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
