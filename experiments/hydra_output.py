"""What Hydra leaves in its output directory, without secrets.

Hydra writes configuration and overrides as they were given, before any of our code runs in a job. So `output_subdir` is
null, and the same files are written from inside the job. The surprise: `multirun.yaml` has no such key, which is what
`hydra_plugins/cell_sweeper.py` sees to; and a directory that cannot be made Hydra would explain by its own stack.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments import secrets
from experiments.errors import ConfigError
from experiments.record import write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

    from omegaconf import DictConfig

DIRECTORY = ".hydra"


class OutputDirectory(Callback):
    """Makes Hydra's directory before Hydra does. Raises SystemExit from a ConfigError: all else Hydra would swallow."""

    def on_run_start(self, config: DictConfig, **_: Any) -> None:
        self._make(config, "run")

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        self._make(config, "sweep")

    def _make(self, config: DictConfig, mode: str) -> None:
        with contextlib.suppress(OmegaConfBaseException):  # a value is missing, which Hydra is about to say
            try:
                Path(config.hydra[mode].dir).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise SystemExit(2) from unwritable(config, error)


def unwritable(config: DictConfig, error: OSError) -> ConfigError:
    problem = f"nothing can be written to {config.output_dir} ({error.strerror}); allowed: a directory that takes files"
    return ConfigError("output_dir", problem)


def write(config: DictConfig) -> None:
    """A single run's configuration and its overrides. To be called inside the job. Raises ConfigError.

    Of a sweep `multirun.yaml` has them.
    """
    job = HydraConfig.get()
    if job.mode is not RunMode.RUN:
        return
    learn(config)
    directory = Path(job.runtime.output_dir, DIRECTORY)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, node in {"config": config, "overrides": job.overrides.task}.items():
            write_atomically(directory / f"{name}.yaml", OmegaConf.to_yaml(masked(node)))
    except OSError as error:
        raise unwritable(config, error) from error


def shown(compose: Callable[[], None]) -> None:
    """Call Hydra; what `--cfg` prints is read for secrets before it is printed, for no code of ours runs there."""
    if not any(argument.partition("=")[0] in ("--cfg", "-c") for argument in sys.argv):
        compose()
        return
    with contextlib.redirect_stdout(io.StringIO()) as text:
        compose()
    secrets.learn(OmegaConf.to_container(OmegaConf.create(text.getvalue())))
    sys.stdout.write(text.getvalue())


def learn(config: DictConfig) -> None:
    """The secrets of a composed configuration; Hydra's own part of it holds none but in overrides."""
    values = OmegaConf.to_container(config, resolve=False)
    assert isinstance(values, dict)
    hydra = values.pop("hydra", {})
    secrets.learn(values)
    secrets.learn(hydra.get("overrides", {}))


def masked(node: Any) -> Any:
    return OmegaConf.create(secrets.masked_tree(OmegaConf.to_container(node, resolve=False)))
