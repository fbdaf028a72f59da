"""The attention layer's variants, on the reference kernels, against the modules of ``transformers``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plans import PLATFORM, Build, build, from_reference
from torch import Tensor
from transformers import Gemma3TextConfig, GptOssConfig, Olmo2Config, PreTrainedConfig, SmolLM3Config
from transformers.models.gemma3.modeling_gemma3 import Gemma3Attention, Gemma3RotaryEmbedding
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention, GptOssRotaryEmbedding
from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention, Olmo2RotaryEmbedding
from transformers.models.smollm3.modeling_smollm3 import SmolLM3Attention, SmolLM3RotaryEmbedding

from llmk.api import AttentionQuery, CacheStep, Choice
from llmk.nn import Attention, StepContext
from llmk.nn.norm import HeadNorms
from llmk.nn.parallel import Parallel
from llmk.reference.rope.rotation import axes_of_pairs, cos_sin_cache, rope

LENGTH = 21
CHUNKS = ((0, 1), (1, 14), (14, 20), (20, LENGTH))
"""Of one request: a first token, chunks of its prompt, a decode."""


def reference(
    kind: str, site: str, where: str, *, op: str = "", parts: tuple[Choice, ...] = (), query: Any = None
) -> Choice:
    given = {"write_kv": ("attention.write",), "attention": ("attention.run",)}
    names = (*(part.op for part in parts), *given.get(op.rpartition("rope_")[2], ()))
    return Choice(kind, site, op or site, query, (from_reference(where, parts=names),), (), parts)


def bound(parallel: Parallel | None = None, **query: Any) -> Build:
    """A build with the reference kernels of an attention site."""
    asked = AttentionQuery(
        platform=PLATFORM, site="attention", dtype="float32", block_size=4, cache_dtype="float32", **query
    )
    norm = Choice("op", "norm", "rms_norm", None, reference("op", "norm", "norms:rms_norm").pieces)
    rope = reference("op", "rope", "rope.rotation:rope", op="rope")
    name = "qk_norm_rope_write_kv"
    write = reference("op", "write", f"composites:make_{name}", op=name, parts=(norm, rope))
    name = "qk_norm_rope_attention"
    whole = reference("op", "attention.whole", f"composites:make_{name}", op=name, parts=(write,))
    over = [reference("op", site, "norms:rms_norm") for site in ("q_norm", "k_norm")]
    backend = reference("attention", "attention", "attention.paged:ReferenceAttention", query=asked)
    return build(backend, whole, *over, parallel=parallel)


@dataclass
class Case:
    """One request through an attention layer, in chunks."""

    layer: Attention
    made: Build

    def load(self, module: torch.nn.Module, prefix: str = "layer") -> None:
        for parameter in (parameter for each in self.made.layers for parameter in each.parameters):
            for name, shards in parameter.targets.items():
                parameter.load(shards, module.get_parameter(name.removeprefix(f"{prefix}.")).detach())
        for each in self.made.layers:
            each.finish()

    def run(self, qkv: Tensor, axes: Tensor | None = None) -> Tensor:
        backend = self.made.attention("attention")
        layout = backend.cache_layout(9)
        cache, table = torch.full(layout.shape, torch.nan), torch.tensor([[7, 2, 4, 0, 8, 3]], dtype=torch.int32)
        out = []
        for start, stop in CHUNKS:
            positions = torch.arange(start, stop)
            step = CacheStep(
                query_start=torch.tensor([0, stop - start], dtype=torch.int32),
                seq_lens=torch.tensor([stop], dtype=torch.int32),
                block_table=table,
                slot_mapping=table[0, positions // 4].long() * 4 + positions % 4,
                num_requests=1,
                num_tokens=stop - start,
                max_query_len=stop - start,
                max_seq_len=stop,
                block_size=4,
            )
            context = StepContext(positions, [cache], [backend.prepare(step)])
            context.axes = None if axes is None else axes[:, start:stop]
            out.append(self.layer(qkv[start:stop], context))
        return torch.cat(out)


def projected(module: Any, x: Tensor) -> Tensor:
    """The input of our layer: what the projections of theirs return."""
    return torch.cat([project(x) for project in (module.q_proj, module.k_proj, module.v_proj)], dim=1)


def expected(module: Any, x: Tensor, rotary: Any, window: int | None = None) -> Tensor:
    """Their attention's output, before its output projection."""
    module.o_proj = torch.nn.Identity()
    near = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    if window is not None:
        near &= torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1 - window)
    mask = torch.zeros(LENGTH, LENGTH).masked_fill(~near, float("-inf"))
    out: Tensor = module(x[None], position_embeddings=rotary, attention_mask=mask[None, None])[0]
    return out[0]


def rotary(embedding: torch.nn.Module, *kind: str) -> Any:
    return embedding(torch.zeros(1), torch.arange(LENGTH)[None], *kind)


