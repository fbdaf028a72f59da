"""The hook specs. A plugin implements any of them, as module functions marked with :data:`llmk.api.hookimpl`.

Hooks run at start-up only, never on the token path. Each returns a list of frozen specs (or an iterable of them); what
they name is imported only when it wins.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from llmk.api.facts import ModelFacts
from llmk.api.plan import Plan
from llmk.api.platform import PlatformFacts
from llmk.api.specs import (
    CommandSpec,
    IOProcessorSpec,
    KernelSpec,
    LogitsProcessorSpec,
    ModelSpec,
    OpContract,
    ParserSpec,
    PlatformSpec,
    PolicySpec,
    QuantizationSpec,
    StatLoggerSpec,
    TunedConfigs,
)

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True)
class Default:
    """A plugin's default for the value at ``path`` (``"cache.block_size"``), and why. Anything the user sets wins over
    it."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in the final configuration that can't work here: where, what, and how to mend it."""

    path: str
    message: str
    fix: str = ""


class Command(Protocol):
    """A command of ``llmk`` that a plugin brings. It is imported when somebody calls it, made without arguments."""

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's options and positional arguments."""
        ...

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Runs it; returns the exit code. May raise :class:`~llmk.api.LlmkError`, which is printed."""
        ...


hookspec = pluggy.HookspecMarker("llmk")


@hookspec
def llmk_platforms() -> Iterable[PlatformSpec]:
    """Platforms: kinds of device that models can run on."""
    return ()


@hookspec
def llmk_attention_backends() -> Iterable[KernelSpec]:
    """Attention backends (``kind="attention"``)."""
    return ()


@hookspec
def llmk_linear_kernels() -> Iterable[KernelSpec]:
    """Linear kernels (``kind="linear"``)."""
    return ()


@hookspec
def llmk_moe_kernels() -> Iterable[KernelSpec]:
    """Mixture-of-experts kernels (``kind="moe"``)."""
    return ()


@hookspec
def llmk_ops() -> Iterable[KernelSpec | OpContract]:
    """Kernels of ops, plain and composite (``kind="op"``), and the contracts of ops that the wheel defines."""
    return ()


@hookspec
def llmk_quantization_methods() -> Iterable[QuantizationSpec]:
    """Quantization methods: ways in which checkpoints store weights."""
    return ()


@hookspec
def llmk_models() -> Iterable[ModelSpec]:
    """Model families."""
    return ()


@hookspec
def llmk_demo_checkpoint() -> str | None:
    """The folder of a checkpoint that ships in the wheel, which is served when no model is named."""
    return None


@hookspec
def llmk_reasoning_parsers() -> Iterable[ParserSpec]:
    """Reasoning parsers."""
    return ()


@hookspec
def llmk_tool_parsers() -> Iterable[ParserSpec]:
    """Tool parsers."""
    return ()


@hookspec
def llmk_io_processors() -> Iterable[IOProcessorSpec]:
    """IO processors."""
    return ()


@hookspec
def llmk_scheduling_policies() -> Iterable[PolicySpec]:
    """Scheduling policies."""
    return ()


@hookspec
def llmk_logits_processors() -> Iterable[LogitsProcessorSpec]:
    """Logits processors, which requests name with parameters of their own."""
    return ()


@hookspec
def llmk_stat_loggers() -> Iterable[StatLoggerSpec]:
    """Stat loggers, to which the server tells its numbers."""
    return ()


@hookspec
def llmk_commands() -> Iterable[CommandSpec]:
    """Commands of ``llmk``, and actions of ``llmk plugins``."""
    return ()


@hookspec
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None) -> Iterable[Default]:
    """The early phase: defaults for this platform and model, before anything is resolved. The user's values win over
    them."""
    return ()


@hookspec
def llmk_check_config(config: object, platform: PlatformFacts) -> Iterable[Problem]:
    """The late phase: problems of the final configuration on this platform. ``config`` is the frozen
    ``llmk.config.Config``."""
    return ()


@hookspec
def llmk_tuned_configs() -> Iterable[TunedConfigs]:
    """Folders of measurements by which kernels are chosen on known devices."""
    return ()


@hookspec
def llmk_config_schema() -> object:
    """The pydantic model of this plugin's own section, ``[plugin.<name>]``; ``None`` where it has none."""
    return None


@hookspec
def llmk_plan_resolved(plan: Plan) -> None:
    """A notification: the plan is final. Returns nothing."""
