"""A live server as everybody behind the launch sees it, whoever started it.

The surprise: of the two kinds the one that is not ours is the simpler. It cannot be launched, blamed or stopped, and
leaves no log here; what it does wrong shows in its answers alone.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol, Self

from experiments.clients.generate import ProtocolError
from experiments.engines.registry import engine_of
from experiments.errors import EngineError
from experiments.limits import within
from experiments.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    from experiments.engines.interface import EngineClient
    from experiments.spec import CellSpec


class Running(Protocol):
    """A context manager; see Server for what each raises."""

    name: str
    url: str
    client: EngineClient

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def supervisor_pid(self) -> int | None:
        """Whose children it is; None: not ours."""
        ...

    def line(self) -> str:
        """What started it, to paste."""
        ...

    def wait_ready(self, timeout_s: float) -> float: ...
    def log(self) -> str: ...
    def check_alive(self) -> None: ...
    def blamed(self) -> AbstractContextManager[None]: ...
    def blame(self) -> None: ...
    def stop(self) -> None:
        """Ends the process, if it is ours; what it held is waited for at the context's end. Once more does nothing."""
        ...


class Attached:
    """Somebody else's, at the cell's URL."""

    def __init__(self, cell: CellSpec) -> None:
        assert cell.engine.url is not None, "the engine refuses a cell without"
        self.url = cell.engine.url
        self.client = engine_of(cell).client(cell, self.url)
        self.name = cell.model.name
        self.supervisor_pid: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def line(self) -> str:
        return f"# {self.url} runs already"

    def wait_ready(self, timeout_s: float) -> float:
        """Ready is whoever generates a token. Raises EngineError, PhaseTimeout."""
        try:
            with within("launch", timeout_s):
                answer = self.client.generate(text="1", max_new_tokens=1, ignore_eos=True)
        except ProtocolError as error:
            raise EngineError(f"{self.url}: {error}") from error
        if answer.completion_tokens != 1:
            raise EngineError(f"{self.url}: asked for one token, got {answer.completion_tokens}")
        return answer.latency_s

    def log(self) -> str:
        return ""

    def check_alive(self) -> None:
        pass

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        try:
            yield
        except ProtocolError as error:
            raise EngineError(f"{self.url}: {error}") from error

    def blame(self) -> None:
        pass

    def stop(self) -> None:
        pass


def running(cell: CellSpec, *, log: Path, cores: Sequence[int] = ()) -> Running:
    """Launched for the cell, or already there."""
    return Server(cell, log=log, cores=cores) if engine_of(cell).started else Attached(cell)