def common(config: PreTrainedConfig) -> dict[str, Any]:
    sizes = {"num_heads": config.num_attention_heads, "num_kv_heads": config.num_key_value_heads}
    return {**sizes, "head_dim": config.hidden_size // config.num_attention_heads}


def randomized(module: torch.nn.Module) -> torch.nn.Module:
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize("sliding", [True, False])
@torch.no_grad()
def test_sinks_are_those_of_gpt_oss(sliding: bool) -> None:
    config = GptOssConfig(
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=1,
        sliding_window=5,
        layer_types=["sliding_attention" if sliding else "full_attention"],
        attn_implementation="eager",
    )
    theirs, window = randomized(GptOssAttention(config, 0)), 5 if sliding else None
    sizes, x = common(config), torch.randn(LENGTH, 48)
    made = bound(**sizes, scale=8**-0.5, sinks=True, sliding_window=window)
    table = cos_sin_cache(config.rope_parameters, 8, LENGTH, 1e4, trained_positions=config.max_position_embeddings)
    case = Case(Attention(made, "layer", index=0, **sizes, cos_sin=table, sinks=True), made)
    case.load(theirs)
    found, right = case.run(projected(theirs, x)), expected(theirs, x, rotary(GptOssRotaryEmbedding(config)), window)
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-5)
    theirs.sinks.fill_(-1e9)
    assert not torch.allclose(found, expected(theirs, x, rotary(GptOssRotaryEmbedding(config)), window), atol=1e-2)


def test_a_rank_has_the_sinks_of_its_heads() -> None:
    for rank in range(2):
        made = bound(parallel=Parallel(rank, 2), num_heads=2, num_kv_heads=1, head_dim=8, scale=1.0, sinks=True)
        sizes: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
        layer = Attention(made, "layer", index=0, **sizes, cos_sin=None, sinks=True)
        layer.parameters[0].load((0,), torch.arange(4.0))
        assert layer.parameters[0].take().tolist() == [2.0 * rank, 2.0 * rank + 1]


@pytest.mark.parametrize("kind", ["sliding_attention", "full_attention"])
@torch.no_grad()
def test_kinds_of_layers_rotate_by_tables_of_their_own(kind: str) -> None:
    """Gemma 3: a local base, and a global one with scaling; a scale of its own; norms with weight + 1."""
    config = Gemma3TextConfig(
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        num_hidden_layers=2,
        sliding_window=5,
        query_pre_attn_scalar=11,
        layer_types=["sliding_attention", "full_attention"],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 9000.0, "factor": 8.0},
        },
        attn_implementation="eager",
    )
    window = 5 if kind == "sliding_attention" else None
    theirs = randomized(Gemma3Attention(config, config.layer_types.index(kind)))
    sizes, x = common(config), torch.randn(LENGTH, 48)
    made = bound(**sizes, scale=11**-0.5, sliding_window=window)
    table = cos_sin_cache(config.rope_parameters[kind], 8, LENGTH, 1e4)
    eps = config.rms_norm_eps
    case = Case(Attention(made, "layer", index=0, **sizes, cos_sin=table, qk_norm_eps=eps, norm_offset=1.0), made)
    case.load(theirs)
    right = expected(theirs, x, rotary(Gemma3RotaryEmbedding(config), kind), window)
    torch.testing.assert_close(case.run(projected(theirs, x)), right, rtol=1e-5, atol=1e-5)
    other = {"sliding_attention": "full_attention", "full_attention": "sliding_attention"}[kind]
    wrong = expected(theirs, x, rotary(Gemma3RotaryEmbedding(config), other), window)
    assert not torch.allclose(wrong, right, atol=1e-2)


@pytest.mark.parametrize("rotated", [True, False])
@torch.no_grad()
def test_layers_without_rotation(rotated: bool) -> None:
    config = SmolLM3Config(
        hidden_size=48,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=1,
        no_rope_layers=[int(rotated)],
        attn_implementation="eager",
    )
    theirs = randomized(SmolLM3Attention(config, 0))
    sizes, x = common(config), torch.randn(LENGTH, 48)
    made = bound(**sizes, scale=8**-0.5)
    table = cos_sin_cache(config.rope_parameters, 8, LENGTH, 1e4) if rotated else None
    case = Case(Attention(made, "layer", index=0, **sizes, cos_sin=table), made)
    case.load(theirs)
    right = expected(theirs, x, rotary(SmolLM3RotaryEmbedding(config)))
    torch.testing.assert_close(case.run(projected(theirs, x)), right, rtol=1e-5, atol=1e-5)


class Gathered(Parallel):
    """A rank to which the others' part of each tensor is known: ``others[i]`` at the ``i``-th gather."""

    others: list[list[Tensor]]

    def all_gather(self, x: Tensor) -> Tensor:
        parts = self.others.pop(0)
        assert torch.equal(parts[self.tensor_rank], x)
        return torch.cat(parts, dim=-1)


