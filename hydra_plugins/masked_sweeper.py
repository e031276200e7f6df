"""Hydra's own sweeper, which writes `multirun.yaml`, and a configuration for it that holds no secrets.

Hydra takes sweepers from a package of this name alone. The surprise: nothing else reads the configuration that a
sweeper has; jobs are composed from their overrides, by the launcher, which has the real one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

from experiments import hydra_output

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig


class MaskedSweeper(BasicSweeper):
    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        hydra_output.learn(config)
        self.config = hydra_output.masked(config)
