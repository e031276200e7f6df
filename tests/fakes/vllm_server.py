"""A vLLM that says what the real one says: its recorded answers (vllm_recorded.json) with other tokens in them.

Run it as a child process in the place of `python -m vllm.entrypoints.openai.api_server`. The surprise: it has no form
of its own. Whatever is not a token, a count or a reason in an answer is as vLLM 0.32.0 wrote it.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import language

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("vllm_recorded.json").read_text())
FAULTS = {
    "other_tokens": "other tokens from position 40 on",
    "miscounts": "usage has a token too many",
    "caches": "prefix caching is on, whatever was asked for",
    "no_usage": "streams without usage",
}


class Handler(BaseHTTPRequestHandler):
    options: argparse.Namespace
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        models = copy.deepcopy(RECORDED["models"])
        card = models["data"][0]
        card |= {"id": self.options.served_model_name, "root": self.options.model}
        card["max_model_len"] = self.options.max_model_len
        known = {"/v1/models": models, "/version": RECORDED["version"], "/health": {}}
        path = self.path.split("?")[0]
        self.send(known.get(path, {"detail": "Not Found"}), 200 if path in known else 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path != "/v1/completions":
            self.send({"detail": "Not Found"}, 404)
        elif body["model"] != self.options.served_model_name:
            self.send(RECORDED["unknown_model"]["body"], RECORDED["unknown_model"]["status"])
        elif body.get("stream"):
            self.stream(body)
        else:
            self.send(self.whole(body))

    def tokens(self, body: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...], str, str | None]:
        """Ids of prompt and answer, the answer's text, and the stop string that ended it."""
        asked = body["prompt"]
        prompt = language.encode(asked) if isinstance(asked, str) else tuple(asked)
        salt = "changed" if "other_tokens" in self.options.fault else ""
        ids = language.continuation(prompt, body["max_tokens"], salt=salt)
        text = language.decode(ids)
        for string in body.get("stop") or ():
            if string in text:
                end = text.index(string)
                return prompt, ids[: end + len(string)], text[:end], string
        return prompt, ids, text, None

    def usage(self, prompt: tuple[int, ...], count: int) -> dict[str, Any]:
        count += "miscounts" in self.options.fault
        used = copy.deepcopy(RECORDED["plain"]["body"]["usage"])
        return used | {
            "prompt_tokens": len(prompt),
            "completion_tokens": count,
            "total_tokens": len(prompt) + count,
        }

    def whole(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, ids, text, stop = self.tokens(body)
        time.sleep(len(ids) * self.options.step_ms / 1e3)
        answer = copy.deepcopy(RECORDED["stopped" if stop else "plain"]["body"])
        choice = answer["choices"][0] | {"text": text, "token_ids": list(ids), "prompt_token_ids": list(prompt)}
        choice |= {"finish_reason": "stop" if stop else "length", "stop_reason": stop}
        if (top := body.get("logprobs")) is not None:
            names = [f"token_id:{token}" for token in ids]
            choice["logprobs"] = RECORDED["completion"]["body"]["choices"][0]["logprobs"] | {
                "token_logprobs": [-0.125] * len(ids),
                "tokens": names,
                "top_logprobs": [{f"token_id:{one}": value for one, value in near(token, top)} for token in ids],
            }
        if (top := body.get("prompt_logprobs")) is not None:
            rows = [{str(one): scored(value, rank) for rank, (one, value) in enumerate(near(t, top))} for t in prompt]
            choice["prompt_logprobs"] = [None, *rows[1:]]
        counts = {"usage": self.usage(prompt, len(ids)), **self.metrics(len(ids))}
        return answer | {"choices": [choice], "model": body["model"], **counts}

    def metrics(self, tokens: int) -> dict[str, Any]:
        """What speculation did for a request; without it nothing."""
        if not self.options.speculative_config:
            return {}
        window = json.loads(self.options.speculative_config)["num_speculative_tokens"] + 1
        steps = language.steps(tokens, window)[-1].verifies
        told = RECORDED["speculated"]["metrics"]["speculative_decoding"]
        own = {"num_spec_steps": steps, "num_accepted_draft_tokens": tokens - 1 - steps}
        return {"metrics": {"speculative_decoding": told | own}}

    def stream(self, body: dict[str, Any]) -> None:
        """A chunk for each token; the last has a reason, and behind it comes one of usage alone."""
        prompt, ids, text, stop = self.tokens(body)
        *chunks, last = [json.loads(line.removeprefix("data: ")) for line in RECORDED["stream"][:-1]]
        options = body.get("stream_options") or {}
        counted = options.get("include_usage") and "no_usage" not in self.options.fault
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for index, token in enumerate(ids):
            time.sleep(self.options.step_ms / 1e3)
            end = index == len(ids) - 1
            chunk = copy.deepcopy(chunks[0 if index == 0 else -1 if end else 1])
            choice = chunk["choices"][0] | {"text": text[index : index + 1]}
            choice |= {"token_ids": [token]} if body.get("return_token_ids") else {}
            reason = {"finish_reason": "stop" if stop else "length", "stop_reason": stop} if end else {}
            chunk["choices"] = [choice | reason]
            chunk.pop("usage", None)
            if counted and options.get("continuous_usage_stats"):
                chunk["usage"] = self.usage(prompt, index + 1)
            self.event(chunk)
        if counted:
            self.event(last | {"usage": self.usage(prompt, len(ids)), **self.metrics(len(ids))})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, chunk: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())

    def send(self, payload: dict[str, Any], status: int = 200) -> None:
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def near(token: int, top: int) -> list[tuple[int, float]]:
    """The token itself first, then its neighbours; as many as were asked for, and at least itself."""
    return [((token + rank) % 256, -0.125 - 2.0 * rank) for rank in range(max(1, top))]


def scored(logprob: float, rank: int) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank + 1, "decoded_token": "?"}


def announced(options: argparse.Namespace, others: list[str]) -> str:
    """The line that the real engine begins its log with."""
    caches = "--no-enable-prefix-caching" not in others or "caches" in options.fault
    said: str = RECORDED["log"]
    if options.speculative_config:
        asked = json.loads(options.speculative_config)
        settings = f"method='{asked['method']}', model='x', num_spec_tokens={asked['num_speculative_tokens']}"
        said = said.replace("speculative_config=None", f"speculative_config=SpeculativeConfig({settings})")
    for name, value in {
        "model": f"'{options.model}'",
        "dtype": f"torch.{options.dtype}",
        "max_seq_len": options.max_model_len,
        "tensor_parallel_size": options.tensor_parallel_size,
        "seed": options.seed,
        "enable_prefix_caching": caches,
    }.items():
        said = re.sub(rf"\b{name}=('[^']*'|[^,\s]*)", f"{name}={value}", said, count=1)
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--model", "--served-model-name"):
        parser.add_argument(name, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--speculative-config")
    parser.add_argument("--fault", action="append", default=[], choices=sorted(FAULTS))
    parser.add_argument("--step-ms", type=float, default=0.2)
    options, others = parser.parse_known_args()
    print(announced(options, others), flush=True)
    Handler.options = options
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