@pytest.mark.parametrize(("ranks", "offset"), [(1, 0.0), (2, 1.0), (4, 0.0)])
@torch.no_grad()
def test_norms_over_all_heads(ranks: int, offset: float) -> None:
    """OLMo 2, and as if it stored weights less an offset. With more ranks than K/V heads, several ranks have the same
    ones."""
    config = Olmo2Config(
        hidden_size=64,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_hidden_layers=1,
        attn_implementation="eager",
    )
    theirs = randomized(Olmo2Attention(config, 0))
    sizes, x = common(config), torch.randn(LENGTH, 64)
    right = expected(theirs, x, rotary(Olmo2RotaryEmbedding(config)))
    for normed in (theirs.q_norm, theirs.k_norm):
        normed.weight -= offset
    q, k, v = (project(x).unflatten(1, (-1, 8)) for project in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    places = [(Parallel(rank, ranks).share(8), Parallel(rank, ranks).share(2)) for rank in range(ranks)]
    found = []
    for rank, (heads, kv_heads) in enumerate(places):
        parallel = Gathered(rank, ranks)
        parallel.others = [
            [part[start:stop, of].flatten(1) for of in shares]
            for start, stop in CHUNKS
            for part, shares in zip((q, k), zip(*places, strict=True), strict=True)
        ]
        own = {"num_heads": heads.stop - heads.start, "num_kv_heads": kv_heads.stop - kv_heads.start, "head_dim": 8}
        made = bound(parallel=parallel, **own, scale=8**-0.5)
        table = cos_sin_cache(config.rope_parameters, 8, LENGTH, 1e4)
        norms: dict[str, Any] = {"qk_norm_eps": config.rms_norm_eps, "whole_qk_norm": True, "norm_offset": offset}
        case = Case(Attention(made, "layer", index=0, **sizes, cos_sin=table, **norms), made)
        case.load(theirs)
        mine = torch.cat([part.flatten(1) for part in (q[:, heads], k[:, kv_heads], v[:, kv_heads])], dim=1)
        found.append(case.run(mine))
    torch.testing.assert_close(torch.cat(found, dim=1), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("one_by_one", [True, False])
@pytest.mark.parametrize(("heads", "ranks"), [(6, 1), (6, 3), (2, 4)])
def test_each_head_has_a_norm_of_its_own(heads: int, ranks: int, one_by_one: bool) -> None:
    """Also where several ranks have the same head; of either form of checkpoint."""
    x, weight = torch.randn(LENGTH, heads, 8), torch.randn(heads, 8)
    right = torch.stack([F.layer_norm(x[:, head], (8,), weight[head], None, 1e-5) for head in range(heads)], dim=1)
    stored = (
        {f"norm.norms.{head}.weight": weight[head] for head in range(heads)} if one_by_one else {"norm.weight": weight}
    )
    for rank in range(ranks):
        made = build(reference("op", "norm", "norms:layer_norm", op="layer_norm"), parallel=Parallel(rank, ranks))
        norm = HeadNorms(made, "norm.norms.{}" if one_by_one else "norm", heads, 8, 1e-5, site="norm")
        (parameter,) = norm.parameters
        for name, tensor in stored.items():
            shards = parameter.targets[name]
            assert parameter.fits(shards, tuple(tensor.shape))
            parameter.load(shards, tensor)
        assert parameter.complete
        norm.finish()
        own = made.parallel.share(heads)
        torch.testing.assert_close(norm(x[:, own]), right[:, own], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value_dim", [5, 12])
@torch.no_grad()
def test_values_of_another_width(value_dim: int) -> None:
    sizes: dict[str, Any] = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8}
    made = bound(**sizes, scale=0.3, value_dim=value_dim)
    case = Case(Attention(made, "layer", index=0, **sizes, cos_sin=None, value_dim=value_dim), made)
    q, k, v = torch.randn(6, LENGTH, 8), torch.randn(2, LENGTH, 8), torch.randn(2, LENGTH, value_dim)
    qkv = torch.cat([part.transpose(0, 1).flatten(1) for part in (q, k, v)], dim=1)
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(case.run(qkv), right.transpose(0, 1).flatten(1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sections", [(4, 6, 6), (16, 0, 0), (7, 9)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_of_several_axes(sections: tuple[int, ...], interleaved: bool) -> None:
    """Queries and keys are rotated by them before all else; a text has the same position on each axis."""
    sizes: dict[str, Any] = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    table, axes = cos_sin_cache({}, 32, 60, 1e4), axes_of_pairs(sections, interleaved=interleaved)

    def case(cos_sin: Tensor | None, axes: Tensor | None = None) -> Case:
        made = bound(**sizes, scale=0.2)
        return Case(Attention(made, "layer", index=0, **sizes, cos_sin=cos_sin, axes=axes), made)

    qkv, positions = torch.randn(LENGTH, 8 * 32), torch.randint(0, 60, (len(sections), LENGTH))
    q, k, v = qkv.view(LENGTH, 8, 32).split((4, 2, 2), dim=1)
    rotated = torch.cat((*rope(q, k, positions.T, table, axes=axes), v), dim=1).flatten(1)
    assert torch.equal(case(table, axes).run(qkv, positions), case(None).run(rotated))
    assert torch.equal(case(table, axes).run(qkv), case(table).run(qkv))
