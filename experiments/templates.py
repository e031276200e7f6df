"""Configurations that differ in a few values, composed once: Hydra takes a fifteenth of a second for each.

Nearly all of that goes into groups. The surprise: what chooses no group is put on a copy by Hydra's own code, so that
every check is made and every error reads as if the whole had been composed with it.
"""

from __future__ import annotations

import copy
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from hydra import compose
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import open_dict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


def composed(name: str, before: Sequence[str], after: Sequence[str], dropped: Sequence[str] = ()) -> DictConfig:
    """As Hydra composes `name` with the overrides `before` and then `after`; those before are composed once.

    The keys `dropped` are left out. To be called inside a job. Raises HydraException.
    """
    values = [one for one in map(parsed, after) if not needs_hydra(one)]
    groups = [text for text in after if needs_hydra(parsed(text))]
    config = copy.deepcopy(template(name, (*before, *groups), tuple(dropped)))
    ConfigLoaderImpl._apply_overrides_to_config(values, config)  # noqa: SLF001 - Hydra is pinned, and this is its meaning
    return config


@lru_cache(maxsize=64)
def template(name: str, overrides: tuple[str, ...], dropped: tuple[str, ...] = ()) -> DictConfig:
    config = compose(name, [*overrides])
    with open_dict(config):
        for key in dropped:
            del config[key]
    return config


@cache
def parsed(text: str) -> Override:
    (override,) = OverridesParser.create().parse_overrides([text])
    return override


def needs_hydra(override: Override) -> bool:
    """It chooses a group, or is one that Hydra takes or refuses itself."""
    if override.is_hydra_override() or override.is_sweep_override():
        return True
    loader = GlobalHydra.instance().config_loader()
    assert isinstance(loader, ConfigLoaderImpl)
    return loader.repository.group_exists(override.key_or_group) and not isinstance(override.value(), dict)
