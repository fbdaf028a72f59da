"""Mamba-2: a selective scan in every layer, and no attention (arXiv:2405.21060)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llmk.api import CacheSpec, Checkpoint
from llmk.nn import AddRMSNorm, Build, Embedding, Linear, LMHead, StateSpaceMixer, StepContext
from llmk_models.mamba2_facts import Mamba2Shape, shape_of
from llmk_models.stack import Stack


class Mamba2Layer:
    """Norm and mixer. The residual is a separate tensor, to which the norm first adds the previous layer's output."""

    def __init__(self, build: Build, shape: Mamba2Shape, index: int) -> None:
        prefix, hidden, sizes = f"backbone.layers.{index}", shape.hidden_size, shape.mixer
        self.norm = AddRMSNorm(build, f"{prefix}.norm", hidden, shape.norm_eps, site=shape.add_norm)
        self.into = Linear(
            build,
            f"{prefix}.mixer.in_proj",
            hidden,
            sizes.projected_parts,
            site="in",
            bias=shape.bias,
            parallel="column",
            units=[sizes.units] * len(sizes.projected_parts),
        )
        place = build.parallel.local_index(index, shape.num_layers)
        self.mixer = StateSpaceMixer(build, f"{prefix}.mixer", sizes, index=place, eps=shape.norm_eps)
        self.out = Linear(
            build,
            f"{prefix}.mixer.out_proj",
            sizes.inner_size,
            (hidden,),
            site="out",
            bias=shape.bias,
            parallel="row",
        )

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """As :class:`~llmk_models.stack.Block`."""
        x, residual = self.norm(x, residual)
        return self.out(self.mixer(self.into(x), step)), residual


class Mamba2Model(Stack):
    """Follows ``llmk.nn.Model``."""

    ignored_weights: tuple[str, ...] = ()

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        self.build = build
        self.shape = shape = shape_of(checkpoint)
        self.hidden_size = shape.hidden_size
        self.residual_dtype = torch.float32 if shape.fp32_residual else build.dtype
        vocab, prefix = shape.vocab_size, "backbone.embedding"
        with build.stage(build.parallel.is_first):
            # Checkpoints older than the family's support in transformers have the name in the singular.
            others = (f"{prefix}.weight", *(("lm_head.weight",) if shape.tied else ()))
            self.embed = Embedding(build, f"{prefix}s", vocab, self.hidden_size, aliases=others)
        self.layers: Sequence[Mamba2Layer] = build.stage_layers(
            shape.num_layers, lambda i: Mamba2Layer(build, shape, i)
        )
        with build.stage(build.parallel.is_last):
            self.norm = AddRMSNorm(build, "backbone.norm_f", self.hidden_size, shape.norm_eps, site=shape.add_norm)
            tied_to = self.embed if shape.tied else None
            self.head = LMHead(build, "lm_head", self.hidden_size, vocab, tied_to=tied_to)
        self.weights = build.layers

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        numbers, site = self.build.parallel.layers(self.shape.num_layers), self.shape.mixer.site
        return [(i, site, layer.mixer.cache_spec) for i, layer in zip(numbers, self.layers, strict=True)]
