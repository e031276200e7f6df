"""All memory of the running requests behind one handle, and the view of it that one forward pass gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ling_runtime.memory.latent import LatentPool, LatentView, Places
from ling_runtime.memory.recurrent import RecurrentPool

if TYPE_CHECKING:
    import torch

    from ling_runtime.config import ModelConfig
    from ling_runtime.memory.window import Window


@dataclass(frozen=True)
class Pass:
    """What layers see: the window's rows, the state pool to read and stage in, the cache to write and read."""

    window: Window
    places: Places
    recurrent: RecurrentPool
    latent: LatentPool

    def latent_view(self, layer: int) -> LatentView:
        return self.latent.view(layer, self.window, self.places)


class Caches:
    """Slots 1..max_requests; slot 0 is the padding rows' own. The NEXTN layer is the latent pool's last layer."""

    def __init__(
        self, config: ModelConfig, *, max_requests: int, pages: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        layers = len(config.layers(mla=True)) + config.num_nextn_predict_layers
        self.recurrent = RecurrentPool(config, max_requests + 1, dtype=dtype, device=device)
        self.latent = LatentPool(layers, pages + 1, config.latent_width, dtype=dtype, device=device)
        self.slots = max_requests
        self._free = list(range(max_requests, 0, -1))

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def can_reserve(self, tokens: int) -> bool:
        return bool(self._free) and self.latent.can_reserve(tokens)

    def reserve(self, tokens: int) -> int:
        """A cleared slot with pages for `tokens` positions."""
        slot = self._free.pop()
        self.latent.reserve(slot, tokens)
        self.recurrent.clear(slot)
        return slot

    def release(self, slot: int) -> None:
        self.latent.release(slot)
        self._free.append(slot)

    def begin(self, window: Window) -> Pass:
        return Pass(window, self.latent.places(window), self.recurrent, self.latent)
