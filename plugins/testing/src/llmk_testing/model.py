"""Runs a model without an engine: paged caches, block tables and steps as in the engine, and the logits of every
token."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from llmk.api import CacheSpec, CacheStep, Platform
from llmk.config import load
from llmk.engine.execution.weights import load_weights
from llmk.kernel.loader import load_object
from llmk.nn import Build, GivenEmbeddings, Model, StepContext
from llmk.nn.parallel import Parallel
from llmk.planning.boot import Boot, boot
from llmk_testing.paged import allocate


class ModelHarness:
    """A loaded model and its caches, which contain NaN wherever no token was written.

    Blocks are allocated in random order. Requests have any hashable key as name, and exist as long as the harness.

    Attributes:
        boot, build, model: as in the engine; with ``parallel``, as in that rank's process.
    """

    def __init__(
        self,
        boot: Boot,
        *,
        num_blocks: int = 64,
        seed: int = 0,
        state_block_size: int = 8,
        parallel: Parallel | None = None,
    ) -> None:
        plan, config = boot.plan, boot.settings.config
        platform: Platform = boot.load("platform")(plan.platform)
        self.boot = boot
        self.device = platform.device.torch_device(0)
        dtype = getattr(torch, plan.dtype)
        served = boot.facts.max_model_len
        where: dict[str, Any] = {"device": self.device, "parallel": parallel, "max_model_len": served}
        where["position_rows"] = 1  # none but those that a step reads
        self.build = Build(plan, dtype=dtype, load_object=load_object, checkpoint=boot.checkpoint, **where)
        self.model: Model = boot.load("model")(self.build, boot.checkpoint)
        load_weights(
            self.model,
            boot.checkpoint,
            self.build.dtype,
            methods=self.build.methods.values(),
            progress=False,
            load_format=config.model.load_format,
            seed=config.engine.seed,
        )
        self._state_block_size = state_block_size
        self._free = random.Random(seed).sample(range(num_blocks), num_blocks)
        self._blocks: dict[tuple[Any, int], list[int]] = {}
        self._lengths: dict[Any, int] = {}
        self._specs = [(site, spec) for _, site, spec in self.model.cache_specs()]
        self._caches = [self._cache(site, spec, num_blocks) for site, spec in self._specs]

    @classmethod
    def of(cls, checkpoint: Path, settings: Mapping[str, Any] | None = None, **options: Any) -> ModelHarness:
        """Boots ``checkpoint`` with ``settings`` (dotted paths to values), without config files and environment
        variables."""
        return cls(boot(load({"model.path": str(checkpoint), **(settings or {})}, environ={})), **options)

    @torch.inference_mode()
    def step(
        self,
        work: Sequence[tuple[Any, Sequence[int]]],
        embeddings: Mapping[Any, Tensor] = MappingProxyType({}),
        *,
        last_only: bool = False,
    ) -> list[Tensor]:
        """Runs the next tokens of several requests as one step; returns float32 logits ``[tokens, vocab]`` of each, or
        an empty list if the model is a pipeline stage but not the last. Tokens of requests with ``embeddings``
        (``[tokens, hidden]``) have these in place of looked-up ones. ``last_only``: of each request's last token, and
        the model computes hidden states of no others."""
        hidden = self._forward(work, embeddings, last_only=last_only)
        if not self.build.parallel.is_last:
            return []
        counts = [1 if last_only else len(tokens) for _, tokens in work]
        return list(self.model.logits(hidden).float().split(counts))

    @torch.inference_mode()
    def hidden(self, work: Sequence[tuple[Any, Sequence[int]]]) -> Tensor:
        """Final hidden states ``[tokens, hidden]`` of the next tokens of several requests, as one step."""
        return self._forward(work, {}, last_only=False)

    def _forward(
        self, work: Sequence[tuple[Any, Sequence[int]]], embeddings: Mapping[Any, Tensor], *, last_only: bool
    ) -> Tensor:
        counts = [len(tokens) for _, tokens in work]
        positions = [self._extend(name, len(tokens)) for name, tokens in work]
        steps = {size: self._lay_out(work, positions, size) for size in {self._size(spec) for _, spec in self._specs}}
        prepared = {
            site: self._prepare(site, spec, steps[self._size(spec)]) for site, spec in dict(self._specs).items()
        }
        self.build.reach(max(self._lengths[name] for name, _ in work))
        self.build.select(sum(counts))
        context = StepContext(
            positions=self._tensor([p for own in positions for p in own], torch.int64),
            caches=self._caches,
            meta=[prepared[site] for site, _ in self._specs],
            given=self._given(work, embeddings) if embeddings else None,
            output_rows=self._tensor([end - 1 for end in accumulate(counts)], torch.int64) if last_only else None,
        )
        token_ids = self._tensor([token for _, tokens in work for token in tokens], torch.int64)
        return self.model.forward(token_ids, context)

    def _given(self, work: Sequence[tuple[Any, Sequence[int]]], embeddings: Mapping[Any, Tensor]) -> GivenEmbeddings:
        names = [name for name, tokens in work for _ in tokens]
        index = [row for row, name in enumerate(names) if name in embeddings]
        rows = torch.cat([embeddings[name] for name, _ in work if name in embeddings])
        return GivenEmbeddings(self._tensor(index, torch.int64), rows.to(self.device))

    def _lay_out(
        self, work: Sequence[tuple[Any, Sequence[int]]], positions: list[list[int]], block_size: int
    ) -> CacheStep:
        counts = [len(own) for own in positions]
        lengths = [self._lengths[name] for name, _ in work]
        tables = [self._table(name, length, block_size) for (name, _), length in zip(work, lengths, strict=True)]
        width = max(len(table) for table in tables)
        slots = [
            table[p // block_size] * block_size + p % block_size
            for table, own in zip(tables, positions, strict=True)
            for p in own
        ]
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        return CacheStep(
            query_start=self._tensor(starts, torch.int32),
            seq_lens=self._tensor(lengths, torch.int32),
            block_table=self._tensor([table + [0] * (width - len(table)) for table in tables], torch.int32),
            slot_mapping=self._tensor(slots, torch.int64),
            num_requests=len(work),
            num_tokens=sum(counts),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
            block_size=block_size,
            host_query_lens=counts,
            host_seq_lens=lengths,
        )

    def _prepare(self, site: str, spec: CacheSpec, step: CacheStep) -> Any:
        return step if spec.pages else self.build.attention(site).prepare(step)

    def _size(self, spec: CacheSpec) -> int:
        return spec.block_size or self._state_block_size

    def _extend(self, name: Any, count: int) -> list[int]:
        start = self._lengths.get(name, 0)
        self._lengths[name] = start + count
        return list(range(start, start + count))

    def _table(self, name: Any, length: int, block_size: int) -> list[int]:
        """The request's blocks of one size; blocks of different sizes share ids, but no layer sees two sizes."""
        blocks = self._blocks.setdefault((name, block_size), [])
        while len(blocks) * block_size < length:
            blocks.append(self._free.pop())
        return blocks

    def _cache(self, site: str, spec: CacheSpec, num_blocks: int) -> Any:
        if spec.pages:
            return tuple(self._poisoned((num_blocks, *tensor.shape), tensor.dtype) for tensor in spec.pages)
        return allocate(self.build.attention(site).cache_layout(num_blocks), self.device)

    def _poisoned(self, shape: Sequence[int], dtype: str) -> Tensor:
        return torch.full(tuple(shape), float("nan"), dtype=getattr(torch, dtype), device=self.device)

    def _tensor(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)
