"""Facts name the modules that the layers of their sites load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from test_native import VARIANTS

from llmk.nn import Linear, LMHead
from llmk.nn.moe import Experts
from llmk_testing.model import ModelHarness


def modules_of(layer: Linear | Experts | LMHead) -> list[tuple[str, ...]]:
    """By parameter."""
    parameters = [p for p in layer.parameters if p.names[0].endswith("weight")]
    return [tuple(name.removesuffix(".weight") for name in parameter.names) for parameter in parameters]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_facts_name_the_modules_of_layers(variant: str, make_checkpoint: Callable[..., Path]) -> None:
    model_type, config = VARIANTS[variant]
    harness = ModelHarness.of(make_checkpoint(model_type, **config))
    facts, found = harness.boot.facts, {}
    for layer in harness.model.weights:
        if isinstance(layer, Linear):
            found.setdefault(layer.site, []).extend(modules_of(layer))
        elif isinstance(layer, Experts) and modules_of(layer):  # stacked ones are no modules
            (gate_up, down), (site,) = modules_of(layer), facts.moe
            found.setdefault(site.site, []).append((*gate_up[: 1 + site.gated], down[0]))
        elif isinstance(layer, LMHead):
            # A tied head is called as an own one would be.
            found["lm_head"] = modules_of(layer) if layer._tied_to is None else [("lm_head",)]
    named = {site.site: list(site.modules) for site in (*facts.linear, *facts.moe)}
    quantizable = {site.site for site in facts.linear if site.quantizable} | {site.site for site in facts.moe}
    assert {site: modules for site, modules in named.items() if modules} == {
        site: modules for site, modules in found.items() if site in quantizable
    }
