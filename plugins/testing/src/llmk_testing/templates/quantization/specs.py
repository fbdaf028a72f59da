"""The plugin module: what this distribution brings. It needs no torch."""

from __future__ import annotations

from llmk.api import OK, Checkpoint, QuantizationSpec, Verdict, hookimpl, no


def claims(checkpoint: Checkpoint) -> Verdict:
    """Weights that are not quantized yet. A method that reads quantized files looks at ``checkpoint.quantization``, and
    is not ``online``."""
    if not checkpoint.quantization:
        return OK
    found = checkpoint.quantization.get("quant_method", "unnamed")
    return no("quantized", wanted="plain weights", found=found, hint="leave out model.quantization")


@hookimpl
def llmk_quantization_methods() -> list[QuantizationSpec]:
    """Quantization methods."""
    return [
        QuantizationSpec(
            id="acme.rounded",
            name="acme-rounded",
            # A format that llmk.reference has kernels for; with one of your own, bring linear kernels for it, too.
            weight_format="int8_channel",
            claims=claims,
            implementation="llmk_acme.rounded:Rounded",
            online=True,
            examples="llmk_acme.examples:ROUNDED",
            summary="8-bit integers while loading, a scale per output",
        )
    ]
