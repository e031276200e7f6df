"""`-m hydra/launcher=submitit_slurm` for those who expect it: the plugin's keys as the group `launcher`.

The plugin itself (hydra-submitit-launcher, last released in 2022) composes each job on its node, returns nothing once
a job has failed, and knows no baseline. The surprise: only the names are the plugin's, and it need not be installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from experiments.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

TARGET = "hydra_plugins.ling_bench_launcher.SubmititNames"
RENAMED = {"timeout_min": "time_min", "signal_delay_s": "notice_s", "max_num_timeout": "requeues", "cluster": "name"}
SAME = (
    *("partition", "account", "qos", "constraint", "exclusive"),
    *("gpus_per_node", "cpus_per_task", "mem_gb", "setup", "array_parallelism"),
)
PLAIN = ("comment", "exclude", "gres", "cpus_per_gpu", "gpus_per_task", "mem_per_gpu", "mem_per_cpu")
"""Parameters of sbatch under their own names."""


def translated(config: DictConfig) -> DictConfig:
    """A composed cell with its `launcher`. To be called inside a Hydra job. Raises ConfigError."""
    job = HydraConfig.get()
    if job.mode != RunMode.MULTIRUN or job.launcher["_target_"] != TARGET:
        return config
    if config.launcher.name != "none":
        raise ConfigError("launcher", f"{config.launcher.name} beside hydra/launcher; allowed: one of them")
    asked = OmegaConf.to_container(job.launcher, resolve=True)
    assert isinstance(asked, dict)
    merged = OmegaConf.merge(config, {"launcher": launcher({str(key): value for key, value in asked.items()})})
    assert isinstance(merged, DictConfig)
    return merged


def launcher(asked: Mapping[str, Any]) -> dict[str, Any]:
    """One job per cell, as Hydra has it."""
    values = {RENAMED.get(key, key): value for key, value in asked.items() if key in (*RENAMED, *SAME)}
    if values["name"] == "slurm":
        more = {key: asked[key] for key in PLAIN if asked[key] is not None} | asked["additional_parameters"]
        sbatch = {key.replace("_", "-"): "" if value is True else str(value) for key, value in more.items()}
        values |= {"cells_per_job": 1, "sbatch": sbatch}
    return values
