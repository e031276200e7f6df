"""GET /metrics in Prometheus' text format, under SGLang's metric names so that its dashboards work.

The surprise: there is no client library behind it. A dozen values that one thread writes need no registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ling_runtime.scheduler import Scheduler
    from ling_runtime.statistics import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Metric:
    name: str
    kind: str
    help: str
    value: float | None


def exposition(scheduler: Scheduler, model_name: str) -> str:
    """To be called in the engine thread, between two steps."""
    label = 'model_name="{}"'.format(model_name.replace("\\", r"\\").replace('"', r"\""))
    lifetime = scheduler.statistics.lifetime
    steps = scheduler.statistics.window.steps_ms
    lines = [line for metric in _metrics(scheduler) for line in _single(metric, label)]
    lines += _histogram("sglang:time_to_first_token_seconds", "Arrival to first token.", lifetime.ttft_s, label)
    lines += _histogram("sglang:e2e_request_latency_seconds", "Arrival to last token.", lifetime.latency_s, label)
    lines += _histogram("ling_runtime:decode_step_milliseconds", "Decode steps since the last flush.", steps, label)
    return "\n".join(lines) + "\n"


def _metrics(scheduler: Scheduler) -> Iterable[Metric]:
    lifetime = scheduler.statistics.lifetime
    accept_length = scheduler.statistics.window.accept_length() if scheduler.executor.window > 1 else None
    yield Metric("sglang:prompt_tokens_total", "counter", "Prompt tokens of ended requests.", lifetime.prompt_tokens)
    yield Metric("sglang:generation_tokens_total", "counter", "Tokens generated.", lifetime.generation_tokens)
    yield Metric("sglang:num_requests_total", "counter", "Requests ended.", lifetime.requests)
    yield Metric("sglang:num_aborted_requests_total", "counter", "Requests aborted.", lifetime.aborted_requests)
    yield Metric("sglang:num_running_reqs", "gauge", "Requests in the executor.", scheduler.num_running)
    yield Metric("sglang:num_queue_reqs", "gauge", "Requests waiting for admission.", scheduler.num_waiting)
    occupancy = scheduler.executor.occupancy()
    yield Metric("ling_runtime:free_slots", "gauge", "Request slots not in use.", occupancy.free_slots)
    yield Metric("ling_runtime:free_pages", "gauge", "Cache pages not in use.", occupancy.free_pages)
    yield Metric("sglang:spec_accept_length", "gauge", "Accept length since the last flush.", accept_length)


def _single(metric: Metric, label: str) -> list[str]:
    if metric.value is None:
        return []
    return [*_header(metric.name, metric.kind, metric.help), f"{metric.name}{{{label}}} {metric.value}"]


def _histogram(name: str, text: str, histogram: Histogram, label: str) -> list[str]:
    lines = _header(name, "histogram", text)
    below = 0
    for edge, count in zip((*histogram.edges, "+Inf"), histogram.buckets, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{label},le="{edge}"}} {below}')
    return [*lines, f"{name}_sum{{{label}}} {histogram.total}", f"{name}_count{{{label}}} {histogram.count}"]


def _header(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
