"""Mamba-2: a selective scan in every layer, and no attention (arXiv:2405.21060)."""

from __future__ import annotations

from torch import Tensor

from llmk.api import CacheSpec, Checkpoint
from llmk.nn import AddRMSNorm, Build, Embedding, Linear, LMHead, StateSpaceMixer, StepContext
from llmk_models.mamba2_facts import Mamba2Shape, shape_of


class Mamba2Layer:
    """Norm and mixer. The residual runs beside; the norm first adds what the layer before made."""

    def __init__(self, build: Build, shape: Mamba2Shape, index: int) -> None:
        prefix, hidden, sizes = f"backbone.layers.{index}", shape.hidden_size, shape.mixer
        self.norm = AddRMSNorm(build, f"{prefix}.norm", hidden, shape.norm_eps, site=shape.add_norm)
        self.into = Linear(
            build, f"{prefix}.mixer.in_proj", hidden, (sizes.projected_size,), site="in", bias=shape.bias
        )
        self.mixer = StateSpaceMixer(build, f"{prefix}.mixer", sizes, index=index, eps=shape.norm_eps)
        self.out = Linear(build, f"{prefix}.mixer.out_proj", sizes.inner_size, (hidden,), site="out", bias=shape.bias)

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """Takes what the layer before made and the residual; returns the same. All ``[tokens, hidden]``."""
        x, residual = self.norm(x, residual)
        return self.out(self.mixer(self.into(x), step)), residual


class Mamba2Model:
    """Follows ``llmk.nn.Model``."""

    ignored_weights: tuple[str, ...] = ()

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        shape = shape_of(checkpoint)
        hidden, vocab, prefix = shape.hidden_size, shape.vocab_size, "backbone.embedding"
        # Checkpoints from before transformers had the family name the table in the singular.
        others = (f"{prefix}.weight", *(("lm_head.weight",) if shape.tied else ()))
        self.embed = Embedding(build, f"{prefix}s", vocab, hidden, also_named=others)
        self.layers = [Mamba2Layer(build, shape, index) for index in range(shape.num_layers)]
        self.norm = AddRMSNorm(build, "backbone.norm_f", hidden, shape.norm_eps, site=shape.add_norm)
        self.head = LMHead(build, "lm_head", hidden, vocab, tied_to=self.embed if shape.tied else None)
        self.weights = build.layers
        self._site = shape.mixer.site

    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        x = self.embed(token_ids)
        residual: Tensor | None = None
        for layer in self.layers:
            x, residual = layer(x, residual, step)
        return self.norm(x, residual)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.head(hidden)

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        return [(index, self._site, layer.mixer.cache_spec) for index, layer in enumerate(self.layers)]
