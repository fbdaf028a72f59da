"""A case of a quantization method's configs: which checkpoints it claims, and which of their modules it reads."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmk.api import Checkpoint, CheckpointError, QuantizationSpec, Verdict
from llmk.kernel.loader import load_object
from llmk_testing.case import Skip
from llmk_testing.quantization_example import ConfigExample


def check_configs(spec: QuantizationSpec, named: Sequence[Any]) -> str:
    """Every config that an example explains."""
    examples = [each for each in named if isinstance(each, ConfigExample)]
    if not examples:
        raise Skip("no example explains a config: none is a ConfigExample")
    for example in examples:
        try:
            _check(spec, example)
        except AssertionError as error:
            raise AssertionError(f"{error}; the config is {example.config}") from error
    return f"{len(examples)} configs"


def _check(spec: QuantizationSpec, example: ConfigExample) -> None:
    config = {"architectures": ["Some"], "quantization_config": dict(example.config)}
    checkpoint = Checkpoint(Path("/nowhere"), deepcopy(config))
    verdict = spec.claims(checkpoint)
    if example.claimed is not True:
        codes = [reason.code for reason in verdict.reasons]
        assert not verdict, "it is claimed"
        assert not example.claimed or example.claimed in codes, f"refused for {codes}, expected {example.claimed!r}"
        return
    assert verdict, f"it is not claimed: {'; '.join(map(str, verdict.reasons))}"
    for module, right in (example.modules or {"model.layer": True}).items():
        found, again = (_read(spec, checkpoint, module) for _ in range(2))
        assert found == again, f"{module}: {found}, and asked again, {again}"
        assert checkpoint.config == config, f"asked about {module}, the method changed the checkpoint's config"
        if example.error:
            assert example.error in str(found), f"{module}: {found}, expected the error {example.error!r}"
        else:
            assert found == right, f"{module}: {found}, expected {right}"
    if example.unmatched is not None:
        method = load_object(spec.implementation)(checkpoint)
        entries = tuple(method.unmatched(list(example.modules)))
        assert entries == example.unmatched, f"unmatched entries are {entries}, expected {example.unmatched}"


def _read(spec: QuantizationSpec, checkpoint: Checkpoint, module: str) -> bool | str:
    """Whether the method reads a module, the code of the reason why it can't, or the error."""
    try:
        verdict: Verdict | None = spec.modules(checkpoint)(module)
    except CheckpointError as error:
        return f"{error} {getattr(error, 'hint', '')}"
    if verdict is None:
        return False
    return True if verdict else verdict.reasons[0].code
