"""The two servers of a comparison: both alive where memory allows it, else restarted in turn; asked one at a time.

Whether both fit is not guessed from the checkpoint but read off the first one once it answers: what its processes hold
against what the machine has left. The surprise: alive is not loaded. Arms share the cores that serve, and the idle one
waits in a read, so restarting between slots would only add launches to what the blocks have to cancel. Nor need one
launch wait for the other: nobody measures them, and where an engine takes what it needs and not what it finds they may
overlap.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import psutil

from experiments import activation, workloads
from experiments.comparison.load import ask
from experiments.engines.registry import engine_of
from experiments.gpu import gpus
from experiments.limits import within
from experiments.running import running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Literal

    from analysis.pairs import Answer, Arm
    from experiments.activation import Activation
    from experiments.comparison.requests import Request
    from experiments.machine import Cores
    from experiments.running import Running
    from experiments.spec import CellSpec
    from experiments.workloads import Data

    Choice = Literal["auto", "together", "in_turn"]
    Start = Literal["in_turn", "at_once"]

HEADROOM = 1.25
"""Memory wanted for a second server per byte of the first: they are alike, and answering takes some more."""
MIB = 2**20


@dataclass(frozen=True)
class Room:
    """What the first server holds and what that leaves, in MiB; of the GPU that has least left where there are any."""

    held_mib: int
    left_mib: int

    @property
    def for_two(self) -> bool:
        return self.held_mib * HEADROOM <= self.left_mib


class Arms:
    """A context manager that stops whatever it started. `activation` has what each arm's server gives away."""

    def __init__(
        self,
        specs: Mapping[Arm, CellSpec],
        data: Data,
        *,
        directory: Path,
        cores: Cores,
        servers: Choice,
        start: Start = "in_turn",
        say: Callable[[str], None],
    ) -> None:
        assert start == "in_turn" or servers == "together", "checked with the configuration"
        self._specs, self._data, self._directory, self._cores = specs, data, directory, cores
        self._servers, self._start, self._say = servers, start, say
        self._live: dict[Arm, Running] = {}
        self._open = ExitStack()
        self.room: Room | None = None
        self.together: bool = servers == "together"
        self.launches = 0
        self.activation: dict[Arm, Activation] = {}
        self.commands: dict[Arm, str] = {}

    def __enter__(self) -> Self:
        """Both arms, or the first of them, ready and warm. Raises CellError."""
        try:
            if self._start == "at_once":
                self._launch("baseline", "candidate")
                self._say("both servers alive, started at once")
            else:
                self._launch_by_room()
        except BaseException:
            self._open.close()
            raise
        return self

    def _launch_by_room(self) -> None:
        """The baseline; the candidate beside it, where there is to be room for both."""
        before = _used_mib()
        self._launch("baseline")
        self.room = room(self._live["baseline"].supervisor_pid, before)
        if self._servers == "auto":
            self.together = self.room is None or self.room.for_two
        self._say(f"{'both servers alive' if self.together else 'servers in turn'}: {self.room or 'not launched here'}")
        if self.together:
            self._launch("candidate")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def renewable(self) -> bool:
        """Both servers are ours and alive at once. (In turn they are launched anew all the time.)"""
        return self.together and all(engine_of(spec).started for spec in self._specs.values())

    def relaunch(self) -> None:
        """Fresh servers for both arms, in the other order, so that neither is always the first. Raises CellError."""
        arms = [*reversed(self._live)]
        self._open.close()
        self._live.clear()
        for group in [arms] if self._start == "at_once" else [[arm] for arm in arms]:
            self._launch(*group)

    def slot(self, arm: Arm, block: int, requests: Sequence[Request]) -> list[Answer]:
        """Each request once, cold, by one arm while the other rests; then the arm's word for what it ran."""
        server, spec = self._server(arm), self._specs[arm]
        with server.blamed(), within("bench", spec.workload.timeout_s):
            server.client.flush_cache()
            answers = ask(server.client, spec, requests, arm=arm, block=block)
            self._prove(arm, server.client.server_info(), server.log())
        return answers

    def _server(self, arm: Arm) -> Running:
        if arm not in self._live:
            assert not self.together
            self._open.close()
            self._live.clear()
            self._launch(arm)
        return self._live[arm]

    def _launch(self, *arms: Arm) -> None:
        """All of them started before the first is waited for; then each in its turn ready and warm."""
        started = {arm: self._begun(arm) for arm in arms}
        for server in started.values():  # all are stopped before any waits for its GPU memory to come back
            self._open.callback(server.stop)
        for arm, server in started.items():
            load = self._specs[arm].workload
            server.wait_ready(self._specs[arm].engine.ready_timeout_s)
            with server.blamed(), within("warm-up", load.warmup_timeout_s):
                workloads.warm_up(server.client, self._data.warmup, load.input_len)
            self._live[arm] = server

    def _begun(self, arm: Arm) -> Running:
        log = self._directory / f"server-{arm}.log"
        server = self._open.enter_context(running(self._specs[arm], log=log, cores=self._cores.server))
        self.launches += 1
        self.commands[arm] = server.line()
        return server

    def _prove(self, arm: Arm, info: Mapping[str, Any], log: str) -> None:
        """The first slot that contradicts what was asked for stays on record."""
        if arm in self.activation and self.activation[arm].faults:
            return
        self.activation[arm] = activation.prove(self._specs[arm], info, log)


def room(supervisor_pid: int | None, used_before: Mapping[str, int]) -> Room | None:
    """None: the server is not ours, and there whatever we do."""
    if supervisor_pid is None:
        return None
    supervisor = psutil.Process(supervisor_pid)
    held = sum(child.memory_info().rss for child in supervisor.children(recursive=True)) // MIB
    spaces = [Room(held, psutil.virtual_memory().available // MIB)]
    for gpu in gpus():
        used, total = int(gpu["memory.used"]), int(gpu["memory.total"])
        spaces.append(Room(used - used_before.get(gpu["index"], 0), total - used))
    return min(spaces, key=lambda one: one.left_mib - HEADROOM * one.held_mib)


def _used_mib() -> dict[str, int]:
    return {gpu["index"]: int(gpu["memory.used"]) for gpu in gpus()}
