"""A model that writes what a test says, in llmk's server: for conversations that a small model could not hold."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from dialects import make
from msgspec.structs import replace
from scripted import InlineWorkers, ScriptedEngine

from llmk.config.schema import ServerSection
from llmk.config.storage_section import StorageSection
from llmk.kernel.loader import load_object
from llmk.serve.generation.api_routes import PluginRoute
from llmk.serve.generation.parsing import Dialect, ParserKind
from llmk.serve.http.pages import load_page
from llmk.serve.service import Service

MESSAGE, TEXT = "\x1f", "\x1e"
"""What stands before a message, and between its role and its text."""
TEMPLATE = (
    "{% for tool in tools or [] %}[tool {{ tool.function.name }}]{% endfor %}"
    "{% for m in messages %}\x1f{{ m.role }}\x1e{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[call {{ c.function.name }}]{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}\x1fassistant\x1e{% endif %}"
)


@dataclass(frozen=True)
class Turn:
    """What the assistant writes: a text, calls with their arguments, and what it thinks before."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    thought: str = ""


@dataclass(frozen=True)
class Prompt:
    """What the model reads: the names of the tools, and the messages with their roles."""

    tools: str
    messages: list[tuple[str, str]]

    @classmethod
    def of(cls, text: str) -> Prompt:
        """Reads a prompt that :data:`TEMPLATE` rendered."""
        tools, *messages = text.split(MESSAGE)
        pairs = (message.partition(TEXT) for message in messages)
        return cls(tools, [(role, content) for role, _, content in pairs])

    def texts(self, role: str) -> list[str]:
        """The texts of one role's messages."""
        return [text for each, text in self.messages if each == role]


class Writer(ScriptedEngine):
    """An engine whose model writes turns in the dialects ``qwen3`` and ``hermes``, a few characters at a time."""

    turn_of: Callable[[Prompt], Turn]

    async def generate(self, prompt: Any, params: Any, context: Any) -> AsyncGenerator[Any, None]:
        """Writes the turn that the prompt is for."""
        turn = self.turn_of(Prompt.of(self.tokenizer.decode(prompt)))
        calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in turn.calls]
        written = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)
        self.script = f"<think>{turn.thought}</think>{turn.text}{written}"
        self.stop_reason = None
        async for delta in super().generate(prompt, params, context):
            yield delta


def scripted_service(
    turn_of: Callable[[Prompt], Turn], *plugins: str, max_model_len: int = 1_000_000, **server: Any
) -> Service:
    """A server of such a model, with the routes and pages of plugins, and the section ``[server]``."""
    engine: Any = Writer(model_name="demo")
    engine.turn_of = turn_of
    engine.info = replace(engine.info, max_model_len=max_model_len)
    engine.tokenizer.chat_templates = {"default": TEMPLATE}
    dialect = Dialect(
        ParserKind("test.qwen3", lambda context: make("reasoning/qwen3", context)),
        ParserKind("test.hermes", lambda context: make("tools/hermes", context)),
    )
    modules = [import_module(f"{plugin}.specs") for plugin in plugins]
    specs = [spec for module in modules if hasattr(module, "llmk_routes") for spec in module.llmk_routes()]
    pages = [load_page(spec) for module in modules if hasattr(module, "llmk_pages") for spec in module.llmk_pages()]
    routes = {spec.id: PluginRoute(spec, load_object(spec.implementation, id=spec.id)()) for spec in specs}
    workers: Any = InlineWorkers(engine, dialect, routes=routes)
    storage = StorageSection(database="memory")
    return Service(engine, dialect, ServerSection(**server), workers, None, routes, storage, pages=pages)
