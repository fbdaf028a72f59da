"""What a model keeps between steps, laid out in memory: every layer's view of the one pool of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmk.api import CacheLayout, CacheSpec, PluginError, RecurrentCache
from llmk.engine.device.zeros import zeros
from llmk.engine.execution.runner import CachedLayer
from llmk.planning.cache_groups import CacheGroup, page_bytes, state_offsets, width_of

if TYPE_CHECKING:
    from llmk.nn.build import Build
    from llmk.nn.model import Model


@dataclass(frozen=True, slots=True)
class CacheTensors:
    """The cache groups of a model. A block is one page in each of as many buffers as the largest group has layers; the
    layers of a group have one buffer each, and layers of different groups the same ones.
    """

    build: Build
    sites: tuple[str, ...]
    specs: tuple[CacheSpec, ...]
    groups: tuple[CacheGroup, ...]
    tails: tuple[int, int] = (0, 0)
    """Requests and drafts of each that recurrent layers have tails for (:class:`~llmk.api.DraftTails`)."""

    @classmethod
    def of(
        cls, model: Model, build: Build, groups: Sequence[CacheGroup], tails: tuple[int, int] = (0, 0)
    ) -> CacheTensors:
        """The caches of a model whose layers are grouped as ``groups``."""
        specs = model.cache_specs()
        sites = tuple(site for _, site, _ in specs)
        return cls(build, sites, tuple(spec for _, _, spec in specs), tuple(groups), tails)

    def layers(self) -> list[CachedLayer]:
        """How each layer gets its part of a step, in the order of the specs."""
        return self._in_order([
            CachedLayer(number, None if self.specs[layer].pages else self._backend(layer))
            for number, group in enumerate(self.groups)
            for layer in group.layers
        ])  # fmt: skip

    def allocate(self, num_blocks: int) -> list[Any]:
        """Each layer's cache, as :class:`~llmk.nn.StepContext` has it, in the order of the specs.

        Raises:
            PluginError: where backends lay out their blocks so that they can't share a pool.
        """
        columns = [
            self._column([group.layers[i] for group in self.groups if i < len(group.layers)], num_blocks)
            for i in range(width_of(self.groups))
        ]
        own = self._in_order([columns[i][layer] for group in self.groups for i, layer in enumerate(group.layers)])
        if self.build.shadows is not None:
            self._allocate_shadows(num_blocks, own)
        if all(self.tails):
            pairs = zip(self.specs, own, strict=True)
            own = [(*cache, *self._tails(spec)) if isinstance(spec, RecurrentCache) else cache for spec, cache in pairs]
        return own

    def _tails(self, spec: RecurrentCache) -> list[Tensor]:
        """Where one layer keeps what drafts would add to its state."""
        slots, most = self.tails
        return [self._zeros((slots + 1, most, *each.shape), getattr(torch, each.dtype)) for each in spec.inputs]

    def _allocate_shadows(self, num_blocks: int, caches: Sequence[Any]) -> None:
        """What shadows keep next to each of ``caches``, in blocks of the same numbers."""
        assert self.build.shadows is not None
        found = self.build.shadows.caches = {}
        for site, cache in zip(self.sites, caches, strict=True):
            if (backend := self.build.shadows.backends.get(site)) and (site, id(cache)) not in found:
                layout = backend.cache_layout(num_blocks)
                found[site, id(cache)] = self._zeros(layout.shape, getattr(torch, layout.dtype))

    def _column(self, layers: Sequence[int], num_blocks: int) -> dict[int, Any]:
        """One buffer, as each of ``layers`` sees it."""
        layouts = {layer: self._layout(layer, num_blocks) for layer in layers}
        shared = layouts[layers[0]]
        if shared is not None and all(layout == shared for layout in layouts.values()):
            return dict.fromkeys(layers, self._zeros(shared.shape, getattr(torch, shared.dtype)))
        page = page_bytes(self.specs)
        buffer = self._zeros((num_blocks * page,), torch.uint8)
        return {layer: self._view(buffer, page, layer, layout) for layer, layout in layouts.items()}

    def _view(self, buffer: Tensor, page: int, layer: int, layout: CacheLayout | None) -> Any:
        num_blocks = buffer.shape[0] // page
        if layout is None:
            tensors = self.specs[layer].pages
            starts = state_offsets(tensors)
            return tuple(
                _pages(buffer, page, start, (num_blocks, *tensor.shape), tensor.dtype)
                for start, tensor in zip(starts, tensors, strict=False)
            )
        if layout.block_dim:
            raise PluginError(
                f"the attention backend at {self.sites[layer]} counts blocks along dimension {layout.block_dim} of its "
                f"cache ({layout.name}), but the model mixes layers whose blocks share one pool",
                hint="choose a backend whose blocks come first, with [select.attention]",
            )
        return _pages(buffer, page, 0, layout.shape, layout.dtype)

    def _layout(self, layer: int, num_blocks: int) -> CacheLayout | None:
        return None if self.specs[layer].pages else self._backend(layer).cache_layout(num_blocks)

    def _backend(self, layer: int) -> Any:
        return self.build.attention(self.sites[layer])

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return zeros(shape, dtype, self.build.device)

    def _in_order(self, by_group: Sequence[Any]) -> list[Any]:
        """Sorts what is there for each layer, group by group, by the layers' places."""
        places = [layer for group in self.groups for layer in group.layers]
        return [item for _, item in sorted(zip(places, by_group, strict=True), key=lambda pair: pair[0])]


def _pages(buffer: Tensor, page: int, start: int, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A tensor whose first dimension goes from page to page, starting ``start`` bytes into the first."""
    typed = buffer.view(getattr(torch, dtype))
    size = typed.itemsize
    inner = [prod(shape[i + 1 :]) for i in range(1, len(shape))]
    return typed.as_strided(shape, (page // size, *inner), start // size)
