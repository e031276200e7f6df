"""The load client's seams (request functions by backend, `orjson.loads` per chunk, JSONL at the end) in a page.

Put `tests/fakes/load_client` on PYTHONPATH and it is imported instead of SGLang's, which takes ten seconds to start.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

orjson: Any = SimpleNamespace(loads=json.loads)


@dataclass
class Asked:
    prompt: str
    output_len: int
    api_url: str


@dataclass
class Output:
    success: bool = False
    error: str = ""
    ttft: float = 0.0
    latency: float = 0.0
    start_time: float = 0.0
    output_len: int = 0


async def request_generate(request_func_input: Asked, pbar: Any = None) -> Output:
    body = {
        "text": request_func_input.prompt,
        "sampling_params": {"max_new_tokens": request_func_input.output_len, "ignore_eos": True, "temperature": 0.0},
        "stream": True,
    }
    output = Output(start_time=time.perf_counter())
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(request_func_input.api_url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            for line in response:
                data = line.strip().removeprefix(b"data: ")
                if not data or data == b"[DONE]":
                    continue
                chunk = orjson.loads(data)
                output.latency = time.perf_counter() - output.start_time
                output.ttft = output.ttft or output.latency
                output.output_len = chunk["meta_info"]["completion_tokens"]
        output.success = True
    except OSError as error:
        output.error = str(error)
    return output


ASYNC_REQUEST_FUNCS: dict[str, Any] = {"sglang": request_generate}


async def run(args: argparse.Namespace) -> None:
    rows = json.loads(Path(args.dataset_path).read_text())[: args.num_prompts]
    start = time.perf_counter()
    outputs = [
        await ASYNC_REQUEST_FUNCS["sglang"](
            request_func_input=Asked(
                row["conversations"][0]["value"], args.sharegpt_output_len, f"{args.base_url}/generate"
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
    }
    with Path(args.output_file).open("a") as out:
        out.write(json.dumps(summary) + "\n")


def cli_main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--base-url", "--dataset-path", "--output-file"):
        parser.add_argument(name, required=True)
    for name in ("--num-prompts", "--sharegpt-output-len"):
        parser.add_argument(name, type=int, required=True)
    asyncio.run(run(parser.parse_known_args()[0]))
