"""Gemma 2: norms before and after every block, sliding windows in every other layer, soft caps (arXiv:2408.00118)."""

from __future__ import annotations

from torch import Tensor

from llmk.api import Checkpoint
from llmk.nn import Build, Embedding, GatedMLP, LMHead, SandwichNorm, StepContext
from llmk_models.decoder import Decoder, SelfAttention
from llmk_models.decoder_facts import DecoderShape
from llmk_models.gemma2_facts import shape_of


class Gemma2Layer:
    """Attention and feed-forward. The norm after each block is one op with the residual sum and the next norm."""

    def __init__(self, build: Build, shape: DecoderShape, index: int, cos_sin: Tensor) -> None:
        prefix = f"model.layers.{index}"
        before = f"model.layers.{index - 1}.post_feedforward_layernorm" if index else None
        after, then = f"{prefix}.post_attention_layernorm", f"{prefix}.pre_feedforward_layernorm"
        hidden, eps = shape.hidden_size, shape.norm_eps
        self.input_norm = SandwichNorm(build, before, f"{prefix}.input_layernorm", hidden, eps)
        self.attention = SelfAttention(build, shape, index, cos_sin)
        self.mlp_norm = SandwichNorm(build, after, then, hidden, eps)
        self.mlp = GatedMLP(build, f"{prefix}.mlp", hidden, shape.intermediate_size, site="gate_up_gelu_tanh")

    def __call__(self, x: Tensor, residual: Tensor | None, step: StepContext) -> tuple[Tensor, Tensor]:
        """As :class:`~llmk_models.stack.Block`."""
        x, residual = self.input_norm(x, residual)
        x = self.attention(x, step)
        x, residual = self.mlp_norm(x, residual)
        return self.mlp(x), residual


class Gemma2Model(Decoder):
    """Follows ``llmk.nn.Model``."""

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        shape = shape_of(checkpoint)
        self._logit_softcap = shape.logit_softcap
        super().__init__(build, shape.decoder)

    def make_embedding(self, aliases: tuple[str, ...]) -> Embedding:
        """Embeddings are scaled by the square root of the hidden size."""
        shape = self.shape
        return Embedding(
            self.build,
            "model.embed_tokens",
            shape.vocab_size,
            shape.hidden_size,
            site="scaled_embedding",
            aliases=aliases,
            scale=shape.hidden_size**0.5,
        )

    def make_layer(self, index: int, cos_sin: Tensor) -> Gemma2Layer:
        """A layer; its first norm also ends the previous layer."""
        return Gemma2Layer(self.build, self.shape, index, cos_sin)

    def make_norm(self) -> SandwichNorm:
        """The final norm, which also ends the last layer."""
        shape = self.shape
        last = f"model.layers.{shape.num_layers - 1}.post_feedforward_layernorm"
        return SandwichNorm(self.build, last, "model.norm", shape.hidden_size, shape.norm_eps)

    def make_head(self, tied_to: Embedding | None) -> LMHead:
        """The LM head, with a soft cap."""
        shape, cap = self.shape, self._logit_softcap
        return LMHead(self.build, "lm_head", shape.hidden_size, shape.vocab_size, tied_to=tied_to, softcap=cap)
