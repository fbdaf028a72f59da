"""The models that this distribution brings. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from llmk.api import ModelSpec, hookimpl
from llmk_models.dense_facts import FAMILIES

DEMO = Path(__file__).with_name("demo")


@hookimpl
def llmk_demo_checkpoint() -> str | None:
    """The demo model, where this copy of the wheel has its weights."""
    return str(DEMO) if (DEMO / "model.safetensors").is_file() else None


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """The native families, and the backend that serves whatever ``transformers`` knows."""
    return [
        ModelSpec(
            id="models.dense",
            architectures=tuple(FAMILIES),
            implementation="llmk_models.dense:DenseModel",
            describe="llmk_models.dense_facts:describe",
            summary="Llama, Mistral, Qwen2 and Qwen3 decoders",
        ),
        ModelSpec(
            id="models.transformers",
            architectures=("*",),
            implementation="llmk_models.transformers_model:TransformersModel",
            describe="llmk_models.transformers_facts:describe",
            summary="decoders of the transformers library, by its own modules on llmk's paged cache",
        ),
    ]
