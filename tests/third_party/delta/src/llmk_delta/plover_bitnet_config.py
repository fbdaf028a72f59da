"""What a ``quantization_config`` of BitNet b1.58 (arXiv:2402.17764) says, as transformers writes it. No torch is
needed."""

from __future__ import annotations

from dataclasses import dataclass

from llmk.api import OK, Checkpoint, CheckpointError, Verdict, no

MODES = ("offline", "online")
LINEAR_CLASSES = ("bitlinear", "autobitlinear")


@dataclass(frozen=True, slots=True)
class BitNetConfig:
    """``divides``: whether a matrix is its ternary numbers divided by its scale, not times it: layers of the class
    ``bitlinear`` store the reciprocal of what layers of the class ``autobitlinear`` store. ``plain`` are the entries of
    ``modules_to_not_convert``, ``normed`` is whether layers norm their inputs."""

    divides: bool = True
    plain: tuple[str, ...] = ()
    normed: bool = False

    def reads(self, module: str) -> Verdict | None:
        """``None`` if the module is plain."""
        if any(names(entry, module) for entry in self.plain):
            return None
        if self.normed:
            hint = "layers that norm their inputs can't be served"
            return no("use_rms_norm", wanted="false", found="true", hint=hint)
        return OK


def names(entry: str, module: str) -> bool:
    """Whether an entry is the name of a module or of one that it is in, or some whole parts of these."""
    return f".{entry}." in f".{module}."


def claims(checkpoint: Checkpoint) -> Verdict:
    """Whether modules are stored so. In the mode ``online``, files have plain weights, which are rounded for each step
    of a training."""
    config = checkpoint.quantization
    if config.get("quant_method") != "bitnet":
        return no("quant_method", wanted="bitnet", found=config.get("quant_method", "none"))
    if config.get("quantization_mode") == "online":
        return no("quantization_mode", wanted="offline", found="online", hint="convert the checkpoint, which packs it")
    return OK


def parse(checkpoint: Checkpoint) -> BitNetConfig:
    """The config; raises CheckpointError if it has a value that there is not."""
    config = checkpoint.quantization
    mode, linear_class = config.get("quantization_mode", "offline"), config.get("linear_class", "bitlinear")
    plain, normed = config.get("modules_to_not_convert"), config.get("use_rms_norm", False)
    for key, found, known in (("quantization_mode", mode, MODES), ("linear_class", linear_class, LINEAR_CLASSES)):
        if not isinstance(found, str) or found not in known:
            raise _wrong(checkpoint, key, found, " or ".join(known))
    if not isinstance(normed, bool):
        raise _wrong(checkpoint, "use_rms_norm", normed, "true or false")
    if plain is None:
        plain = []
    if not isinstance(plain, list) or not all(isinstance(entry, str) and entry for entry in plain):
        raise _wrong(checkpoint, "modules_to_not_convert", plain, "a list of names")
    return BitNetConfig(linear_class == "bitlinear", tuple(plain), normed)


def _wrong(checkpoint: Checkpoint, key: str, found: object, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"quantization_config of {checkpoint.path} has {key} {str(found)[:100]!a}, which is not {wanted}",
        hint="correct config.json, or download it again",
    )
