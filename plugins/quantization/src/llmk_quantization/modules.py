"""Which of a checkpoint's modules are quantized, by the lists in its ``quantization_config``. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from llmk.api import CheckpointError
from llmk.api.errors import shown

Matches = Callable[[str], bool]
"""Whether an entry of a list names a module."""

_CLASS = "Linear"
_ALWAYS_STORED = ("lm_head",)
"""Lists name the head also where it is tied to the embedding, so that it is not in the files."""


def unconverted(entry: str) -> Matches:
    """An entry of ``modules_to_not_convert``, which is a part of a name, in whole components, or its end, or a regular
    expression for its start (``should_convert_module`` of ``transformers.quantizers.quantizers_utils``; AutoAWQ's
    ``exclude_layers_to_not_quantize``)."""
    start = compiled(rf"(?:{entry})(?:(?<=\.)|(?=\.|$))", entry)
    inner = f".{entry.strip('.')}."
    return lambda module: bool(start.match(module)) or module.endswith(entry) or inner in f".{module}."


def named(entry: str) -> Matches:
    """An entry of ``ignore`` or ``targets`` of compressed-tensors: a name, ``re:`` and a regular expression for its
    start, or the class of all linear layers (``is_match`` of ``compressed_tensors.utils.match``)."""
    if entry == _CLASS:
        return lambda module: True
    if not entry.startswith("re:"):
        return partial(str.__eq__, entry)
    start = compiled(entry.removeprefix("re:"), entry)
    return lambda module: bool(start.match(module))


def compiled(pattern: str, entry: str) -> re.Pattern[str]:
    """A regular expression that an entry of a list is, or has. Raises CheckpointError if it isn't one."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CheckpointError(
            f"quantization_config names the modules {entry!r}, which is not a regular expression: {error}",
            hint="compare config.json with the file that the model's authors publish",
        ) from error


@dataclass(frozen=True, slots=True)
class Group:
    """One of the ``config_groups`` of compressed-tensors, and the scheme of its weights."""

    name: str
    weights: Mapping[str, Any]
    stored: Any
    """The group's ``format``, or else the checkpoint's."""
    config: Mapping[str, Any]

    @property
    def targets(self) -> tuple[str, ...]:
        """Entries for the modules that it quantizes. Raises CheckpointError if they are not valid."""
        return texts(self.config, "targets")


def groups_of(config: Mapping[str, Any]) -> Iterator[Group]:
    """The groups of a config, in order. Those without weights (of activations alone) are left out."""
    for name, group in _object(config.get("config_groups")).items():
        weights = _object(group).get("weights")
        if isinstance(weights, Mapping):
            stored = _object(group).get("format") or config.get("format")
            yield Group(name, weights, stored, group)


def group_finder(config: Mapping[str, Any]) -> Callable[[str], Group | None]:
    """Returns, for a module, the group that quantizes it; ``None``: it is plain.

    ``ignore`` comes before groups. Of several groups, one that names the module comes before one that matches it by a
    regular expression, and this one before one that names its class.
    """
    ignored = [named(entry) for entry in texts(config, "ignore")]
    ranked = [(_rank(entry), entry, group) for group in groups_of(config) for entry in group.targets]
    targets = [(named(entry), group) for _, entry, group in sorted(ranked, key=lambda target: target[0])]

    def find(module: str) -> Group | None:
        if any(matches(module) for matches in ignored):
            return None
        return next((group for matches, group in targets if matches(module)), None)

    return find


def _rank(entry: str) -> int:
    return 2 if entry == _CLASS else int(entry.startswith("re:"))


def unmatched(config: Mapping[str, Any], modules: Collection[str]) -> list[str]:
    """Entries of the lists that match none of ``modules``."""
    entries: Iterable[tuple[str, Matches]]
    if config.get("quant_method") == "compressed-tensors":
        targets = [entry for group in groups_of(config) for entry in group.targets]
        entries = [(entry, named(entry)) for entry in (*texts(config, "ignore"), *targets)]
    else:
        entries = [(entry, unconverted(entry)) for entry in texts(config, "modules_to_not_convert")]
    known = (*modules, *_ALWAYS_STORED)
    return [entry for entry, matches in entries if not any(map(matches, known))]


def texts(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of texts in a config; empty if it is missing. Raises CheckpointError if it is anything else."""
    found = config.get(key)
    if found is None:
        return ()
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise CheckpointError(
            f"quantization_config has {key} = {shown(found)}, which is not a list of texts",
            hint="compare config.json with the file that the model's authors publish",
        )
    return tuple(found)


def _object(value: Any) -> Mapping[str, Any]:
    """An object of the config; an empty one if the value is not an object."""
    return value if isinstance(value, Mapping) else {}
