"""An engine with scripted output and the interface of the real one, for tests of response formats."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import msgspec

from llmk.api import (
    Checkpoint,
    EngineDead,
    GrammarSpec,
    ReasoningDelta,
    RequestError,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from llmk.config.limits_section import LimitsSection
from llmk.config.schema import Config
from llmk.engine.text.grammars import GrammarChecker
from llmk.engine.text.input_processor import InputProcessor, default_params
from llmk.engine.text.output_processor import GenerationDelta, SequenceTimes
from llmk.engine.text.tokenizer import ChatPrompt
from llmk.engine.wire.engine_info import EngineInfo, Outage
from llmk.engine.wire.request import EngineStats, HiddenRows, RequestContext, StepTimes, TokenLogprobs
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.kernel.discovery import Plugin
from llmk.kernel.registry import Registered
from llmk.planning.pooling import Pooling
from llmk.serve.generation.api_routes import PluginRoute
from llmk.serve.generation.parsing import Dialect
from llmk.serve.generation.reading import LocalReaders
from llmk.serve.workers.prepare_worker import RequestPreparer
from llmk.serve.workers.prepared_request import Prepared, PreparedReply, Work
from llmk.serve.workers.served_model import ServedModel

TEMPLATE = (
    "{%- for tool in tools or [] %}[tool {{ tool.function.name }}]{% endfor %}"
    "{%- for m in messages %}<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>{{ m.content }}"
    "{{ m.reasoning_content or '' }}{{ m.tool_call_id or '' }}"
    "{%- for c in m.tool_calls or [] %}[call {{ c.function.name }} {{ c.function.arguments | tojson }}]{% endfor %}"
    "{% endfor %}"
    "{%- if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{% endif %}"
)


class CharacterTokenizer:
    """A token for each character, up to id 255."""

    eos_token_ids = (0,)

    def __init__(self) -> None:
        self.chat_templates = {"default": TEMPLATE}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [min(ord(character), 255) for character in text]

    def encode_prompt(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self.encode(text, add_special_tokens)

    def surrounded(self, ids: Sequence[int]) -> list[int]:
        return [1, *ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(id) for id in ids if not (skip_special_tokens and id < 2))

    def token_text(self, id: int) -> str:
        return chr(id)

    def token_bytes(self, id: int) -> bytes:
        return bytes([id])

    def render_chat(self, messages: Any, tools: Any = None, **options: Any) -> str:
        template = jinja2.Environment().from_string(self.chat_templates["default"])
        return template.render(messages=messages, tools=tools, **options)

    def encode_chat(self, messages: Any, tools: Any = None, **options: Any) -> ChatPrompt:
        text = self.render_chat(messages, tools, **options)
        return ChatPrompt(text, self.encode(text, add_special_tokens=False))


@dataclass
class Call:
    """The requests that the engine got."""

    prompt: list[int]
    params: SamplingParams
    context: RequestContext

    @property
    def text(self) -> str:
        return CharacterTokenizer().decode(self.prompt)


@dataclass
class ScriptedEngine:
    """Answers each choice with ``script``, ``chunk`` characters a delta; waits before the last one for ``gate``."""

    script: str = "Hello there."
    scripts: list[str] = field(default_factory=list)
    """What the next choices are answered with, before ``script``."""
    chunk: int = 3
    finish_reason: str = "stop"
    stop_reason: str | None = "."
    gate: asyncio.Event | None = None
    fail: Exception | None = None
    healthy: bool = True
    outage: Outage | None = None
    generation_config: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    replicas: None = None
    ranks: dict[tuple[int, int], Any] = field(default_factory=dict)
    step_listeners: list[Callable[[StepTimes], object]] = field(default_factory=list)
    running: int = 0
    silence: float = 0.0
    rooms: list[int] = field(default_factory=list)
    aborted: list[tuple[str, int | None]] = field(default_factory=list)
    tokenizer: CharacterTokenizer = field(default_factory=CharacterTokenizer)
    info: EngineInfo = field(
        default_factory=lambda: EngineInfo(
            max_model_len=512,
            vocab_size=256,
            block_size=16,
            num_blocks=64,
            logits_processors=("test.ladder",),
            grammars=("regex", "choice", "lark"),
            plan={"model": "scripted", "fingerprint": "0123456789abcdef"},
        )
    )
    model_name: str = "org/scripted"
    adapters: tuple[str, ...] = ()

    @property
    def boot(self) -> Any:
        checkpoint = Checkpoint(path=Path("/scripted"), config={}, generation_config=self.generation_config)
        facts = SimpleNamespace(max_model_len=self.info.max_model_len, hidden_size=3)
        return SimpleNamespace(checkpoint=checkpoint, facts=facts, pooling=Pooling(generates=True))

    @property
    def stats(self) -> EngineStats:
        return EngineStats(running=self.running, total_blocks=64, used_blocks=self.running)

    @property
    def default_params(self) -> SamplingParams:
        return default_params(self.generation_config)

    def check_health(self) -> float:
        if not self.healthy:
            raise EngineDead("the engine's loop does not answer", retry_after=1.5 if self.outage else 0)
        return self.silence

    def check_room(self, num_new: int, tenant: str) -> None:
        self.rooms.append(num_new)

    async def abort(self, request_id: str, index: int | None = None) -> None:
        self.aborted.append((request_id, index))

    async def pool(
        self, prompts: Sequence[list[int]], returns: Any, context: RequestContext
    ) -> AsyncGenerator[Any, None]:
        """Rows of three numbers, the first of which is the prompt's last token."""
        for number, prompt in enumerate(prompts):
            data = struct.pack("<3f", prompt[-1], len(prompt), 0.5)
            rows = HiddenRows(len(prompt) - 1, 1, "float32", data)
            yield GenerationDelta(number, "", finish_reason="stop", hidden=rows, num_prompt_tokens=len(prompt))

    async def generate(
        self, prompt: list[int], params: SamplingParams, context: RequestContext
    ) -> AsyncGenerator[Any, None]:
        self._input_processor().sequences(prompt, params, context)
        request_id = context.id
        self.calls.append(Call(prompt, params, context))
        self.running += 1
        try:
            script = self.scripts.pop(0) if self.scripts else self.script
            pieces = [script[at : at + self.chunk] for at in range(0, len(script), self.chunk)]
            for at, piece in enumerate(pieces):
                last = at == len(pieces) - 1
                if self.fail and at:
                    raise self.fail
                if last and self.gate:
                    await self.gate.wait()
                await asyncio.sleep(0)
                for index in range(params.n):
                    if (request_id, index) in self.aborted:
                        continue
                    delta = self._delta(index, piece, params, self.finish_reason if last else None, len(prompt))
                    if not at and params.prompt_logprobs is not None:
                        delta.prompt_logprobs = [None, *(TokenLogprobs(id, -0.125, 2) for id in prompt[1:])]
                    yield delta
        finally:
            self.running -= 1

    def _input_processor(self) -> InputProcessor:
        """The real checks of prompts and parameters."""
        tokenizer: Any = self.tokenizer
        return InputProcessor(tokenizer, self.info, seed=0)

    def _delta(self, index: int, piece: str, params: SamplingParams, finish: Any, num_prompt: int) -> GenerationDelta:
        ids = [ord(character) for character in piece]
        top = tuple((id, -0.5 - id) for id in range(65, 65 + (params.logprobs or 0)))
        return GenerationDelta(
            index=index,
            text=piece,
            token_ids=ids,
            logprobs=[TokenLogprobs(id, -0.25, 1, top) for id in ids] if params.logprobs is not None else [],
            finish_reason=finish,
            stop_reason=self.stop_reason if finish == "stop" else None,
            num_prompt_tokens=num_prompt,
            num_cached_tokens=4,
            pinned_prefixes=(),
            prompt_logprobs=(),
            times=SequenceTimes(0.25, 0.5, 2.0) if finish else None,
        )


