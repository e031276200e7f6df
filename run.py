"""`python run.py [overrides]`: Hydra composes the cells, experiments/study.py runs them.

The surprise: a Hydra job measures nothing. It adds its cells to the list; the list runs when Hydra is done, so that a
mistake in the last job of a sweep is found before the first cell starts, and all jobs share one table and one verdict.
"""

from __future__ import annotations

import gc
import sys
import traceback
from typing import TYPE_CHECKING

try:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
except ModuleNotFoundError as error:
    print(f"{error}: `make install` once, and `. .venv/bin/activate` in every new shell", file=sys.stderr)
    sys.exit(2)

from experiments import composition, hydra_output, schema, terminal
from experiments.arguments import spelled
from experiments.cluster import hydra_keys
from experiments.errors import ConfigError, Interrupted
from experiments.interrupts import heard, interruptible, shielded

if TYPE_CHECKING:
    from omegaconf import DictConfig

configs: list[DictConfig] = []
refused: list[ConfigError] = []


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def compose(config: DictConfig) -> None:
    try:
        hydra_output.write(config)
        configs.extend(map(hydra_keys.translated, composition.expand(config)))
    except ConfigError as error:  # Hydra would explain it by a stack
        refused.append(error)


def main() -> int:
    try:
        with interruptible():
            return run()
    except Interrupted as interrupt:
        from experiments import summary  # noqa: PLC0415 - seconds of imports that --help need not wait for

        return summary.conclude([], stopped=f"interrupted by {interrupt} before anything started")
    except Exception as error:  # noqa: BLE001 - Python's own code for it is 1, which says that a cell was rejected
        from experiments import summary  # noqa: PLC0415 - as above

        traceback.print_exc()
        return summary.conclude([], stopped=f"a fault of this program: {error!r}")


def run() -> int:
    try:
        hydra_output.shown(compose)
    except SystemExit as stop:
        heard()
        # Hydra's own way out: --help, or an error that it has explained; with a cause it is ours
        return refuse(stop.__cause__ or stop.__context__) if stop.code else 0
    except (HydraException, OmegaConfBaseException) as error:  # as they come under HYDRA_FULL_ERROR=1
        heard()
        traceback.print_exc()
        return refuse(error)
    if refused:
        return refuse(refused[0])
    if not configs:  # --cfg, --info
        return 0
    with shielded():  # a compiled module whose import was cut off cannot be imported again, not even to say why
        from experiments import study  # noqa: PLC0415 - as above
        from experiments.cluster import launch  # noqa: PLC0415 - as above
        from experiments.comparison import course  # noqa: PLC0415 - as above

    if configs[0].mode in ("ab", "campaign"):
        return course.main(configs)
    if configs[0].launcher.name != "none":
        return launch.main(configs)
    return study.main(configs)


def refuse(error: BaseException | None) -> int:
    with shielded():  # as above
        from experiments import summary  # noqa: PLC0415 - as above

    return summary.refuse(error) if isinstance(error, ConfigError) else summary.refuse_composition(error)


schema.register()
if __name__ == "__main__":
    sys.argv[1:] = spelled(sys.argv[1:])
    terminal.guard()
    code = main()
    gc.freeze()  # or the interpreter's end walks all that MLflow loaded: a second between the last line and the exit
    sys.exit(code)
