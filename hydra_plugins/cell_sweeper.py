"""Hydra's `-m` for jobs that measure nothing: here a job only adds its cells to a list (run.py).

So a thousand of them need no directories, no logs and no thousand compositions. The surprise: `multirun.yaml` comes
without secrets, for nothing but it reads the configuration that a sweeper has; jobs are composed from their overrides.
With any launcher but Hydra's basic one jobs are real, and all the rest is Hydra's own.
"""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, read_write

from experiments import hydra_output
from experiments.templates import composed

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig


class CellSweeper(BasicSweeper):
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self._task, self._given = task_function, config
        hydra_output.learn(config)
        self.config = hydra_output.masked(config)
        OmegaConf.copy_cache(config, self.config)  # the time in its directory's name is the one of before

    def sweep(self, arguments: list[str]) -> Any:
        if not isinstance(self.launcher, BasicLauncher):
            return super().sweep(arguments)
        assert self.config is not None
        assert self.hydra_context is not None
        directory = Path(self.config.hydra.sweep.dir)
        directory.mkdir(parents=True, exist_ok=True)
        OmegaConf.save(self.config, directory / "multirun.yaml")
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        axes = parser.parse_overrides([*(f"{key}={value}" for key, value in self.params.items()), *arguments])
        (jobs,) = self.split_arguments(axes, None)
        HydraConfig.instance().set_config(self._given)  # Hydra wants its own types there
        hydra: Any = HydraConfig.get()
        common = sum(1 for _ in takewhile(lambda values: len({*values}) == 1, zip(*jobs, strict=True)))
        for job in jobs:
            with read_write(hydra):
                hydra.overrides.task = job
            self._task(composed(str(hydra.job.config_name), job[:common], job[common:]))
        return []


NODE = {"_target_": f"{__name__}.CellSweeper", "max_batch_size": None, "params": None}
ConfigStore.instance().store(group="hydra/sweeper", name="cells", node=NODE, provider="ling-bench")
