"""Settings of the host: refused where they cannot be, and in force where they can."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import pytest

from ling_runtime import host
from ling_runtime.arguments import parse
from ling_runtime.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ling_runtime.arguments import ServerConfig


def config(text: str) -> ServerConfig:
    return parse(["--model-path", "somewhere", *text.split()], {})


@pytest.fixture
def collector() -> Iterator[None]:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--engine-core 4096", r"--engine-core 4096: this process may use \d"),
        ("--gc-threshold 1 2 3 4", "--gc-threshold 1 2 3 4: allowed: one to 3 numbers"),
        ("--gc-threshold -1", "allowed: one to 3 numbers from 0 on"),
    ],
)
def test_what_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        host.check(config(text))


@pytest.mark.usefixtures("collector")
def test_the_collector_is_as_asked() -> None:
    host.settle(config("--gc-threshold 50000 20"))
    assert host.report()["gc_threshold"][:2] == [50000, 20]
    assert host.report()["gc_frozen"]
    gc.unfreeze()
    host.settle(config("--disable-gc-freeze"))
    assert not host.report()["gc_frozen"]


@pytest.mark.usefixtures("collector")
def test_collections_are_counted_since_it_was_last_settled() -> None:
    host.settle(config(""))
    assert host.report()["gc_collections"] == 0
    kept = [[index] for index in range(50_000)]
    gc.collect()
    once = host.report()
    assert once["gc_collections"] >= 1
    assert 0 < once["gc_longest_ms"] < 10_000
    frozen = gc.get_freeze_count()
    host.settle(config(""))
    assert gc.get_freeze_count() > frozen + len(kept) // 2, "what has come since is frozen with the rest"
    assert host.report()["gc_collections"] == 0
    assert sum(isinstance(one, host.Collections) for one in gc.callbacks) == 1


def test_the_engine_thread_is_pinned_alone() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    seen: list[dict[str, object]] = []

    def run() -> None:
        host.pin(core)
        seen.append(host.report())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[0]["engine_cores"] == [core]
    assert seen[0]["process_cores"] == sorted(before) == host.report()["engine_cores"]
