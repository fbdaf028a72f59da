"""Zamba2: Mamba-2 in every layer, and in some, before it, one of a few transformer blocks that those layers share, each
with low-rank adapters of its own (arXiv:2411.15242)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from llmk.api import OpFacts
from llmk.tree import Attend, Block, Carried, CausalLM, Config, Linear, Norm, Part, ScanMixer, Spec, Stream
from llmk_models.parts import Family, Names, Parts, with_values
from llmk_models.state_space import ScanKeys, scan_sizes

FAMILY = Family(bias_flags=("add_bias_linear",), norm_eps=1e-5, tied=True, activations=("gelu",))
"""These and the following numbers are the defaults of transformers' config class."""
_KEYS = ScanKeys(heads="n_mamba_heads", head_dim="mamba_headdim", groups="mamba_ngroups")
_HYBRID, _KINDS = "hybrid", ("hybrid", "mamba", "linear_attention")
_GATED_NORM_EPS = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class ZambaStream(Stream):
    """Hidden states, and the embeddings that every shared block sees."""

    implementation: ClassVar[str] = "llmk_models.zamba2_layer:ZambaStream"


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRank(Spec):
    """``up(down(x))``, added to what a shared layer computes; each part of ``downs`` has its ``up``."""

    downs: Linear
    ups: tuple[Linear, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMLP(Block):
    """An MLP with an adapter at its first projection."""

    implementation: ClassVar[str] = "llmk_models.zamba2_layer:SharedMLP"

    gate_up: Linear
    adapter: LowRank
    down: Linear

    def own_ops(self, name: Callable[[Spec], str]) -> tuple[OpFacts, ...]:
        facts, op = {"intermediate_size": self.down.size}, "gelu_and_mul"
        return (OpFacts(site=op, op=op, facts=facts, divided=tuple(facts)),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBlock(Spec):
    """Attention and an MLP over hidden states and embeddings side by side. Layers that share it have the same specs
    here, apart from the cache, the adapters and ``out``."""

    norm: Norm
    qkv: Linear
    adapter: LowRank | None
    attend: Attend
    project: Linear
    mlp_norm: Norm
    mlp: SharedMLP
    out: Linear

    @classmethod
    def of(cls, parts: Parts, at: str) -> Self:
        """The block whose tensors are stored in the layer ``at``, as that layer sees it: with its first adapters."""
        wide, heads, hidden = 2 * parts.hidden_size, parts.heads, parts.hidden_size
        sizes, units = [n * heads.dim for n in (heads.count, heads.kv, heads.kv)], (heads.count, heads.kv, heads.kv)
        block, inner = f"{at}.shared_transformer", parts.inner_size
        attention, mlp = f"{block}.self_attn", f"{block}.feed_forward"
        rope = parts.rope if parts.config.flag("use_mem_rope", False) else None
        gate_up = (f"{mlp}.gate_up_proj", "gate_up", hidden, ("", ""), (inner, inner))
        own: dict[str, Any] = {"heads": heads.count, "kv_heads": heads.kv, "head_dim": heads.dim, "rope": rope}
        return cls(
            at=block,
            norm=Norm(at=f"{block}.input_layernorm", size=wide, eps=parts.eps, role="wide_norm"),
            qkv=Linear.packed(f"{attention}.qkv_proj", "qkv", wide, ("q_proj", "k_proj", "v_proj"), sizes, units),
            adapter=None,
            attend=Attend(at=attention, scale=(heads.dim / 2) ** -0.5, **own),
            project=Linear.row(f"{attention}.o_proj", "out", heads.count * heads.dim, hidden),
            mlp_norm=parts.norm(f"{block}.pre_ff_layernorm", "rms_norm"),
            mlp=SharedMLP(
                at=mlp,
                gate_up=Linear.packed(*gate_up, bias=parts.mlp_bias),
                adapter=_mlp_adapter(parts, mlp, 0),
                down=Linear.row(f"{mlp}.down_proj", "down", inner, hidden, bias=parts.mlp_bias),
            ),
            out=Linear.whole(f"{at}.linear", "shared_out", hidden, hidden),
        )

    def at_layer(self, parts: Parts, at: str, number: int) -> Self:
        """The same as the layer ``at`` sees it, the ``number``-th that has such a block."""
        adapter = None
        if parts.config.flag("use_shared_attention_adapter", False):
            adapter = _qkv_adapter(parts, self.attend.at, self.qkv, number)
        return replace(
            self,
            attend=replace(self.attend),
            adapter=adapter,
            mlp=replace(self.mlp, adapter=_mlp_adapter(parts, self.mlp.at, number)),
            out=replace(self.out, at=f"{at}.linear"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ZambaLayer(Spec):
    """What a shared block computes, if there is one, is added to the mixer's input, not to the residual."""

    implementation: ClassVar[str] = "llmk_models.zamba2_layer:ZambaLayer"

    shared: SharedBlock | None
    norm: Norm
    mixer: ScanMixer


def tree(config: Config) -> CausalLM:
    """The tree of a Zamba2 checkpoint. A shared block is stored in the first layer that has it."""
    config.choice("use_long_context", False)
    config.choice("tie_word_embeddings", True)  # without it, transformers shares no blocks either
    hidden, count = config.size("hidden_size"), config.size("num_attention_heads", 32)
    dim = config.size("attention_head_dim", 2 * hidden // count)
    parts = Parts(with_values(config, head_dim=dim), FAMILY)
    parts.names, parts.mlp_bias = Names(norm="final_layernorm"), config.flag("add_bias_linear", False)
    inner = int(config.positive("mamba_expand", 2) * hidden)
    sizes = scan_sizes(config, inner, _KEYS, state=64)
    kinds, blocks = _kinds(config, parts.num_layers), config.size("num_mem_blocks", 1)
    bias = {"bias": parts.mlp_bias, "out_bias": parts.mlp_bias}
    stored: list[SharedBlock] = []
    numbers = {index: number for number, index in enumerate(i for i, kind in enumerate(kinds) if kind == _HYBRID)}

    def layer(index: int, at: str) -> tuple[Spec, ...]:
        number, shared, mixer = numbers.get(index), None, at
        if number is not None:
            if number < blocks:
                stored.append(SharedBlock.of(parts, at))
            shared, mixer = stored[number % blocks].at_layer(parts, at, number), f"{at}.mamba_decoder"
        own = ScanMixer.of(f"{mixer}.mamba", hidden, sizes, _GATED_NORM_EPS, **bias)
        return (ZambaLayer(at=at, shared=shared, norm=parts.norm(f"{mixer}.input_layernorm", "rms_norm"), mixer=own),)

    copies = "|".join(str(index) for index, number in numbers.items() if number >= blocks)
    not_needed = (rf"model\.layers\.({copies})\.shared_transformer\..*",) if copies else ()
    stream = ZambaStream(carried=(Carried(hidden), Carried(hidden)))
    return parts.decoder(layer, stream=stream, ignored=not_needed)


def _kinds(config: Config, count: int) -> tuple[str, ...]:
    kinds = config.texts("layers_block_type") or config.texts("layer_types")
    if len(kinds) != count or set(kinds) - set(_KINDS):
        raise config.refuse(f"num_hidden_layers = {count}, but layers_block_type {', '.join(kinds) or 'missing'}")
    return kinds


def _qkv_adapter(parts: Parts, at: str, qkv: Linear, number: int) -> LowRank:
    rank, names = parts.config.size("adapter_rank", 128), [f"linear_{each}_adapter_list.{number}" for each in "qkv"]
    downs = tuple(Part(rank, 1, f"{name}.0") for name in names)
    sizes = zip(names, qkv.outputs, strict=True)
    return LowRank(
        at=at,
        downs=Linear(at=f"{at}.qkv_adapter_{number}", role="qkv_adapter_down", size=qkv.size, outputs=downs),
        ups=tuple(
            Linear.column(f"{at}.{name}.1", "qkv_adapter_up", rank, part.rows, part.units) for name, part in sizes
        ),
    )


def _mlp_adapter(parts: Parts, at: str, number: int) -> LowRank:
    rank, inner = parts.config.size("adapter_rank", 128), parts.inner_size
    at = f"{at}.gate_up_proj_adapter_list.{number}"
    up = Linear.packed(f"{at}.1", "gate_up_adapter_up", rank, ("", ""), (inner, inner))
    return LowRank(at=at, downs=Linear.whole(f"{at}.0", "gate_up_adapter_down", parts.hidden_size, rank), ups=(up,))
