"""The load client's own collector: a pause of it is not to be read as the engine's."""

from __future__ import annotations

import asyncio
import gc

from experiments.clients.recorded_serving import settled


def test_what_was_there_before_the_load_is_out_of_the_collectors_sight() -> None:
    old: list[object] = [[number] for number in range(1000)]
    seen: dict[str, bool] = {}

    async def load(prompts: int, *, rate: float) -> str:
        new: list[object] = []
        seen.update(old=any(one is old for one in gc.get_objects()), new=any(one is new for one in gc.get_objects()))
        return f"{prompts} at {rate}"

    try:
        assert asyncio.run(settled(load)(8, rate=1.0)) == "8 at 1.0"  # type: ignore[arg-type]
    finally:
        gc.unfreeze()
    assert seen == {"old": False, "new": True}
