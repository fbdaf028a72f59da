"""Llama, Mistral, Qwen2 and Qwen3: one decoder, whose families differ in biases, query and key norms, and windows."""

from __future__ import annotations

from llmk.api import Checkpoint
from llmk.nn import Build
from llmk_models.decoder import Decoder
from llmk_models.dense_facts import shape_of


class DenseModel(Decoder):
    """A decoder of the dense family. Follows ``llmk.nn.Model``."""

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        super().__init__(build, shape_of(checkpoint))
