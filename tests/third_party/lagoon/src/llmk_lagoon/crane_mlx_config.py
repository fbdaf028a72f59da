"""What the config of an MLX checkpoint says of its modules.

MLX writes ``{"group_size": 64, "bits": 4}``, without a ``quant_method``, and in the same object an entry for each
module that is stored otherwise: ``false`` (plain), ``true`` (like the others), or sizes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmk.api import OK, Checkpoint, CheckpointError, ReadsModule, Verdict, no

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
HINT = "check where the checkpoint is from, or convert it again with mlx_lm.convert"


@dataclass(frozen=True, slots=True)
class Form:
    """How a module is stored: numbers of so many bits, and inputs that share a scale and a bias."""

    bits: int
    group_size: int


class Forms:
    """The forms of a checkpoint's modules. Raises CheckpointError for what MLX can't have written."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.common = _form(config, "quantization_config")
        self.own: dict[str, Form | None] = {}
        for name, entry in config.items():
            if isinstance(entry, bool):
                self.own[name] = self.common if entry else None
            elif isinstance(entry, Mapping):
                self.own[name] = _form({**config, **entry}, name)
            elif name not in ("group_size", "bits", "mode"):
                raise CheckpointError(f"quantization_config has {name!a} with the value {entry!a}", hint=HINT)

    def of(self, module: str) -> Form | None:
        """The form of a module; ``None``: it is plain."""
        return self.own.get(module, self.common)


def _form(entry: Mapping[str, Any], name: str) -> Form:
    """The sizes of an entry, checked."""
    mode, bits, size = entry.get("mode", "affine"), entry.get("bits"), entry.get("group_size")
    if mode != "affine":
        raise CheckpointError(f"{name} has the mode {mode!a}, and only affine is read", hint=HINT)
    if type(bits) is not int or bits not in BITS:
        raise CheckpointError(f"{name} has bits {bits!a}, and MLX has {BITS}", hint=HINT)
    if type(size) is not int or size not in GROUP_SIZES:
        raise CheckpointError(f"{name} has group_size {size!a}, and MLX has {GROUP_SIZES}", hint=HINT)
    return Form(bits, size)


def claims(checkpoint: Checkpoint) -> Verdict:
    """MLX is the one that names no method."""
    config = checkpoint.quantization
    if "quant_method" in config:
        return no("quant_method", wanted="none", found=config["quant_method"])
    if config.get("mode", "affine") != "affine":
        return no("mode", wanted="affine", found=config["mode"])
    if "bits" not in config or "group_size" not in config:
        return no("quantized", wanted="bits and group_size in quantization_config", found=sorted(map(str, config)))
    return OK


def modules(checkpoint: Checkpoint) -> ReadsModule:
    """Which modules have 4 bits."""
    forms = Forms(checkpoint.quantization)

    def reads(module: str) -> Verdict | None:
        form = forms.of(module)
        if form is None or form.bits == 4:
            return OK if form else None
        return no("bits", wanted=4, found=form.bits, hint="convert the checkpoint with 4 bits")

    return reads
