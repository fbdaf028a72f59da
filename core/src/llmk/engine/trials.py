"""Kernels bound to random inputs, made from what their site asks, on which they can be compared and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, Choice, LinearQuery, ModelFacts, MoEQuery, OpQuery
from llmk.nn.build import Build

DECODES = 256
"""Tokens up to which a step consists of as many decodes; more are those of prompts."""
_CONTEXT, _PROMPT = 1024, 2048
_ROTATED_BYTES = 256 << 20
"""Weights that calls take in turn: more than a device's cache holds, as in a model of many layers."""
_EPS = 1e-6

_NORMS = ("rms_norm", "rms_norm_plus_one", "add_rms_norm", "add_rms_norm_plus_one")
_ACTIVATIONS = ("silu_and_mul", "gelu_and_mul", "gelu_tanh_and_mul")
_PRODUCTS = ("gate_up_silu", "gate_up_gelu_tanh", "add_rms_norm_linear", "add_rms_norm_gate_up_silu")
_ROUTING = ("top_k", "renormalize", "activation", "scoring", "scaling", "num_groups", "top_groups", "group_scoring")

Run = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """A kernel with its weights: ``at(tokens)`` makes inputs, and returns what calls the kernel on them and on set
    ``i`` of ``sets``, which are to be taken in turn."""

    at: Callable[[int], Run]
    sets: int = 1


class Trials:
    """Makes trials of what a plan chose. Those of one site get the same weights and inputs, whatever was chosen.

    ``facts`` are those of the process's share of the model.
    """

    def __init__(self, build: Build, facts: ModelFacts) -> None:
        self.build = build
        self.facts = facts
        self._generator = torch.Generator(build.device)

    def of(self, choice: Choice) -> Trial | None:
        """The trial for a site; ``None`` where no inputs are known for what it asks."""
        self._generator.manual_seed(0)
        match choice.query:
            case LinearQuery(weight_format="plain") as linear:
                return self._linear(linear)
            case MoEQuery(weight_format="plain", bias=False) as moe:
                return self._moe(moe)
            case AttentionQuery(latent_dim=None) as attention:
                return self._attention(attention)
            case OpQuery() as op:
                return self._op(op)
        return None

    def _linear(self, query: LinearQuery) -> Trial:
        run, weights = self.build.linear(query.site).run, self._weights(query.site)
        bias = self._random(query.out_features) if query.bias else None

        def at(tokens: int) -> Run:
            x = self._inputs(tokens, query.in_features)
            return lambda i: run(x, weights[i], bias)

        return Trial(at, len(weights))

    def _moe(self, query: MoEQuery) -> Trial:
        kernel, options = self.build.moe(query.site), {name: getattr(query, name) for name in _ROUTING}
        experts, hidden, inner = query.num_experts, query.hidden_size, query.intermediate_size
        gate_up = self._random(experts, 2 * inner, hidden, scale=hidden**-0.5)
        weights = kernel.prepare({"gate_up": gate_up, "down": self._random(experts, hidden, inner, scale=inner**-0.5)})

        def at(tokens: int) -> Run:
            x, logits = self._inputs(tokens, hidden), self._random(tokens, experts)
            return lambda i: kernel.run(x, logits, weights, **options)

        return Trial(at)

    def _attention(self, query: AttentionQuery) -> Trial:
        """Decodes behind a context, or prompts; prepared once for as many calls as the model has layers."""
        backend = self.build.attention(query.site)
        layers = next(site.num_layers for site in self.facts.attention if site.site == query.site)
        sinks = self._random(query.num_heads).float() if query.sinks else None

        def at(tokens: int) -> Run:
            queries = 1 if tokens <= DECODES else min(tokens, _PROMPT)
            requests, length = tokens // queries, max(queries, _CONTEXT)
            q = self._inputs(requests * queries, query.num_heads, query.head_dim)
            kv = self._random(2, requests * length, query.num_kv_heads, query.head_dim)
            places = requests * -(-length // query.block_size)
            blocks = torch.randperm(places, generator=self._generator, device=q.device).view(requests, -1)
            layout = backend.cache_layout(places)
            cache = torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype), device=q.device)
            backend.write(kv[0], kv[1], cache, backend.prepare(_step(blocks, length, length, query.block_size)))
            step = _step(blocks, queries, length, query.block_size)
            meta = None

            def run(i: int) -> Tensor:
                nonlocal meta
                meta = backend.prepare(step) if i == 0 else meta
                return backend.run(q, cache, meta, sinks)

            return run

        return Trial(at, layers)

    def _op(self, query: OpQuery) -> Trial | None:
        facts = next((op for op in self.facts.ops if f"{query.site}.".startswith(f"{op.site}.")), None)
        linear = facts.linear or "" if facts else ""
        weights: list[tuple[Any, ...]] = [()]
        if query.op in _PRODUCTS:
            site = next(site for site in self.facts.linear if site.site == linear)
            width, weights = site.in_features, [(weight, None) for weight in self._weights(linear)]
        elif query.op in _NORMS and "size" in query.facts:
            width = query.facts["size"]
        elif query.op in _ACTIVATIONS:
            width = 2 * query.facts["intermediate_size"]
        else:
            return None
        kernel = self.build.kernel("op", query.site, linear=linear)
        norm = (self._random(width), _EPS) if "norm" in query.op else ()

        def at(tokens: int) -> Run:
            rows = self._inputs(2 if "add_" in query.op else 1, tokens, width)
            return lambda i: kernel(*rows, *norm, *weights[i])

        return Trial(at, len(weights))

    def _weights(self, site: str) -> list[Any]:
        """What the kernel of a linear site makes of enough random weights."""
        facts = next(linear for linear in self.facts.linear if linear.site == site)
        shape, prepare = (facts.out_features, facts.in_features), self.build.linear(site).prepare
        sets = 1 + min(64, _ROTATED_BYTES // (shape[0] * shape[1] * self.build.dtype.itemsize))
        return [prepare({"weight": self._random(*shape, scale=facts.in_features**-0.5)}) for _ in range(sets)]

    def _inputs(self, *shape: int) -> Tensor:
        """The first random tensor of a call: the same for all kernels of a site, whatever they were asked before."""
        self._generator.manual_seed(1)
        return self._random(*shape)

    def _random(self, *shape: int, scale: float = 1.0) -> Tensor:
        dtype, device = self.build.dtype, self.build.device
        return torch.randn(shape, generator=self._generator, dtype=dtype, device=device).mul_(scale)


def _step(blocks: Tensor, queries: int, length: int, block_size: int) -> CacheStep:
    """The last ``queries`` tokens of requests of ``length`` each, which lie in ``blocks`` (``[requests, blocks]``)."""
    requests, device = blocks.shape[0], blocks.device
    positions = torch.arange(length - queries, length, device=device)
    return CacheStep(
        query_start=torch.arange(requests + 1, dtype=torch.int32, device=device) * queries,
        seq_lens=torch.full((requests,), length, dtype=torch.int32, device=device),
        block_table=blocks.to(torch.int32),
        slot_mapping=(blocks[:, positions // block_size] * block_size + positions % block_size).flatten(),
        num_requests=requests,
        num_tokens=requests * queries,
        max_query_len=queries,
        max_seq_len=length,
        block_size=block_size,
        host_query_lens=[queries] * requests,
        host_seq_lens=[length] * requests,
    )
