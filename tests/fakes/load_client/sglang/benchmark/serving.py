"""The load client's seams (request functions by backend, `orjson.loads` per chunk, JSONL at the end) in a page.

Put `tests/fakes/load_client` on PYTHONPATH and it is imported instead of SGLang's, which takes ten seconds to start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

orjson: Any = SimpleNamespace(loads=json.loads)


@dataclass
class Asked:
    prompt: str
    output_len: int
    api_url: str
    model: str
    extra_request_body: dict[str, Any]


@dataclass
class Output:
    success: bool = False
    error: str = ""
    ttft: float = 0.0
    latency: float = 0.0
    start_time: float = 0.0
    output_len: int = 0
    generated_text: str = ""


def call(url: str, body: dict[str, Any] | None = None) -> Any:
    """With the key that the environment has, if any, as the real client does it."""
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    return urllib.request.urlopen(urllib.request.Request(url, data, headers))


async def request_generate(request_func_input: Asked, pbar: Any = None) -> Output:
    body = {
        "text": request_func_input.prompt,
        "sampling_params": {"max_new_tokens": request_func_input.output_len, "ignore_eos": True, "temperature": 0.0},
        "stream": True,
    }
    output = Output(start_time=time.perf_counter())
    try:
        with call(request_func_input.api_url, body) as response:
            for data in chunks(response):
                chunk = orjson.loads(data)
                output.latency = time.perf_counter() - output.start_time
                output.ttft = output.ttft or output.latency
                output.generated_text = chunk["text"]
                output.output_len = chunk["meta_info"]["completion_tokens"]
        output.success = True
    except OSError as error:
        output.error = str(error)
    return output


async def request_completions(request_func_input: Asked, pbar: Any = None) -> Output:
    """Believes the last `usage` beside a text, and expects a text in every chunk."""
    body = {
        "model": request_func_input.model,
        "prompt": request_func_input.prompt,
        "best_of": 1,
        "max_tokens": request_func_input.output_len,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        **request_func_input.extra_request_body,
    }
    output = Output(start_time=time.perf_counter(), output_len=request_func_input.output_len)
    try:
        with call(request_func_input.api_url, body) as response:
            for data in chunks(response):
                chunk = json.loads(data)
                output.latency = time.perf_counter() - output.start_time
                if chunk["choices"][0]["text"]:
                    output.ttft = output.ttft or output.latency
                    output.output_len = (chunk.get("usage") or {}).get("completion_tokens", output.output_len)
        output.success = True
    except (OSError, IndexError) as error:
        output.error = repr(error)
    return output


def chunks(response: Any) -> Iterator[bytes]:
    for line in response:
        data = line.strip().removeprefix(b"data: ")
        if data and data != b"[DONE]":
            yield data


PATHS = {"sglang": "/generate", "vllm": "/v1/completions"}
ASYNC_REQUEST_FUNCS: dict[str, Any] = {"sglang": request_generate, "vllm": request_completions}


def server_info(base_url: str) -> Any:
    try:
        with call(f"{base_url}/server_info") as response:
            return json.load(response)
    except OSError:
        return None


async def benchmark(args: argparse.Namespace) -> None:
    rows = json.loads(Path(args.dataset_path).read_text())[: args.num_prompts]
    start = time.perf_counter()
    outputs = [
        await ASYNC_REQUEST_FUNCS[args.backend](
            request_func_input=Asked(
                prompt=row["conversations"][0]["value"],
                output_len=args.sharegpt_output_len,
                api_url=f"{args.base_url}{PATHS[args.backend]}",
                model=args.served_model_name or args.model,
                extra_request_body=json.loads(args.extra_request_body or "{}"),
            )
        )
        for row in rows
    ]
    summary = {
        "duration": time.perf_counter() - start,
        "completed": sum(output.success for output in outputs),
        "total_output_tokens": sum(output.output_len for output in outputs),
        "max_output_tokens_per_s": float(max(output.output_len for output in outputs)),
        "request_rate": float("inf"),
        "generated_texts": [output.generated_text for output in outputs],
        "server_info": server_info(args.base_url),
    }
    with Path(args.output_file).open("a") as out:
        out.write(json.dumps(summary) + "\n")


def cli_main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--backend", "--base-url", "--dataset-path", "--model", "--output-file"):
        parser.add_argument(name, required=True)
    for name in ("--num-prompts", "--sharegpt-output-len"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--served-model-name", "--extra-request-body"):
        parser.add_argument(name)
    asyncio.run(benchmark(parser.parse_known_args()[0]))
