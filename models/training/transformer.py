"""A compact Qwen3 decoder for training on packed documents.

Parameters carry the names that transformers' ``Qwen3ForCausalLM`` uses, so a checkpoint is a plain
``state_dict``. There is no batch axis: a step sees T tokens of many documents laid end to end, and attention
stays inside each document.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the network, in the units of ``config.json``."""

    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6


@dataclass(frozen=True)
class Packing:
    """Where documents lie in a packed row.

    ``starts`` is int32 of shape [documents + 1], the first index of each document and then T;
    ``positions`` is int64 of shape [T], each token's index inside its document;
    ``longest`` bounds the number of tokens in a document.
    """

    starts: Tensor
    positions: Tensor
    longest: int

    @classmethod
    def of(cls, starts: Tensor, total: int, longest: int) -> "Packing":
        """Build from ``starts``; repeated ends (empty documents) are allowed, which keeps its shape fixed."""
        index = torch.arange(total, device=starts.device)
        document = torch.searchsorted(starts, index, right=True) - 1
        return cls(starts, index - starts[document], longest)


def attend(query: Tensor, key: Tensor, value: Tensor, packing: Packing) -> Tensor:
    """Causal attention inside each document; all tensors are [T, heads, head_dim]."""
    if query.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        starts, longest = packing.starts, packing.longest
        return varlen_attn(query, key, value, starts, starts, longest, longest, window_size=(-1, 0))
    total = query.shape[0]
    index = torch.arange(total)
    document = index - packing.positions
    mask = (document[:, None] == document[None, :]) & (index[:, None] >= index[None, :])
    rows = (part.transpose(0, 1) for part in (query, key, value))
    return F.scaled_dot_product_attention(*rows, attn_mask=mask).transpose(0, 1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [T, heads, head_dim] by cos and sin [T, 1, head_dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last axis, computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with per-head norms on queries and keys."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        query_size, key_size = shape.num_attention_heads * shape.head_dim, shape.num_key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, key_size, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, key_size, bias=False)
        self.o_proj = nn.Linear(query_size, shape.hidden_size, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, packing: Packing) -> Tensor:
        heads = (x.shape[0], -1, self.shape.head_dim)
        query = rotate(self.q_norm(self.q_proj(x).view(heads)), cos, sin)
        key = rotate(self.k_norm(self.k_proj(x).view(heads)), cos, sin)
        value = self.v_proj(x).view(heads)
        group = self.shape.num_attention_heads // self.shape.num_key_value_heads
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
        return self.o_proj(attend(query, key, value, packing).flatten(1))


class MLP(nn.Module):
    """The gated feed-forward block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One decoder layer, norms before each block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, packing: Packing) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, packing)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers and final norm (``model.*`` in the checkpoint)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_hidden_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)


class Qwen3(nn.Module):
    """The language model with tied embeddings."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        spread = 1.0 / math.sqrt(2 * shape.num_hidden_layers)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 * (spread if residual else 1.0))

    def forward(self, tokens: Tensor, packing: Packing) -> Tensor:
        """Logits [T, vocab] for tokens [T] (int64)."""
        half = self.shape.head_dim // 2
        exponent = torch.arange(half, device=tokens.device, dtype=torch.float32) / half
        angle = packing.positions.float()[:, None, None] * self.shape.rope_theta**-exponent
        x = self.model.embed_tokens(tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, packing)
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    def loss(self, tokens: Tensor, targets: Tensor, weights: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """Weighted mean cross-entropy, and the plain mean over full-weight tokens (nats per token).

        ``targets`` [T] is the next token; ``weights`` [T] is 1 for a reply, less for a prompt, 0 at ends.
        """
        nats = F.cross_entropy(self(tokens, packing).float(), targets, reduction="none")
        reply = (weights == 1).float()
        weighted = (nats * weights).sum() / weights.sum()
        return weighted, ((nats * reply).sum() / reply.sum()).detach()
