"""Drives a model without an engine: paged caches, block tables and steps as the engine makes them, and logits of every
token."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionStep, Platform
from llmk.config import load
from llmk.engine.weights import load_weights
from llmk.kernel.boot import Boot, boot
from llmk.kernel.loader import load_object
from llmk.nn import Build, Model, StepContext


class ModelHarness:
    """A loaded model and its caches, which hold NaN wherever no token was written.

    Blocks are handed out in random order. Requests are named by any hashable key and live until the harness does.

    Attributes:
        boot, build, model: what the engine would build.
    """

    def __init__(self, boot: Boot, *, num_blocks: int = 64, seed: int = 0) -> None:
        plan, config = boot.plan, boot.settings.config
        platform: Platform = load_object(plan.platform_implementation)(plan.platform)
        self.boot = boot
        self.device = platform.device.torch_device(0)
        self.build = Build(plan, dtype=getattr(torch, plan.dtype), device=self.device, load_object=load_object)
        self.model: Model = load_object(plan.model_implementation)(self.build, boot.checkpoint)
        load_weights(
            self.model,
            boot.checkpoint,
            self.build.dtype,
            progress=False,
            load_format=config.model.load_format,
            seed=config.engine.seed,
        )
        self._block_size = config.cache.block_size
        self._free = random.Random(seed).sample(range(num_blocks), num_blocks)
        self._blocks: dict[Any, list[int]] = {}
        self._lengths: dict[Any, int] = {}
        specs = self.model.cache_specs()
        self._sites = sorted({site for _, site, _ in specs})
        self._caches = [self._cache(site, num_blocks) for _, site, _ in specs]

    @classmethod
    def of(cls, checkpoint: Path, settings: Mapping[str, Any] | None = None, **options: Any) -> ModelHarness:
        """Boots ``checkpoint`` with ``settings`` (dotted paths to values) and nothing from files or environment."""
        return cls(boot(load({"model.path": str(checkpoint), **(settings or {})}, environ={})), **options)

    @torch.inference_mode()
    def step(self, work: Sequence[tuple[Any, Sequence[int]]]) -> list[Tensor]:
        """Runs the next tokens of several requests as one step; returns float32 logits ``[tokens, vocab]`` of each."""
        counts = [len(tokens) for _, tokens in work]
        positions = [self._extend(name, len(tokens)) for name, tokens in work]
        tables = [self._blocks[name] for name, _ in work]
        width = max(len(table) for table in tables)
        slots = [
            table[p // self._block_size] * self._block_size + p % self._block_size
            for table, own in zip(tables, positions, strict=True)
            for p in own
        ]
        starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
        lengths = [self._lengths[name] for name, _ in work]
        attention = AttentionStep(
            query_start=self._tensor(starts, torch.int32),
            seq_lens=self._tensor(lengths, torch.int32),
            block_table=self._tensor([table + [0] * (width - len(table)) for table in tables], torch.int32),
            slot_mapping=self._tensor(slots, torch.int64),
            num_requests=len(work),
            num_tokens=sum(counts),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
        )
        self.build.select(sum(counts))
        context = StepContext(
            positions=self._tensor([p for own in positions for p in own], torch.int64),
            attention={site: self.build.attention(site).prepare(attention) for site in self._sites},
            caches=self._caches,
        )
        token_ids = self._tensor([token for _, tokens in work for token in tokens], torch.int64)
        return list(self.model.logits(self.model.forward(token_ids, context)).split(counts))

    def _extend(self, name: Any, count: int) -> list[int]:
        start = self._lengths.get(name, 0)
        self._lengths[name] = start + count
        blocks = self._blocks.setdefault(name, [])
        while len(blocks) * self._block_size < start + count:
            blocks.append(self._free.pop())
        return list(range(start, start + count))

    def _cache(self, site: str, num_blocks: int) -> Tensor:
        layout = self.build.attention(site).cache_layout(num_blocks)
        return torch.full(layout.shape, float("nan"), dtype=getattr(torch, layout.dtype), device=self.device)

    def _tensor(self, values: Sequence[Any], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)
