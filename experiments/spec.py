"""The values everything else is a function of: a cell, and the study that it belongs to; frozen and typed.

Hydra composes dictionaries; they become this tree once, at the border, and nothing behind it ever sees a DictConfig.
The schema that refuses misspelt keys is derived from these classes (schema.py). The surprise: a cell holds no run's
paths and no times, so that two equal cells have equal hashes on any machine; those are the study's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from experiments.cluster.spec import LauncherSpec

Algorithm = Literal["none", "nextn", "dspark", "eagle3", "standalone", "ngram", "served"]
"""`served`: what an attached server has; it is replaced by that before anything else looks at it."""
VerifyMode = Literal["static", "cap-accept", "compact"]


@dataclass(frozen=True, kw_only=True)
class EngineSpec:
    """One schema for all engines; a key that one has no use for is refused there (engines/)."""

    name: str = "ling"
    """One of engines/registry.py."""
    num_threads: int | None = 1
    """None: every core but the client's, where the engine takes that."""
    max_running_requests: int | None = 8
    context_length: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    random_seed: int | None = 0
    host: str = "127.0.0.1"
    """Where a server of ours listens; any address but the loopback's is reached by other machines."""
    trust_remote_code: bool = False
    """Runs Python code that the checkpoint brings along."""
    tp_size: int | None = None
    ep_size: int | None = None
    dp_size: int | None = None
    mem_fraction_static: float | None = None
    attention_backend: str | None = None
    linear_attn_backend: str | None = None
    moe_runner_backend: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    flags: dict[str, str] = field(default_factory=dict)
    """Any other flag by its name without dashes; the empty text: a bare flag."""
    url: str | None = None
    """Of a server that somebody else runs."""
    api_key_env: str | None = None
    """Name of the environment variable that holds its key, never the key."""
    reported: dict[str, str] = field(default_factory=dict)
    """What such a server says of itself; nobody sets it."""
    gpu: str | None = None
    """Hardware that the audit is to assume; None: what nvidia-smi reports."""
    command: tuple[str, ...] = ()
    """Program that takes the engine's flags; empty: the engine's own."""
    extra_args: tuple[str, ...] = ()
    """Appended verbatim."""
    ready_timeout_s: float = 120.0
    """Limit of launch. A limit decides whether there is a result and not which, so no identity depends on it."""

    @property
    def threads(self) -> int:
        """Of a library that is given a fixed number."""
        return self.num_threads or 1

    @property
    def cores(self) -> int | None:
        """Cores of the whole server, whose tensor-parallel ranks have so many threads each; None: all that are left."""
        return self.num_threads and self.num_threads * (self.tp_size or 1)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    name: str
    path: str
    tokenizer_path: str | None = None
    revision: str | None = None
    weights: Literal["checkpoint", "drawn"] = "checkpoint"
    """drawn: random, made on the device, whose memory must do, from config.json's shapes; for times, never answers."""
    drafts: dict[str, str] = field(default_factory=dict)
    """The model's DSpark drafts by block size, for `speculation.draft_path=null`."""


@dataclass(frozen=True, kw_only=True)
class SpeculationSpec:
    """One schema for all algorithms; None: left to the algorithm, or none of its keys (speculation.py)."""

    algorithm: Algorithm = "none"
    num_steps: int | None = None
    num_draft_tokens: int | None = None
    block_size: int | None = None
    """gamma: drafts a step."""
    draft_path: str | None = None
    verify_mode: VerifyMode | None = None
    acceptance: Literal["classic", "block"] | None = None
    """Rule for sampled requests; greedy ones accept by equality."""
    greedy_draft: bool | None = None
    scheduler: Literal["causal", "global"] | None = None
    sts_path: str | None = None
    """Temperatures of the confidence head; None: 1 at every position."""
    cost_table_path: str | None = None
    """Step time by rows; None: flat, so that every row is verified."""
    allow_fallback: bool | None = None
    """Artifacts that do not fit cost a warning instead of the start."""

    @property
    def window(self) -> int:
        """Rows the target verifies per step (decisions: W = 1, steps + 1, or block + 1)."""
        match self.algorithm:
            case "none":
                return 1
            case "ngram":
                assert self.num_draft_tokens is not None
                return self.num_draft_tokens
            case "dspark":
                assert self.block_size is not None
                return self.block_size + 1
            case _:
                assert self.num_steps is not None
                return self.num_steps + 1


