"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, Checkpoint, QuantizationSpec, Verdict, hookimpl, no


def claims(checkpoint: Checkpoint) -> Verdict:
    """Claims plain checkpoints. A method that reads quantized checkpoints checks ``checkpoint.quantization`` instead,
    and is not ``online``."""
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
            # A format for which llmk.reference has kernels; for a new format, also provide linear kernels.
            weight_format="int8_channel",
            claims=claims,
            implementation="llmk_acme.rounded:Rounded",
            online=True,
            examples="llmk_acme.examples:ROUNDED",
            summary="int8 while loading, a scale per output",
        )
    ]