class AnyText:
    """A compiler of grammars for which every text is one, but those with ``!``."""

    def __init__(self, context: Any) -> None:
        pass

    def compile(self, kind: str, text: str) -> Any:
        if "!" in text:
            raise RequestError("it has an exclamation mark")
        return self

    def start(self, end_token_ids: frozenset[int]) -> Any:
        raise NotImplementedError


COMPILER = Registered(
    GrammarSpec(id="test.grammar", name="test", implementation="scripted:AnyText", kinds=("regex", "choice", "lark")),
    Plugin("test", "test-wheel", "1.0"),
)


class InlineWorkers:
    """What workers do, done in a thread of this process, and as it is when it comes from one."""

    def __init__(
        self,
        engine: ScriptedEngine,
        dialect: Dialect,
        limits: LimitsSection | None = None,
        routes: Mapping[str, PluginRoute] | None = None,
    ) -> None:
        self.readers = LocalReaders(dialect)
        tokenizer: Any = engine.tokenizer
        boot: Any = engine.boot
        limits = limits or LimitsSection()
        grammars = GrammarChecker(COMPILER, Config(limits=limits))
        served = ServedModel(
            engine.model_name, tokenizer, dialect, grammars, engine.default_params, limits, boot, routes=routes or {}
        )
        self._preparing = RequestPreparer(served)

    async def prepare(self, work: Work, body: bytes) -> Prepared:
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(work), type=Work)
        prepared = await asyncio.to_thread(self._preparing.prepare, sent, body)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(PreparedReply(prepared)), type=PreparedReply).prepared


class AngleReasoning:
    """``(thought)`` at the start of the text is reasoning; ``!`` in the text makes it raise."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.thinking = False

    def push(self, text: str) -> list[Any]:
        events: list[Any] = []
        for character in text:
            if character == "!":
                raise ValueError("exclamation")
            if character in "()":
                self.thinking = character == "("
            else:
                events.append((ReasoningDelta if self.thinking else TextDelta)(character))
        return events

    def finish(self) -> list[Any]:
        return []


class BracketTools:
    """``[name]`` is a call without arguments; held back until it is complete."""

    def __init__(self, context: Any) -> None:
        self.held = ""
        self.calls = 0

    def push(self, text: str) -> list[Any]:
        self.held += text
        events: list[Any] = []
        while "[" in self.held:
            before, _, rest = self.held.partition("[")
            events += [TextDelta(before)] if before else []
            if "]" not in rest:
                self.held = "[" + rest
                return events
            name, _, self.held = rest.partition("]")
            events += [ToolCallStart(self.calls, name), ToolCallArguments(self.calls, "{}"), ToolCallEnd(self.calls)]
            self.calls += 1
        events += [TextDelta(self.held)] if self.held else []
        self.held = ""
        return events

    def finish(self) -> list[Any]:
        return [TextDelta(self.held)] if self.held else []
