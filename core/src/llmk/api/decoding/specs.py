"""What plugins declare of logits processors, speculators and compilers of grammars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmk.api.checkpoint import Checkpoint
from llmk.api.decoding.grammar import GrammarKind
from llmk.api.specs import CheckedSpec
from llmk.api.verdict import OK, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsProcessorSpec(CheckedSpec):
    """A logits processor, which requests name by ``id``. ``implementation`` names a class that implements
    :class:`~llmk.api.LogitsProcessor`; it is imported when a request first names it."""

    id: str
    implementation: str
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculatorSpec(CheckedSpec):
    """A speculator, which the config names by ``name`` or ``id``. ``implementation`` names a class that implements
    :class:`~llmk.api.Speculator`, with ``on_device`` :class:`~llmk.api.DeviceSpeculator`, or with ``heads``, for which
    the model's heads for further tokens are loaded, :class:`~llmk.api.HeadSpeculator`; it is imported in the process
    that uses it. ``supports`` returns whether it supports a checkpoint."""

    id: str
    name: str
    implementation: str
    on_device: bool = False
    heads: bool = False
    supports: Callable[[Checkpoint], Verdict] = lambda checkpoint: OK
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec(CheckedSpec):
    """A compiler of grammars, which constrain the outputs of requests. ``kinds`` are those that it
    compiles. ``implementation`` names a class that implements :class:`~llmk.api.GrammarCompiler`; it is imported when a
    request first has a grammar. Of those that are installed, the one with the highest ``score`` is used, unless the
    config names one by ``name`` or ``id``."""

    id: str
    name: str
    implementation: str
    kinds: tuple[GrammarKind, ...]
    score: int = 0
    examples: str = ""
    """``"module:attribute"`` of test inputs for the conformance kit (``docs/plugins``); see :mod:`llmk_testing`."""
    overrides: str = ""
    summary: str = ""
