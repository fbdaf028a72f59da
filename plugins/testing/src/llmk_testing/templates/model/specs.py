"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import ModelSpec, hookimpl


@hookimpl
def llmk_models() -> list[ModelSpec]:
    """Model families, by what ``architectures`` says in their checkpoints' ``config.json``."""
    return [
        ModelSpec(
            id="acme.seed_oss",
            architectures=("SeedOssForCausalLM",),
            tree="llmk_acme.model:tree",
            deterministic=True,  # the layers of llmk are batch-invariant; kernels declare it separately
            examples="llmk_acme.examples:CHECKPOINTS",
            summary="Seed-OSS decoders",
        )
    ]
