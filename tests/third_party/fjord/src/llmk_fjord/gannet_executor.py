"""An executor that computes each request by itself, in float32, by plain torch and llmk's references: slow, and plain,
so that others can be compared with it. What is computed of a request reads nothing of another's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from llmk.api import (
    CacheSpec,
    EngineDead,
    ExecutorContext,
    FullAttentionCache,
    LayerGroup,
    PendingTokens,
    SlidingWindowCache,
    Step,
    StepRequest,
    StepTokens,
    StepWork,
)
from llmk.api.cache import DTYPE_BYTES
from llmk.reference.norms import rms_norm
from llmk.reference.rope.rotation import cos_sin_cache, rope
from llmk.reference.sampling.sample import sample
from llmk.tree import Attend, GatedMLP, Norm, SelfAttention
from llmk_fjord.gannet_weights import WeightFiles


@dataclass(slots=True)
class Slot:
    """A request in the batch. ``tokens`` are all known ones; ``tables`` are its blocks, one list per cache group."""

    tokens: list[int]
    tables: list[list[int]]
    seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was run."""

    tokens: StepTokens

    def is_done(self) -> bool:
        """It is."""
        return True

    def result(self) -> StepTokens:
        """Its tokens."""
        return self.tokens


@dataclass(slots=True)
class Kept:
    """A layer's keys and values ``[blocks, block_size, kv_heads, dim]``, and the number of its group."""

    keys: Tensor
    values: Tensor
    group: int
    block_size: int

    def places(self, slot: Slot, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Blocks, and offsets in them, of some positions."""
        at = torch.arange(start, stop)
        table = torch.tensor(slot.tables[self.group], dtype=torch.int64)
        return table[at // self.block_size], at % self.block_size


@dataclass(slots=True)
class PlainExecutor:
    """The executor."""

    context: ExecutorContext
    asynchronous: str = field(default="", init=False)
    cache_specs: Sequence[CacheSpec] = field(default=(), init=False)
    _weights: dict[str, Any] = field(default_factory=dict, init=False)
    _ropes: dict[Any, Tensor] = field(default_factory=dict, init=False)
    _kept: list[Kept] = field(default_factory=list, init=False)
    _slots: dict[int, Slot] = field(default_factory=dict, init=False)
    _closed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        query, files = self.context.query, WeightFiles(self.context.checkpoint)
        tree = query.tree
        self._load_norm(files, tree.norm)
        vocab, size = tree.embed.vocab_size, tree.embed.size
        names = tuple(f"{name}.weight" for name in (tree.embed.at, *tree.embed.aliases))
        self._weights["<embed>"] = files.first(names, vocab, size)
        tied = tree.head.tied
        self._weights["<head>"] = self._weights["<embed>"] if tied else files.get(f"{tree.head.at}.weight", vocab, size)
        self._weights["<bias>"] = files.get(f"{tree.head.at}.bias", vocab) if tree.head.bias else None
        specs: list[CacheSpec] = []
        for part in (part for layer in tree.layers for part in layer):
            for norm in (part.norm, part.post):
                if norm is not None:
                    self._load_norm(files, norm)
            block = part.block
            for linear in (block.qkv, block.out) if isinstance(block, SelfAttention) else (block.gate_up, block.down):
                self._weights.setdefault(linear.at, files.linear(linear))
            if isinstance(block, SelfAttention):
                self._load_attend(files, block.attend)
                specs.append(self._spec(block.attend))
        self.cache_specs = tuple(specs)

    def _load_norm(self, files: WeightFiles, norm: Norm) -> None:
        self._weights[norm.at] = files.get(f"{norm.at}.weight", norm.size)

    def _load_attend(self, files: WeightFiles, attend: Attend) -> None:
        if attend.qk_norm is not None:
            for name in attend.norm_names:
                self._weights[f"{attend.at}.{name}"] = files.get(f"{attend.at}.{name}.weight", attend.head_dim)
        if attend.rope is not None and attend.rope not in self._ropes:
            turn = attend.rope
            longest, base = self.context.max_model_len, turn.parameters["rope_theta"]
            table = cos_sin_cache(turn.parameters, turn.dim, longest, base, trained_positions=turn.positions)
            self._ropes[turn] = table

    def _spec(self, attend: Attend) -> CacheSpec:
        size = self.context.block_size
        row = attend.kv_heads * (attend.head_dim + (attend.value_dim or attend.head_dim))
        page = size * row * DTYPE_BYTES[self.context.query.cache_dtype]
        return (
            FullAttentionCache(size, page) if attend.window is None else SlidingWindowCache(size, page, attend.window)
        )

    def available(self) -> int:
        """Free memory of this machine, less what a step takes: scores of the longest request, and its rows."""
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        tree, tokens = self.context.query.tree, self.context.max_num_batched_tokens
        heads = max((b.attend.heads for b in self._attentions()), default=1)
        scores = 3 * heads * min(tokens, self.context.max_model_len) * self.context.max_model_len
        rows = 16 * tokens * tree.embed.size + 2 * tree.head.vocab_size
        return max(0, free - 4 * (scores + rows))

    def _attentions(self) -> list[SelfAttention]:
        parts = (part for layer in self.context.query.tree.layers for part in layer)
        return [part.block for part in parts if isinstance(part.block, SelfAttention)]

    def allocate(self, num_blocks: int, groups: Sequence[LayerGroup]) -> None:
        """Allocates the cache."""
        group_of = {layer: (number, group.block_size) for number, group in enumerate(groups) for layer in group.layers}
        dtype = getattr(torch, self.context.query.cache_dtype)
        for layer, block in enumerate(self._attentions()):
            attend, (group, size) = block.attend, group_of[layer]
            shape = (num_blocks, size, attend.kv_heads)
            keys = torch.zeros(*shape, attend.head_dim, dtype=dtype)
            values = torch.zeros(*shape, attend.value_dim or attend.head_dim, dtype=dtype)
            self._kept.append(Kept(keys, values, group, size))

    def submit(self, step: Step) -> PendingTokens:
        """Runs a step."""
        if self._closed:
            raise EngineDead("the executor was closed")
        for number in step.freed:
            self._slots.pop(number, None)
        for request in step.new:
            self._slots[request.slot] = _enter(request)
        tokens: list[int] = []
        broken: list[int] = []
        with torch.inference_mode():
            for work in step.work:
                logits = self._compute(work)
                if not work.sample:
                    continue
                if not bool(torch.isfinite(logits).all()):
                    broken.append(len(tokens))
                    logits = torch.zeros_like(logits)
                tokens.append(self._draw(work, logits))
        return Done(StepTokens(tuple(tokens), tuple(broken)))

    def _draw(self, work: StepWork, logits: Tensor) -> int:
        slot, position = self._slots[work.slot], work.before + work.num_tokens
        temperature = None if slot.temperature == 0 else torch.tensor([slot.temperature])
        top_k = torch.tensor([slot.top_k]) if slot.top_k > 0 else None
        top_p = torch.tensor([slot.top_p]) if slot.top_p < 1 else None
        min_p = torch.tensor([slot.min_p]) if slot.min_p > 0 else None
        seeds, positions = torch.tensor([slot.seed]), torch.tensor([position])
        token = int(sample(logits[None], temperature, top_k, top_p, min_p, seeds, positions))
        del slot.tokens[position:]
        slot.tokens.append(token)
        return token

    def _compute(self, work: StepWork) -> Tensor:
        """Logits of the last token of a work item, float32 ``[vocab]``."""
        slot, tree = self._slots[work.slot], self.context.query.tree
        for table, blocks in zip(slot.tables, work.new_blocks, strict=False):
            table.extend(blocks)
        start, stop = work.before, work.before + work.num_tokens
        x = self._weights["<embed>"][torch.tensor(slot.tokens[start:stop])]
        x = x if tree.embed.scale is None else x * tree.embed.scale
        kept = iter(self._kept)
        for part in (part for layer in tree.layers for part in layer):
            y = x if part.norm is None else self._norm(x, part.norm)
            block = part.block
            attends = isinstance(block, SelfAttention)
            y = self._attention(y, block, next(kept), slot, start, stop) if attends else self._mlp(y, block)
            x = x + part.scale * (y if part.post is None else self._norm(y, part.post))
        logits = F.linear(self._norm(x[-1:], tree.norm), self._weights["<head>"], self._weights["<bias>"])[0]
        logits = logits * tree.head.scale
        cap = tree.head.softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _norm(self, x: Tensor, norm: Norm) -> Tensor:
        return rms_norm(x, self._weights[norm.at], norm.eps, norm_offset=norm.offset)

    def _mlp(self, x: Tensor, block: GatedMLP) -> Tensor:
        gate, up = F.linear(x, *self._weights[block.gate_up.at]).chunk(2, dim=-1)
        if block.activation_limit is not None:
            gate = gate.clamp(max=block.activation_limit)
            up = up.clamp(-block.activation_limit, block.activation_limit)
        if block.activation == "silu":
            gate = gate * torch.sigmoid(block.activation_alpha * gate)
        else:
            gate = F.gelu(gate, approximate="tanh" if block.activation == "gelu_tanh" else "none")
        return F.linear(gate * (up + block.up_offset), *self._weights[block.down.at])

    def _attention(self, x: Tensor, block: SelfAttention, kept: Kept, slot: Slot, start: int, stop: int) -> Tensor:
        a = block.attend
        width = a.value_dim or a.head_dim
        sizes = (a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * width)
        q, k, v = F.linear(x, *self._weights[block.qkv.at]).split(sizes, dim=-1)
        q, k, v = q.unflatten(-1, (a.heads, -1)), k.unflatten(-1, (a.kv_heads, -1)), v.unflatten(-1, (a.kv_heads, -1))
        if a.qk_norm is not None:
            weights = [self._weights[f"{a.at}.{name}"] for name in a.norm_names]
            q = rms_norm(q, weights[0], a.qk_norm, norm_offset=a.norm_offset)
            k = rms_norm(k, weights[1], a.qk_norm, norm_offset=a.norm_offset)
        if a.rope is not None:
            q, k = rope(q, k, torch.arange(start, stop), self._ropes[a.rope], neighbours=a.rope.neighbours)
        where = kept.places(slot, start, stop)
        kept.keys[where], kept.values[where] = k.to(kept.keys.dtype), v.to(kept.values.dtype)
        first = 0 if a.window is None else max(0, start - a.window + 1)
        where = kept.places(slot, first, stop)
        share = a.heads // a.kv_heads
        keys = kept.keys[where].float().repeat_interleave(share, dim=1)
        values = kept.values[where].float().repeat_interleave(share, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, keys) * (a.head_dim**-0.5 if a.scale is None else a.scale)
        if a.softcap is not None:
            scores = a.softcap * torch.tanh(scores / a.softcap)
        behind = torch.arange(start, stop)[:, None] - torch.arange(first, stop)
        hidden = behind < 0 if a.window is None else (behind < 0) | (behind >= a.window)
        weights = scores.masked_fill(hidden, -inf).softmax(dim=-1)
        out = torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
        return F.linear(out, *self._weights[block.out.at])

    def close(self) -> None:
        """Frees what it holds."""
        self._closed = True
        self._kept.clear()
        self._slots.clear()
        self._weights.clear()


def _enter(request: StepRequest) -> Slot:
    params = request.params
    own = (request.seed, params.temperature, params.top_k, params.top_p, params.min_p)
    return Slot(list(request.token_ids), [list(blocks) for blocks in request.block_ids], *own)
