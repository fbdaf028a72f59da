"""Room for adapters: what it changes of a tree, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from llmk.tree import (
    AdapterRoom,
    CausalLM,
    Embedding,
    GatedMLP,
    Head,
    Heads,
    Linear,
    Norm,
    Residual,
    Rope,
    SelfAttention,
    Sites,
    adapted,
    lower,
)

HIDDEN, INNER = 24, 40
ROPE = Rope.with_settings(6, 64, {"rope_type": "default", "rope_theta": 1e4})


def layer(at: str, mlp: GatedMLP | None = None) -> tuple[Residual, ...]:
    attention = SelfAttention.of(f"{at}.self_attn", HIDDEN, Heads(4, 2, 6), ROPE)
    norms = [Norm(at=f"{at}.{name}", size=HIDDEN, eps=1e-5) for name in ("pre", "then")]
    mlp = mlp or GatedMLP.of(f"{at}.mlp", HIDDEN, INNER)
    return Residual(norm=norms[0], block=attention), Residual(norm=norms[1], block=mlp)


def model(*layers: tuple[Residual, ...]) -> CausalLM:
    return CausalLM(
        embed=Embedding(at="embed", vocab_size=50, size=HIDDEN),
        layers=layers or (layer("0"), layer("1")),
        norm=Norm(at="end", size=HIDDEN, eps=1e-5),
        head=Head(at="head", size=HIDDEN, vocab_size=50),
        max_model_len=64,
    )


def ops(tree: CausalLM) -> dict[str, Any]:
    return {op.site: op for op in Sites(lower(tree).leaves(), "float32").of("ops")}


def test_without_room_the_tree_is_the_same_object() -> None:
    tree = model()
    assert adapted(tree, {}) is tree
    assert adapted(tree, {"2.self_attn.qkv_proj": AdapterRoom(1, 4)}) is tree


def test_only_layers_with_room_change() -> None:
    tree = model()
    changed = adapted(tree, {"0.self_attn.qkv_proj": AdapterRoom(2, 8)})
    assert changed.layers[1] is tree.layers[1]
    assert changed.layers[0][1] is tree.layers[0][1]
    plain, own = ops(tree), ops(changed)
    assert own["qkv.adapters"].facts == {
        "in_features": 24, "out_features": 48, "num_parts": 3, "num_adapters": 2, "rank": 8
    }  # fmt: skip
    assert own["qkv.adapters"].divided == ("out_features",)
    assert own.keys() - plain.keys() == {"qkv.adapters", "rms_norm", "add_rms_norm"} - plain.keys()
    assert plain.keys() <= own.keys(), "the second layer is as it was"


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_an_activation_is_apart_from_a_projection_with_room(activation: str) -> None:
    mlp = GatedMLP.of("0.mlp", HIDDEN, INNER, activation=activation)
    names = ["0.mlp.gate_up_proj", "0.mlp.down_proj"]
    own = ops(adapted(model(layer("0", mlp)), dict.fromkeys(names, AdapterRoom(1, 4))))
    assert own[f"gate_up_{activation}"].op == f"{activation}_and_mul"
    assert own[f"gate_up_{activation}"].linear is None
    assert own["gate_up.adapters"].facts["num_parts"] == 2
    assert own["down.adapters"].divided == ("in_features",)
    assert not [site for site in own if site.startswith("norm_gate_up")]


def test_what_is_shared_stays_shared() -> None:
    shared = GatedMLP.of("shared", HIDDEN, INNER)
    changed = adapted(model(layer("0", shared), layer("1", shared)), {"shared.down_proj": AdapterRoom(1, 4)})
    downs = [spec for each in changed.layers for part in each for spec in part.leaves() if isinstance(spec, Linear)]
    found = [spec for spec in downs if spec.role == "down"]
    assert found[0] is found[1]
    assert found[0].adapters == AdapterRoom(1, 4)
