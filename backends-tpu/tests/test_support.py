"""What the JAX runtime does not understand of a tree is refused by name, before any weight is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from tiny_trees import experts, llama, with_block

from llmk.api import MoEFacts, SelectionError
from llmk.tree import MLP, Block, CausalLM, GatedMLP, Head, Heads, MoE, Rope, SelfAttention
from llmk_tpu.support import check

ROPE = Rope.with_settings(8, 64, {"rope_type": "default", "rope_theta": 10000.0})
MOE: dict[str, Any] = {"site": "moe", "num_experts": 3, "top_k": 2, "hidden_size": 24, "intermediate_size": 28}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown(Block):
    pass


def attention(rope: Rope | None = ROPE, **own: Any) -> SelfAttention:
    return SelfAttention.of("attn", 24, Heads(3, 1, 8), rope, **own)


def moe(shared: GatedMLP | None = None, **own: Any) -> MoE:
    return MoE.of("mlp", MoEFacts(**{**MOE, **own}), shared=shared)


@pytest.mark.parametrize("model", [llama(), experts()])
def test_what_is_built(model: CausalLM) -> None:
    check(model)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Unknown(at="x"), "can't build Unknown at 'x'; it builds layers of SelfAttention, GatedMLP, MoE"),
        (MLP.of("mlp", 24, 28, "relu2"), "can't build MLP at 'mlp'"),
        (GatedMLP.of("mlp", 24, 28, activation="gelu"), "GatedMLP at 'mlp' with activation = 'gelu'; activations are"),
        (GatedMLP.of("mlp", 24, 28, activation_limit=7.0), "GatedMLP at 'mlp' with activation_limit = 7.0"),
        (attention(sinks=True), "Attend at 'attn' with sinks = True"),
        (attention(value_dim=6), "Attend at 'attn' with value_dim = 6"),
        (attention(gated=True), "SelfAttention at 'attn' with gate = Gate"),
        (attention(None), "Attend at 'attn' with rope = None"),
        (
            attention(replace(ROPE, settings=(("rope_type", "longrope"),))),
            "Attend at 'attn' with rope_type = 'longrope'; types of RoPE are default, linear, llama3, yarn",
        ),
        (attention(replace(ROPE, neighbours=True)), "Attend at 'attn' with rope.neighbours = True"),
        (attention(replace(ROPE, sections=(1, 2))), "Attend at 'attn' with rope.sections = (1, 2)"),
        (moe(scoring="sigmoid"), "Experts at 'mlp.experts' with scoring = 'sigmoid'"),
        (moe(scaling=2.5), "Experts at 'mlp.experts' with scaling = 2.5"),
        (moe(selection_bias=True), "with selection_bias"),
        (moe(GatedMLP.of("mlp.shared", 24, 28, prefix="shared_")), "MoE at 'mlp' with shared = GatedMLP"),
    ],
    ids=lambda value: value.split(" with ")[-1][:30] if isinstance(value, str) else "",
)
def test_a_block_or_an_option_that_is_not(block: Any, message: str) -> None:
    with pytest.raises(SelectionError) as caught:
        check(with_block(llama(), block))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"residual_dtype": "float32"}, "CausalLM with residual_dtype = 'float32'"),
        ({"head": Head(at="lm_head", vocab_size=50, size=24, scale=0.5)}, "Head at 'lm_head' with scale = 0.5"),
        ({"layers": ((Unknown(at="layer.0"),),)}, "Unknown at 'layer.0'"),
    ],
)
def test_a_model_that_is_not(own: dict[str, Any], message: str) -> None:
    with pytest.raises(SelectionError) as caught:
        check(replace(llama(), **own))
    assert message in str(caught.value)


def test_a_field_that_a_spec_gets_later_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields that are not listed must have their defaults."""
    from llmk import tree
    from llmk_tpu.support import READ

    monkeypatch.setitem(READ, tree.Attend, tuple(name for name in READ[tree.Attend] if name != "window"))  # type: ignore[misc]
    check(llama())
    windows = {"architectures": ["MistralForCausalLM"], "sliding_window": 8}
    with pytest.raises(SelectionError, match="with window = 8"):
        check(llama(**windows))
