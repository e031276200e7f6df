"""Where a study's cells run, and what is asked of Slurm for them: the keys of the group `launcher`, frozen and typed.

The surprise: a key that the chosen launcher does not use is refused. A partition that nobody asks for would run a
sweep on the login node.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

from experiments.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LauncherSpec:
    name: Literal["none", "slurm", "local"] = "none"
    """none: this process measures; local: one job of submitit's on this machine, which outlives this process."""
    cells_per_job: int = 4
    """The time limit must do for so many."""
    array_parallelism: int = 4
    """Jobs at once, behind the one that measures the baseline."""
    time_min: int = 240
    """Limit of a job."""
    notice_s: int = 120
    """TERM comes so long before the limit: the cell under way ends there, and the job is requeued with the rest."""
    requeues: int = 3
    """How often a job whose time ran out goes on; preempted ones go on as often as Slurm wants."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    """Nodes of one kind: a cell on other hardware than its baseline's is refused."""
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    mem_gb: int | None = None
    exclusive: bool = True
    """No other job on the node."""
    setup: tuple[str, ...] = ()
    """Shell lines before the program, for modules and environments."""
    sbatch: dict[str, str] = field(default_factory=dict, hash=False)
    """Any other parameter of sbatch by its name without dashes; "": a bare flag."""
    wait: bool = True
    """false: submit and leave; `python -m experiments.collect` does the rest."""


COMMON = ("name", "time_min", "notice_s", "gpus_per_node", "setup", "wait")
USED = {"none": ("name",), "local": COMMON, "slurm": tuple(one.name for one in fields(LauncherSpec))}
OURS = ("array", "dependency", "signal", "requeue", "no-requeue", "output", "error", "open-mode", "time", "nodes")
"""Parameters of sbatch that decide how a sweep is carried out, and are set here."""
LEAST = {"cells_per_job": 1, "array_parallelism": 1, "time_min": 1, "notice_s": 30, "requeues": 0}
LEAST |= {"gpus_per_node": 0, "cpus_per_task": 1, "mem_gb": 1}


def check(launcher: LauncherSpec) -> None:
    """Raises ConfigError."""
    unset = LauncherSpec(name=launcher.name)
    for key in USED["slurm"]:
        if key not in USED[launcher.name] and (value := getattr(launcher, key)) != getattr(unset, key):
            problem = f"{value!r} has no effect under launcher={launcher.name}; allowed: launcher=slurm"
            raise ConfigError(f"launcher.{key}", problem)
    for key, least in LEAST.items():
        if (value := getattr(launcher, key)) is not None and value < least:
            raise ConfigError(f"launcher.{key}", f"{value} is too small; allowed: {least} and more")
    if launcher.notice_s >= launcher.time_min * 60:
        problem = f"{launcher.notice_s} s; allowed: less than launcher.time_min={launcher.time_min} minutes"
        raise ConfigError("launcher.notice_s", problem)
    if taken := [name for name in parameters(launcher) if name in OURS or name.replace("-", "_") in USED["slurm"]]:
        raise ConfigError(
            "launcher.sbatch", f"{', '.join(taken)} is set otherwise; allowed: what has no key of its own"
        )


def parameters(launcher: LauncherSpec) -> dict[str, str | bool]:
    """`sbatch` as submitit takes it."""
    return {name.replace("_", "-"): value or True for name, value in launcher.sbatch.items()}
