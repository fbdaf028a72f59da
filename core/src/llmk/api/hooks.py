"""The hook specs. A plugin implements any of them, as module functions marked with :data:`llmk.api.hookimpl`.

Hooks are called at start-up only, never per token. Most return frozen specs, whose implementations are imported only
when they are chosen.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from llmk.api.decoding.specs import GrammarSpec, LogitsProcessorSpec, SpeculatorSpec
from llmk.api.engine.executors import ExecutorSpec
from llmk.api.engine.launchers import LauncherSpec
from llmk.api.engine.routing import RouterSpec
from llmk.api.facts import ModelFacts
from llmk.api.http.page import PageSpec
from llmk.api.loading.checkpoint_format import CheckpointFormatSpec
from llmk.api.loading.model_source import ModelSourceSpec
from llmk.api.op_contract import OpContract
from llmk.api.plan import Plan
from llmk.api.platform import PlatformFacts
from llmk.api.specs import (
    CommandSpec,
    IOProcessorSpec,
    KernelSpec,
    ModelSpec,
    ParserSpec,
    PlatformSpec,
    PolicySpec,
    QuantizationSpec,
    RouteSpec,
    StatLoggerSpec,
    TunedConfigs,
)

if TYPE_CHECKING:
    import argparse


@dataclass(frozen=True, slots=True)
class Default:
    """A plugin's default for the configuration value at ``path`` (``"cache.block_size"``), with the reason. Values that
    the user sets take precedence."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem in the final configuration: its path, a message, and how to fix it."""

    path: str
    message: str
    fix: str = ""


class Command(Protocol):
    """A command of ``llmk`` that a plugin provides. It is imported when it is called, and created without arguments.

    Standard output has its results alone, which depend neither on the terminal and its locale nor on the order in which
    a folder lists its files. What it can't do, such as read a file that is damaged or take the value of an option, it
    says in one message that names the file or the option, with an exit code other than 0.
    """

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's options and positional arguments."""
        ...

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Runs the command and returns the exit code. May raise :class:`~llmk.api.LlmkError`, which is printed."""
        ...


hookspec = pluggy.HookspecMarker("llmk")


@hookspec
def llmk_platforms() -> Iterable[PlatformSpec]:
    """Platforms: kinds of devices that models can run on."""
    return ()


@hookspec
def llmk_executors() -> Iterable[ExecutorSpec]:
    """Executors, which hold a model and carry out steps in place of the engine's own."""
    return ()


@hookspec
def llmk_launchers() -> Iterable[LauncherSpec]:
    """Launchers, which start the processes of a model on other machines."""
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
def llmk_model_sources() -> Iterable[ModelSourceSpec]:
    """Sources of models that are named, rather than given as a folder."""
    return ()


@hookspec
def llmk_checkpoint_formats() -> Iterable[CheckpointFormatSpec]:
    """Formats of checkpoints other than Hugging Face folders."""
    return ()


@hookspec
def llmk_quantization_methods() -> Iterable[QuantizationSpec]:
    """Quantization methods: formats of quantized weights."""
    return ()


@hookspec
def llmk_models() -> Iterable[ModelSpec]:
    """Model families."""
    return ()


@hookspec
def llmk_demo_checkpoint() -> str | None:
    """The folder of a checkpoint in the wheel that is served when the user names no model."""
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
def llmk_routes() -> Iterable[RouteSpec]:
    """Routes of HTTP APIs other than OpenAI's."""
    return ()


@hookspec
def llmk_pages() -> Iterable[PageSpec]:
    """Pages for browsers."""
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
def llmk_routers() -> Iterable[RouterSpec]:
    """Routers, which choose the replica that gets a request."""
    return ()


@hookspec
def llmk_logits_processors() -> Iterable[LogitsProcessorSpec]:
    """Logits processors, which requests name together with parameters for them."""
    return ()


@hookspec
def llmk_speculators() -> Iterable[SpeculatorSpec]:
    """Speculators, which draft tokens for the model to verify several in one step."""
    return ()


@hookspec
def llmk_grammars() -> Iterable[GrammarSpec]:
    """Compilers of grammars, which constrain the outputs of requests."""
    return ()


@hookspec
def llmk_stat_loggers() -> Iterable[StatLoggerSpec]:
    """Stat loggers, which export the server's metrics."""
    return ()


@hookspec
def llmk_commands() -> Iterable[CommandSpec]:
    """Commands of ``llmk``, and actions of ``llmk plugins``."""
    return ()


@hookspec
def llmk_config_defaults(platform: PlatformFacts, model: ModelFacts | None, config: object) -> Iterable[Default]:
    """Configuration defaults for this platform and model, collected before kernels are chosen. Values that the user
    sets take precedence. ``config`` is the frozen ``llmk.config.Config`` so far.

    Plugins with checkpoint formats are asked before the checkpoint is read too, without a ``model``: that takes what
    they advise for their own section."""
    return ()


@hookspec
def llmk_check_config(config: object, platform: PlatformFacts) -> Iterable[Problem]:
    """Problems of the final configuration on this platform. ``config`` is the frozen ``llmk.config.Config``."""
    return ()


@hookspec
def llmk_tuned_configs() -> Iterable[TunedConfigs]:
    """Folders of kernel measurements, by which kernels are chosen on the measured devices."""
    return ()


@hookspec
def llmk_config_schema() -> object:
    """The pydantic model of this plugin's configuration section, ``[plugin.<name>]``; ``None`` if it has none."""
    return None


@hookspec
def llmk_plan_resolved(plan: Plan) -> None:
    """Called when the plan is final. Returns nothing."""


Spec = (
    KernelSpec
    | PlatformSpec
    | CheckpointFormatSpec
    | ModelSourceSpec
    | ExecutorSpec
    | LauncherSpec
    | QuantizationSpec
    | ModelSpec
    | ParserSpec
    | IOProcessorSpec
    | LogitsProcessorSpec
    | PolicySpec
    | RouterSpec
    | SpeculatorSpec
    | GrammarSpec
    | StatLoggerSpec
    | CommandSpec
    | TunedConfigs
)
"""What hooks return."""
