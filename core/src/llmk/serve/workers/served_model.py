"""The served model as workers need it: created once in the fork server, and shared by all workers."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmk.api import ServedModelInfo
from llmk.config import logs
from llmk.config.limits_section import LimitsSection
from llmk.engine.text.grammars import GrammarChecker
from llmk.engine.text.input_processor import default_params
from llmk.engine.text.tokenizer import Tokenizer, tokenizer_options
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.planning.packed_boot import pack, unpack
from llmk.serve.generation.api_routes import PluginRoute, load_routes, model_info
from llmk.serve.generation.parsing import Dialect

if TYPE_CHECKING:
    from llmk.planning.boot import Boot


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model without an engine."""

    model_name: str
    tokenizer: Tokenizer
    dialect: Dialect
    grammars: GrammarChecker
    default_params: SamplingParams
    limits: LimitsSection
    boot: Boot
    adapters: tuple[str, ...] = ()
    routes: Mapping[str, PluginRoute] = field(default_factory=dict)
    created: int = 0
    weakens: bool = False
    """Whether requests that don't say it get schemas weakened that can't be enforced."""

    def describe(self) -> ServedModelInfo:
        """What routes of plugins get to know of the model."""
        return model_info(self.boot, self.model_name, self.adapters, self.dialect, created=self.created)


def given(boot: Boot) -> bytes:
    """The argument of :func:`make`."""
    return pickle.dumps(pack(boot))


def make(given: bytes) -> ServedModel:
    """:func:`load` in another process. Raises the errors of loading."""
    boot = unpack(pickle.loads(given))  # nosec B301 # the front end wrote it, to our socket
    server = boot.settings.config.server
    logs.setup(server.log_level, server.log_format)
    return load(boot)


def load(boot: Boot) -> ServedModel:
    """Loads tokenizer, chat templates and parsers. Raises the errors of loading."""
    config = boot.settings.config
    tokenizer = Tokenizer.load(boot.checkpoint, **tokenizer_options(config.model))
    return ServedModel(
        model_name=config.model.served_name or boot.checkpoint.name,
        adapters=tuple(adapter.name for adapter in boot.adapters),
        tokenizer=tokenizer,
        dialect=Dialect.choose(boot),
        routes=load_routes(boot.registry),
        created=int(time.time()),
        grammars=GrammarChecker.choose(boot),
        default_params=default_params(boot.checkpoint.generation_config),
        limits=config.limits,
        boot=boot,
        weakens=config.server.unenforceable == "warn",
    )
