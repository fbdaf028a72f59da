"""The checkpoint's names of the modules at linear sites. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmk.api import LinearFacts

Modules = Mapping[str, tuple[str, ...]]
"""For each linear site, the modules of a layer that it packs, below the layer's name."""

ATTENTION: Modules = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
}
DENSE: Modules = {"gate_up": ("mlp.gate_proj", "mlp.up_proj"), "down": ("mlp.down_proj",)}


def shared(site: str, block: str) -> Modules:
    """The sites of shared experts, whose names have the prefix ``site``, in ``block``."""
    return {
        f"{site}gate_up": (f"{block}.gate_proj", f"{block}.up_proj"),
        f"{site}down": (f"{block}.down_proj",),
    }


def with_modules(
    sites: Sequence[LinearFacts], *kinds: tuple[Modules, Sequence[int]], prefix: str = "model.layers"
) -> tuple[LinearFacts, ...]:
    """``sites`` with the modules of those that one of ``kinds`` names, which are pairs of sites and layers."""
    found = {
        site: tuple(tuple(f"{prefix}.{layer}.{part}" for part in parts) for layer in layers)
        for modules, layers in kinds
        for site, parts in modules.items()
    }
    return tuple(replace(site, modules=found.get(site.site, ())) for site in sites)


def where(flags: Sequence[bool], wanted: bool = True) -> list[int]:
    """The layers whose flag is ``wanted``."""
    return [layer for layer, flag in enumerate(flags) if flag == wanted]
