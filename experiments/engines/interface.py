"""What an engine is: how its server is started, what it can do, and how it proves what it runs.

The surprise: an engine has no state. It is asked about a cell and answers with values; whoever launches, loads and
stops a server (server.py, measurement.py) is the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from experiments.clients.generate import GenerateClient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from experiments.audit.finding import Finding
    from experiments.clients.generate import Generation
    from experiments.command import Command
    from experiments.spec import Algorithm, CellSpec
    from experiments.workloads import Data


LAUNCH_KEYS = (
    *("trust_remote_code", "tp_size", "ep_size", "dp_size", "mem_fraction_static", "attention_backend"),
    *("linear_attn_backend", "moe_runner_backend", "quantization", "kv_cache_dtype", "flags"),
)
OWN_KEYS = (*LAUNCH_KEYS, "url", "api_key_env", "gpu")
"""Keys of the engine group that some engines have and others lack."""


class EngineClient(Protocol):
    """What warm-up, tasks, gates and comparisons ask of a live server. Every call raises ProtocolError."""

    @property
    def base_url(self) -> str: ...

    def generate(
        self,
        *,
        text: str | None = None,
        input_ids: Sequence[int] | None = None,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = -1,
        min_p: float = 0.0,
        stop: Sequence[str] = (),
        ignore_eos: bool = False,
        seed: int | None = None,
        return_logprob: bool = False,
        top_logprobs_num: int = 0,
        logprob_start_len: int = -1,
        stream: bool = False,
    ) -> Generation:
        """One completion of `text` or of `input_ids`, exactly one of them."""
        ...

    def models(self) -> list[str]:
        """Served model names."""
        ...

    def server_info(self) -> dict[str, Any]:
        """What the server says of itself; {} where the protocol has no such call."""
        ...

    def flush_cache(self) -> None: ...

    def close(self) -> None: ...


class Engine(ABC):
    """One kind of server. A new one is a file with a subclass and a line in registry.py."""

    name: ClassVar[str]
    backend: ClassVar[str] = "sglang"
    """`--backend` of SGLang's load client."""
    algorithms: ClassVar[tuple[Algorithm, ...]] = ("none",)
    """Speculation that it can be asked for."""
    without: ClassVar[str] = ""
    """Why for no other."""
    draws: ClassVar[bool] = False
    """It takes model.weights=drawn."""
    keys: ClassVar[tuple[str, ...]] = ()
    """Of OWN_KEYS those that it has a use for."""
    started: ClassVar[bool] = True
    """False: somebody else's server, which is neither started nor stopped."""
    hub: ClassVar[bool] = False
    """Models and drafts may be ids of a hub (org/name), where other engines want directories."""

    def completed(self, cell: CellSpec, asked: CellSpec) -> CellSpec:
        """`cell` with what this engine alone adds to it; `asked` is how it was configured. Raises ConfigError."""
        return cell

    @abstractmethod
    def check(self, cell: CellSpec) -> None:
        """Raises ConfigError for what this engine cannot do with the completed cell."""

    def check_installed(self, cell: CellSpec) -> None:  # noqa: B027 - most have nothing to look for
        """Raises ConfigError where the server's program is not on this machine. A dry run does not ask."""

    @abstractmethod
    def command(self, cell: CellSpec, *, port: int, served_name: str) -> Command:
        """What starts the server, bound to loopback."""

    def lines(self, cell: CellSpec, url: str, data: Data) -> dict[str, Command]:
        """Further lines for a dry run to print, by what each is for; this program runs none of them."""
        return {}

    def client(self, cell: CellSpec, url: str, *, timeout_s: float = 600.0) -> EngineClient:
        return GenerateClient(url, timeout_s)

    @abstractmethod
    def expected(self, cell: CellSpec) -> dict[str, Any]:
        """By dotted key, what the server must prove to run."""

    @abstractmethod
    def observed(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> dict[str, Any]:
        """The same keys as `/server_info` and the server's log prove them; None where nothing does."""

    def remarks(self, cell: CellSpec, info: Mapping[str, Any], log: str) -> Iterator[str]:
        """What a reader of the record should know beside its figures."""
        yield from ()

    def audit(self, cell: CellSpec) -> tuple[Finding, ...]:
        """Pre-flight findings on this cell."""
        return ()
