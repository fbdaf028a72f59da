"""Kernels bound to random inputs, made from their site's query, on which they can be compared and timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, Choice, LinearQuery, ModelFacts, MoEQuery, OpQuery
from llmk.api.query import expanded_size, moe_options
from llmk.kernel.registry import Registry
from llmk.nn.build import Build
from llmk.reference.op_examples import Draw, load_examples

DECODES = 256
"""Tokens up to which a step consists of as many decodes; more are those of prompts."""
_CONTEXT, _PROMPT = 1024, 2048
_ROTATED_BYTES = 256 << 20
"""Weights that calls take in turn: more than a device's cache holds, as in a model of many layers."""

Run = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class BenchmarkInput:
    """A kernel with its weights: ``at(tokens)`` makes inputs, and returns what calls the kernel on them and on set
    ``i`` of ``sets``, which are to be taken in turn."""

    at: Callable[[int], Run]
    sets: int = 1


class BenchmarkInputs:
    """Makes inputs for what a plan chose. Those of one site get the same weights and inputs for any choice.

    ``facts`` are those of the process's share of the model; ``registry`` has the contracts of ops.
    """

    def __init__(self, build: Build, facts: ModelFacts, registry: Registry) -> None:
        self.build = build
        self.facts = facts
        self._registry = registry
        self._draw = Draw(torch.Generator(build.device), build.dtype)

    def of(self, choice: Choice) -> BenchmarkInput | None:
        """The inputs for a site; ``None`` where no inputs are known for its query."""
        self._draw.random.manual_seed(0)
        match choice.query:
            case LinearQuery() as linear:
                return self._linear(linear)
            case MoEQuery() as moe:
                return self._moe(moe)
            case AttentionQuery() as attention:
                return self._attention(attention)
            case OpQuery() as op:
                return self._op(op)
        return None

    def _linear(self, query: LinearQuery) -> BenchmarkInput:
        run, weights = self.build.linear(query.site).run, self._weights(query.site)
        bias = self._random(query.out_features) if query.bias else None

        def at(tokens: int) -> Run:
            x = self._inputs(tokens, query.in_features)
            return lambda i: run(x, weights[i], bias)

        return BenchmarkInput(at, len(weights))

    def _moe(self, query: MoEQuery) -> BenchmarkInput:
        kernel, options = self.build.moe(query.site), moe_options(query)
        experts, hidden, inner = query.num_experts, query.hidden_size, query.intermediate_size
        parameters = {}
        for name, rows, columns in (("gate_up", expanded_size(query), hidden), ("down", hidden, inner)):
            stacked = [self._parameters(kernel.weight_format, rows, columns) for _ in range(experts)]
            for key in stacked[0]:
                parameters[name + key.removeprefix("weight")] = torch.stack([each[key] for each in stacked])
            if query.bias:
                parameters[f"{name}_bias"] = self._random(experts, rows)
        weights = kernel.prepare(parameters)

        def at(tokens: int) -> Run:
            x, logits = self._inputs(tokens, hidden), self._random(tokens, experts)
            return lambda i: kernel.run(x, logits, weights, **options)

        return BenchmarkInput(at)

    def _attention(self, query: AttentionQuery) -> BenchmarkInput:
        """Decodes behind a context, or prompts; prepared once for as many calls as the model has layers."""
        backend = self.build.attention(query.site)
        layers = next(site.num_layers for site in self.facts.attention if site.site == query.site)
        sinks = self._draw.reals(query.num_heads) if query.sinks else None
        scaled: dict[str, Any] = _scaled(query)
        if query.alibi:
            scaled["slopes"] = self._draw.reals(query.num_heads)

        def at(tokens: int) -> Run:
            step, _ = _place(tokens, query.block_size, self._draw.random)
            q = self._inputs(step.num_tokens, query.num_heads, query.head_dim)
            cache, meta = self._cache(query, step), None

            def run(i: int) -> Tensor:
                nonlocal meta
                meta = backend.prepare(step) if i == 0 else meta
                return backend.run(q, cache, meta, sinks=sinks, **scaled)

            return run

        return BenchmarkInput(at, layers)

    def _cache(self, query: AttentionQuery, step: CacheStep) -> Tensor:
        """A layer's cache with all tokens of a step's requests, whose blocks are those of the table."""
        backend = self.build.attention(query.site)
        layout = backend.cache_layout(step.block_table.numel())
        cache = torch.zeros(layout.shape, dtype=getattr(torch, layout.dtype), device=self.build.device)
        length = step.max_seq_len
        shape = (step.num_requests * length, query.num_kv_heads)
        key = self._random(*shape, query.head_dim)
        value = None if query.latent_dim else self._random(*shape, query.value_dim or query.head_dim)
        whole = _step(step.block_table.long(), length, length, query.block_size)
        backend.write(key, value, cache, backend.prepare(whole), **_scaled(query))
        return cache

    def _op(self, query: OpQuery) -> BenchmarkInput | None:
        """An op by its contract; ``None`` where that has no examples, or needs facts that the site lacks."""
        contract = self._registry.contracts.get(query.op)
        if contract is None or not (contract.measured and contract.examples) or set(contract.facts) - set(query.facts):
            return None
        whole = next((op for op in self.facts.ops if f"{query.site}.".startswith(f"{op.site}.")), None)
        kinds = self._registry.site_kinds(query.op)
        sites = {kind: getattr(whole, kind) for kind in kinds if getattr(whole, kind, None)}
        if len(kinds) > 1 or set(sites) != kinds:
            return None
        kernel, examples = self.build.kernel("op", query.site, **sites), load_examples(contract)
        make, mutated = examples.benchmark or examples.make, contract.positions(contract.mutates_args)
        weights = self._weights(sites["linear"]) if "linear" in sites else []
        facts = {**query.facts, **(self._sizes(sites["linear"]) if weights else {})}

        def at(tokens: int) -> Run:
            self._draw.random.manual_seed(1)
            draw, last, options = self._draw, (), examples.options_at(self._draw, facts)
            if "attention" in sites:
                tokens, draw, last, scaled = self._step_at(sites["attention"], tokens)
                options |= scaled
            if "attention_sinks" in facts and "attention.run" in contract.parts:
                options["sinks"] = draw.reals(facts["num_heads"])
            if "alibi" in facts and "attention.run" in contract.parts:
                options["slopes"] = draw.reals(facts["num_heads"])
            given = make(draw, facts, tokens)
            calls = [(*given, weight, None) for weight in weights] or [(*given, *last)]
            changed = [given[place] for place in mutated]
            return lambda i: (kernel(*calls[i], **options), changed)

        return BenchmarkInput(at, len(weights) or 1)

    def _step_at(self, site: str, tokens: int) -> tuple[int, Draw, tuple[Any, ...], dict[str, Any]]:
        """A step at an attention site, of decodes behind a context or of prompts, for an op: how many tokens it has,
        what draws them, cache and metadata, and further options."""
        asked, backend = self.build.plan.choice("attention", site).query, self.build.attention(site)
        assert isinstance(asked, AttentionQuery)
        step, positions = _place(tokens, asked.block_size, self._draw.random)
        draw = Draw(self._draw.random, self._draw.dtype, longest=step.max_seq_len, given=positions)
        return step.num_tokens, draw, (self._cache(asked, step), backend.prepare(step)), _scaled(asked)

    def _sizes(self, site: str) -> dict[str, int]:
        linear = next(linear for linear in self.facts.linear if linear.site == site)
        return {"in_features": linear.in_features, "out_features": linear.out_features}

    def _weights(self, site: str) -> list[Any]:
        """What the kernel of a linear site makes of enough random weights."""
        facts = next(linear for linear in self.facts.linear if linear.site == site)
        shape, kernel = (facts.out_features, facts.in_features), self.build.linear(site)
        sets = 1 + min(64, _ROTATED_BYTES // (shape[0] * shape[1] * self.build.dtype.itemsize))
        return [kernel.prepare(self._parameters(kernel.weight_format, *shape)) for _ in range(sets)]

    def _parameters(self, weight_format: str, rows: int, columns: int) -> dict[str, Tensor]:
        """A random matrix, in the parameters of a weight format."""
        parameters = {"weight": self._random(rows, columns, scale=columns**-0.5)}
        if weight_format == "plain":
            return parameters
        return self.build.quantization(weight_format).convert("", parameters, [rows])

    def _inputs(self, *shape: int) -> Tensor:
        """The first random tensor of a call: the same for all kernels of a site, no matter what they ran before."""
        self._draw.random.manual_seed(1)
        return self._random(*shape)

    def _random(self, *shape: int, **options: Any) -> Tensor:
        return self._draw.floats(*shape, **options)


def _scaled(query: AttentionQuery) -> dict[str, Any]:
    """What backends of fp8 caches get besides."""
    return {"scales": (1.0, 1.0)} if query.cache_dtype.startswith("float8") else {}


def _place(tokens: int, block_size: int, generator: torch.Generator) -> tuple[CacheStep, Tensor]:
    """A step of decodes behind a context, or of prompts, and the positions of its tokens."""
    queries = 1 if tokens <= DECODES else min(tokens, _PROMPT)
    requests, length = tokens // queries, max(queries, _CONTEXT)
    places = requests * -(-length // block_size)
    blocks = torch.randperm(places, generator=generator, device=generator.device).view(requests, -1)
    positions = torch.arange(length - queries, length, device=generator.device)
    return _step(blocks, queries, length, block_size), positions.repeat(requests)


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
