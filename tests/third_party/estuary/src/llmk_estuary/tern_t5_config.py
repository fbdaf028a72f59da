"""What the configuration of a T5 checkpoint says: which modules are ternary, and how. It needs no torch.

T5 stores weights of -1, 0 and 1, five to a byte, with a scale per group of inputs. Its ``quantization_config``:

- ``quant_method``: ``"t5"``;
- ``version``: 1, which is the default;
- ``group_size``: inputs that share a scale, 64 by default;
- ``symmetric``: false where groups have zero points too; true by default;
- ``ignore``: modules that are plain. An entry is a module's name, the last components of one (``lm_head``,
  ``self_attn.o_proj``), or ``re:`` and a regular expression for a whole name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmk.api import OK, Checkpoint, CheckpointError, Verdict, no

METHOD = "t5"
VERSION = 1
GROUP_SIZES = (32, 64, 128)
_PATTERN = "re:"


@dataclass(frozen=True, slots=True)
class T5Config:
    """The checked configuration. ``ignored`` are the entries of its list, each with what matches a module's name."""

    group_size: int = 64
    symmetric: bool = True
    ignored: Mapping[str, Callable[[str], bool]] = field(default_factory=dict)

    def is_plain(self, module: str) -> bool:
        """Whether the checkpoint leaves ``module`` plain."""
        return any(matches(module) for matches in self.ignored.values())

    def unmatched(self, modules: Collection[str]) -> list[str]:
        """The entries that match none of ``modules``."""
        return [entry for entry, matches in self.ignored.items() if not any(map(matches, modules))]


def claims(checkpoint: Checkpoint) -> Verdict:
    """Checkpoints whose config names the method, in the version that is read."""
    config = _given(checkpoint)
    method = config.get("quant_method", "none")
    if method != METHOD:
        return no("quant_method", wanted=METHOD, found=method)
    version = config.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        return no("version", wanted=VERSION, found=version, hint="install a newer llmk-estuary")
    return OK


def modules(checkpoint: Checkpoint) -> Callable[[str], Verdict | None]:
    """Which modules are ternary."""
    config = read(checkpoint)
    return lambda module: None if config.is_plain(module) else OK


def read(checkpoint: Checkpoint) -> T5Config:
    """The configuration of a checkpoint.

    Raises:
        CheckpointError: a field has a value that it can't have.
    """
    given = _given(checkpoint)
    size, symmetric, ignore = given.get("group_size", 64), given.get("symmetric", True), given.get("ignore")
    if isinstance(size, bool) or not isinstance(size, int) or size not in GROUP_SIZES:
        raise _invalid("group_size", size, "one of " + ", ".join(map(str, GROUP_SIZES)))
    if not isinstance(symmetric, bool):
        raise _invalid("symmetric", symmetric, "true or false")
    entries = [] if ignore is None else ignore
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) and entry for entry in entries):
        raise _invalid("ignore", ignore, "a list of names")
    return T5Config(size, symmetric, {entry: _matcher(entry) for entry in entries})


def _given(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The ``quantization_config`` of ``config.json``, which anyone may have written."""
    config: Any = checkpoint.quantization
    return config if isinstance(config, Mapping) else {}


def _matcher(entry: str) -> Callable[[str], bool]:
    if entry.startswith(_PATTERN):
        try:
            pattern = re.compile(entry.removeprefix(_PATTERN))
        except re.error as error:
            raise _invalid("ignore", entry, f"a regular expression: {error}") from error
        return lambda module: pattern.fullmatch(module) is not None
    return lambda module: module == entry or module.endswith(f".{entry}")


def _invalid(name: str, value: Any, wanted: str) -> CheckpointError:
    text = repr(value)
    return CheckpointError(
        f"quantization_config.{name} is {text if len(text) <= 80 else text[:77] + '...'}, not {wanted}",
        hint="check config.json, or convert the checkpoint again",
    )
