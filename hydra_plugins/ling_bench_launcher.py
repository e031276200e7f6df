"""What Hydra calls for `hydra/launcher=submitit_slurm|submitit_local`.

The surprise: it launches nothing. It composes every job in this process, as Hydra's own launcher does, so that a
mistake in the last one is found before the first is submitted; run.py then takes the settings from Hydra's
configuration (experiments/cluster/hydra_keys.py) and submits the whole sweep.
"""

from __future__ import annotations

from hydra._internal.core_plugins.basic_launcher import BasicLauncher


class SubmititNames(BasicLauncher):
    def __init__(self, **_settings: object) -> None:
        super().__init__()