@dataclass(frozen=True, kw_only=True)
class WorkloadSpec:
    name: str
    dataset_name: Literal["sharegpt", "random", "random-ids"] = "sharegpt"
    dataset_path: str | None = None
    """JSON in ShareGPT's form; None: generated word problems."""
    num_prompts: int = 16
    input_len: int | None = None
    """Tokens; only where dataset_name is random or random-ids."""
    output_len: int = 64
    max_concurrency: int = 1
    warmup_prompts: int = 2
    num_shots: int = 5
    """Worked examples before each generated question."""
    seed: int = 1
    warmup_timeout_s: float = 600.0
    timeout_s: float = 3600.0
    """Limit of the benchmark."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    name: Literal["none", "gsm8k"] = "none"
    data_path: str | None = None
    """JSONL in GSM8K's form; None: generated word problems."""
    shots_path: str | None = None
    """JSONL whose first rows are the examples; None: those are the data's own first rows, which are then not asked."""
    num_questions: int = 50
    num_shots: int = 5
    max_new_tokens: int = 512
    parallel: int = 1
    floor: float | None = None
    seed: int = 2
    """Of the generated questions."""
    timeout_s: float = 7200.0


@dataclass(frozen=True, kw_only=True)
class GateSpec:
    mode: Literal["strict", "off"] = "strict"
    parity_prompts: int = 4
    parity_tokens: int = 256
    pollution_requests: int = 4
    near_tie: float | None = None
    timeout_s: float = 3600.0
    golden: str | None = None
    """Record that a cell without a baseline is held against; None: the one that ships for its model, if any."""


@dataclass(frozen=True, kw_only=True)
class ChangeSpec:
    """What the author of a candidate declares about it (decisions, section 2)."""

    rounding: Literal["preserved", "declared"] | None = None
    reason: str | None = None
    accept_bound: float = 0.05
    expect: Literal["faster", "equal"] = "faster"
    equal_margin: float = 0.01


@dataclass(frozen=True, kw_only=True)
class CalibrationSpec:
    """Makes the artifacts of scheduled verification (calibration.py)."""

    name: Literal["none", "dspark"] = "none"
    num_prompts: int = 384
    output_len: int = 256
    temperature: float = 0.0
    """At which they are continued: what the artifacts will serve."""
    seed: int = 3
    """Of the generated prompts."""
    requests: tuple[int, ...] = (1, 2, 4, 8)
    """Batches whose steps are timed."""
    rounds: int = 12
    """Times that each of them is visited."""
    timeout_s: float = 1800.0
    """Limit of each of its programs."""
    command: tuple[str, ...] = ()
    """Program that takes their arguments; empty: the runtime's own."""


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    engine: EngineSpec
    model: ModelSpec
    speculation: SpeculationSpec
    workload: WorkloadSpec
    task: TaskSpec
    gate: GateSpec
    calibration: CalibrationSpec = field(default_factory=CalibrationSpec)
    change: ChangeSpec = field(default_factory=ChangeSpec)
    env: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)

    @property
    def calibrates(self) -> bool:
        """It makes artifacts, where others measure an engine."""
        return self.calibration.name != "none"


@dataclass(frozen=True, kw_only=True)
class TrackingSpec:
    enabled: bool = True
    uri: str | None = None
    """MLflow's; None: SQLite in output_dir."""


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    pin_cores: bool = True
    """Server on the first `engine.num_threads` cores, client on the others."""
    lock: str | None = None
    """Lock file of "one measurement at a time"; None: one per machine, in the temporary directory."""


@dataclass(frozen=True, kw_only=True)
class ClaimSpec:
    """Figures that somebody states of this study's cells, for the audit to hold against what can be; nothing else."""

    accept_length: float | None = None
    expert_mb: float | None = None
    """MB (1e6) of routed experts that one layer makes one rank read in a step."""


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """What its cells share and no cell's identity depends on."""

    study: str
    output_dir: str = "outputs"
    tracking: TrackingSpec = field(default_factory=TrackingSpec)
    machine: MachineSpec = field(default_factory=MachineSpec)
    launcher: LauncherSpec = field(default_factory=LauncherSpec)
    resume: bool = False
    """Take over cells whose identity already has a record in output_dir, and share the others with other drivers."""
    retry: Literal["invalid", "none", "all"] = "invalid"
    """With `resume`: which cells that have a record are measured again all the same."""
    dry_run: bool = False
    preflight: bool = False
    audit: Literal["strict", "warn", "off"] = "warn"
    """strict: nothing starts while the audit of a cell has an error."""
    claims: ClaimSpec = field(default_factory=ClaimSpec)
