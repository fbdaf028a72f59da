"""What ``config.json`` says of checkpoints in the format *berth* (:mod:`llmk_harbor.quay_berth`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llmk.api import OK, Checkpoint, CheckpointError, Verdict, no

METHOD = "berth"
GROUP_SIZES = (32, 64)
"""Inputs that share a scale."""


def section(checkpoint: Checkpoint | None) -> Mapping[str, Any]:
    """The checkpoint's ``quantization_config``; empty where it has none, or no table."""
    found = checkpoint.config.get("quantization_config") if checkpoint is not None else None
    return found if isinstance(found, Mapping) else {}


def claims(checkpoint: Checkpoint) -> Verdict:
    """Checkpoints in the format, of a width and with groups that are read."""
    config = section(checkpoint)
    method = config.get("quant_method", "none")
    if method != METHOD:
        return no("quant_method", wanted=METHOD, found=method)
    verdict = OK
    if not _is(config.get("bits", 4), (4,)):
        verdict &= no("bits", wanted=4, found=config["bits"])
    if not _is(config.get("group_size"), GROUP_SIZES):
        verdict &= no("group_size", wanted=" or ".join(map(str, GROUP_SIZES)), found=config.get("group_size"))
    return verdict


def group_size(checkpoint: Checkpoint | None) -> int:
    """Inputs that share a scale, of a checkpoint that is claimed."""
    return int(section(checkpoint).get("group_size", GROUP_SIZES[0]))


def plain_modules(checkpoint: Checkpoint | None) -> list[str]:
    """The modules that are stored plain, by name or by the name of a module above them.

    Raises:
        CheckpointError: it is no list of names.
    """
    listed = section(checkpoint).get("plain_modules") or []
    if not isinstance(listed, list) or not all(isinstance(entry, str) and entry for entry in listed):
        raise CheckpointError(
            f"quantization_config.plain_modules in config.json is {listed!r}, which is no list of names of modules",
            hint="download config.json again, or correct it",
        )
    return listed


def is_below(module: str, entry: str) -> bool:
    """Whether ``module`` is the one that ``entry`` names, or a part of it."""
    return module == entry or module.startswith(f"{entry}.")


def modules(checkpoint: Checkpoint) -> Callable[[str], Verdict | None]:
    """All modules but those of the config's list are read."""
    plain = plain_modules(checkpoint)

    def reads(module: str) -> Verdict | None:
        return None if any(is_below(module, entry) for entry in plain) else OK

    return reads


def _is(value: object, wanted: tuple[int, ...]) -> bool:
    """Whether a value is one of the numbers; ``True`` and ``4.0`` are none."""
    return type(value) is int and value in wanted
