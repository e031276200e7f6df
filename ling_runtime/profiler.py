"""A torch profile of the engine thread, started and stopped over HTTP, written as a Chrome trace.

The surprise: both calls must run in the engine thread, because torch records the operators of the thread that started
the profile. Numbers taken meanwhile are slower and must not be compared with others.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from ling_runtime.fields import Fields
from ling_runtime.refusal import Refusal

if TYPE_CHECKING:
    import torch.profiler

ACTIVITIES = ("CPU", "GPU")

NEUTRAL: dict[str, tuple[object, ...]] = {
    "num_steps": (),
    "start_step": (),
    "profile_by_stage": (False,),
    "profile_stages": ([],),
    "merge_profiles": (False,),
    "detailed_annotations": (False,),
}


class Profiler:
    def __init__(self) -> None:
        self._running: torch.profiler.profile | None = None
        self._file = Path()

    def start(self, body: object) -> None:
        """Read SGLang's profile request and begin; Refusal when a profile is running already."""
        import torch.profiler  # noqa: PLC0415 - the server's tests run without torch

        fields = Fields("profile", body)
        fields.neutral(NEUTRAL)
        fields.ignore(("profile_id",))
        directory = Path(fields.string("output_dir", "profiles"))
        prefix = fields.string("profile_prefix", "ling_runtime")
        activities = fields.strings("activities") or ("CPU",)
        with_stack, record_shapes = fields.boolean("with_stack", False), fields.boolean("record_shapes", False)
        fields.finish()
        if not set(activities) <= set(ACTIVITIES):
            raise Refusal(f"profile: activities {activities}; allowed: {', '.join(ACTIVITIES)}", param="activities")
        if self._running is not None:
            raise Refusal("a profile is running already; stop it first")
        wanted = [torch.profiler.ProfilerActivity.CPU]
        if "GPU" in activities and torch.cuda.is_available():
            wanted.append(torch.profiler.ProfilerActivity.CUDA)
        self._file = _trace_file(directory, prefix)
        self._running = torch.profiler.profile(activities=wanted, with_stack=with_stack, record_shapes=record_shapes)
        self._running.start()

    def stop(self) -> Path:
        """End the profile and write its trace; returns the file."""
        if self._running is None:
            raise Refusal("no profile is running")
        profile, self._running = self._running, None
        profile.stop()
        profile.export_chrome_trace(str(self._file))
        return self._file

    def abandon(self) -> None:
        """End a profile that nobody stopped; left running when its thread ends, it takes the process down at exit."""
        if self._running is not None:
            self._running.stop()
            self._running = None
            self._file.unlink(missing_ok=True)


def _trace_file(directory: Path, prefix: str) -> Path:
    """An empty file to be written at the end; Refusal now when it cannot be."""
    file = directory / f"{prefix}-{time.time_ns()}.trace.json.gz"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file.touch()
    except (OSError, ValueError) as error:  # ValueError: a NUL or half a surrogate pair in the name
        raise Refusal(f"profile: no trace can be written to {str(file)!r}: {error}", param="output_dir") from error
    return file
