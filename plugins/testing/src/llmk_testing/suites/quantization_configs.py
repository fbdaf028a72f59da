"""Cases of a quantization method's configs: which checkpoints it claims, and which of their modules it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from llmk.api import Checkpoint, CheckpointError, QuantizationSpec, Verdict
from llmk.api.errors import describe
from llmk.kernel.loader import load_object
from llmk_testing.case import Skip
from llmk_testing.purity import refusing_imports
from llmk_testing.quantization_example import ConfigExample, QuantizationExample

NO_TABLES: tuple[Any, ...] = (None, [], ["fp8"], "fp8", 4, 0.5, True)
"""What may stand in place of a ``quantization_config``."""
_ODD: tuple[Any, ...] = (None, "odd", "", [], ["odd"], [1], {}, {"odd": 1}, -1, 0, 7, 0.5, True)
_MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.experts.3.down_proj", "lm_head", "model.norm", "")

_IN_LAYER = re.compile(r"\.(\d+)\.")
"""Where a module's name has the number of its layer."""


def odd_configs(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Configs of which one key, at any level, is missing or has a value of another kind."""
    for key, value in config.items():
        yield {other: kept for other, kept in config.items() if other != key}
        for odd in _ODD:
            yield {**config, key: odd}
        if isinstance(value, Mapping):
            yield from ({**config, key: inner} for inner in odd_configs(value))


def check_modules(spec: QuantizationSpec, named: Sequence[Any]) -> str:
    """Where a config that is claimed can't be followed, that is a CheckpointError, which the user reads."""
    configs = [each.quantization_config for each in named if isinstance(each, QuantizationExample)]
    configs += [each.config for each in named if isinstance(each, ConfigExample)]
    tried, refused = 0, 0
    for odd in (odd for config in configs for odd in odd_configs(config)):
        checkpoint = Checkpoint(Path("/nowhere"), {"architectures": ["Some"], "quantization_config": deepcopy(odd)})
        if not spec.claims(checkpoint):
            continue
        tried += 1
        try:
            refused += not _asked(spec, checkpoint)
        except AssertionError as error:
            raise AssertionError(f"{error}; quantization_config is {odd}") from error
        except Exception as error:
            what = "a config that is claimed, and can't be followed, is a CheckpointError"
            raise AssertionError(f"{what}; this raised {describe(error)}: {odd}") from error
        assert checkpoint.quantization == odd, f"the checkpoint's config was changed, which was {odd}"
    return f"{tried} configs, of which {refused} can't be followed"


def _asked(spec: QuantizationSpec, checkpoint: Checkpoint) -> bool:
    """Asks about modules; returns whether the config can be followed."""
    try:
        with refusing_imports():
            reads = spec.modules(checkpoint)
            for module in _MODULES:
                found = reads(module)
                assert found is None or isinstance(found, Verdict), f"{module!r} is {found!r}, not a Verdict or None"
        entries = load_object(spec.implementation)(checkpoint).unmatched(_MODULES)
    except CheckpointError:
        return False
    assert isinstance(entries, list), f"unmatched entries are {entries!r}, not a list"
    return True


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
    return f"{len(examples)} configs, {_check_lists(spec, examples)} names in their lists"


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


def _check_lists(spec: QuantizationSpec, examples: Sequence[ConfigExample]) -> int:
    """Where an entry of a list leaves modules plain, so does the whole name of any module, of attention and of experts
    too, that module alone."""
    tried = 0
    for example in (each for each in examples if each.claimed is True and not each.error):
        for key, at in _excluding(spec, example):
            for module in dict.fromkeys((*filter(_IN_LAYER.search, example.modules), *_MODULES[:2])):
                entries, both = list(example.config[key]), (module, _sibling(module))
                entries[at] = "model.layers.77.mlp.up_proj"
                if any(_with(spec, example, key, entries, one) is not True for one in both):
                    continue
                entries[at] = module
                found = [_with(spec, example, key, entries, one) for one in both]
                assert found == [False, True], f"{key} has {module}: {both} are {found}, expected [False, True]"
                tried += 1
    return tried


def _excluding(spec: QuantizationSpec, example: ConfigExample) -> Iterator[tuple[str, int]]:
    """The entries, by key and place, without which a plain module of the example is read."""
    plain = [module for module, right in example.modules.items() if right is False]
    for key, entries in example.config.items():
        if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
            continue
        for at in range(len(entries)):
            left = [*entries[:at], *entries[at + 1 :]]
            if any(_with(spec, example, key, left, module) is True for module in plain):
                yield key, at


def _with(spec: QuantizationSpec, example: ConfigExample, key: str, entries: list[str], module: str) -> bool | str:
    config = {**deepcopy(dict(example.config)), key: entries}
    checkpoint = Checkpoint(Path("/nowhere"), {"architectures": ["Some"], "quantization_config": config})
    return _read(spec, checkpoint, module)


def _sibling(module: str) -> str:
    """The same module of another layer."""
    return _IN_LAYER.sub(lambda found: f".{int(found[1]) + 55}.", module, count=1)


def _read(spec: QuantizationSpec, checkpoint: Checkpoint, module: str) -> bool | str:
    """Whether the method reads a module, the code of the reason why it can't, or the error."""
    try:
        verdict: Verdict | None = spec.modules(checkpoint)(module)
    except CheckpointError as error:
        return f"{error} {getattr(error, 'hint', '')}"
    if verdict is None:
        return False
    return True if verdict else verdict.reasons[0].code
