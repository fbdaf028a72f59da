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
    unnamed = set()
    for layer in harness.model.weights:
        if isinstance(layer, Linear):
            found.setdefault(layer.site, []).extend(modules_of(layer))
        elif isinstance(layer, LMHead) and layer._tied_to is None:
            found["lm_head"] = modules_of(layer)
        elif isinstance(layer, LMHead):  # loads no module of its own
            unnamed.add("lm_head")
        elif isinstance(layer, Experts):
            (site,) = facts.moe
            if own := modules_of(layer):
                gate_up, down = own
                found.setdefault(site.site, []).append((*gate_up[: 1 + site.gated], down[0]))
            else:  # stacked ones are tensors of no module
                unnamed.add(site.site)
    named = {site.site: list(site.modules) for site in (*facts.linear, *facts.moe) if site.site not in unnamed}
    quantizable = {site.site for site in facts.linear if site.quantizable} | {site.site for site in facts.moe}
    assert {site: modules for site, modules in named.items() if modules} == {
        site: modules for site, modules in found.items() if site in quantizable
    }
