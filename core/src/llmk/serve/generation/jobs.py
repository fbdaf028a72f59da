"""Converts requests to jobs: token ids of prompts, sampling parameters, and the context of parsers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace
from pydantic import ValidationError

from llmk.api import CachedPrefix, ContextLengthExceeded, ParserContext, RequestError
from llmk.engine.text.control_tokens import texts
from llmk.engine.text.input_processor import InputProcessor, check_text, is_long
from llmk.engine.text.prompt_embeddings import check_taken, embedded, from_base64
from llmk.engine.text.tokenizer import ChatPrompt
from llmk.engine.wire.prompt import EmbeddedPrompt
from llmk.engine.wire.request import RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.serve.generation import tool_history as history
from llmk.serve.generation.choice_deltas import Job
from llmk.serve.generation.output_rules import OutputRules
from llmk.serve.generation.parsing import Dialect
from llmk.serve.generation.reading import ReaderSetup, encode_setup
from llmk.serve.generation.request_grammars import RequestGrammars
from llmk.serve.generation.template_variables import TemplateVariables
from llmk.serve.protocol.chat import ChatRequest, Message
from llmk.serve.protocol.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from llmk.serve.protocol.sampling import SamplingFields

if TYPE_CHECKING:
    from llmk.engine.text.grammars import GrammarChecker
    from llmk.engine.text.tokenizer import Tokenizer
    from llmk.engine.wire.engine_info import EngineInfo

PROMPT_TAIL = 256


class Model(Protocol):
    """The parts of a model that are needed to prepare its requests."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer and chat templates."""
        ...

    @property
    def default_params(self) -> SamplingParams:
        """Defaults for parameters that requests don't set."""
        ...

    @property
    def info(self) -> EngineInfo:
        """Information about the engine."""
        ...


class Jobs:
    """Converts requests to jobs for one model. Defaults are from the checkpoint's generation config."""

    def __init__(self, model: Model, dialect: Dialect, grammars: GrammarChecker, *, weakens: bool = False) -> None:
        self._model = model
        self._dialect = dialect
        self._grammars = RequestGrammars(grammars, dialect, model.tokenizer, weakens=weakens)
        self.template = TemplateVariables(model.tokenizer.chat_templates)

    def chat(
        self,
        request: ChatRequest,
        context: RequestContext,
        *,
        fit: bool = False,
        prefixes: Sequence[CachedPrefix] = (),
    ) -> Job:
        """The job of a chat completion. ``fit`` lowers a limit of tokens to what the context has left; ``prefixes``
        shall stay in the cache. Raises :class:`~llmk.api.RequestError`, naming the field."""
        tools = request.offered_tools
        if tools:
            self._check_tools()
        options = self.template.options(request.chat_template_kwargs, request.reasoning_effort, request.verbosity)
        prompt = self.render(request.messages, tools, options, **_generation(request))
        parsers = self._dialect.active(bool(tools))
        special = any(kind.special_tokens for kind in parsers)
        params = request.sampling_params(
            self._model.default_params, request.token_limit, request.num_logprobs, special=special
        )
        thinking, tail = self.template.thinking(options), prompt.text[-PROMPT_TAIL:]
        unenforced: list[str] = []
        grammar = self._grammars.answer(request, tools, tail, thinking, unenforced)
        if grammar is not None:
            params = replace(params, structured_outputs=grammar)
        parsing = ParserContext(
            prompt_tail=tail,
            # The grammar opens a block with its marker; without one, the content comes first.
            thinking=thinking if grammar is None else False,
            tools=[tool["function"] for tool in tools],
            template_options=options,
        )
        rules = OutputRules(one_call=not request.parallel_tool_calls, strict=request.strict_schemas)
        stop = params.stop
        if stop and self._dialect.reasoning is not None:  # only the parser knows where reasoning ends
            rules = replace(rules, stop=params.stop, include_stop=params.include_stop, min_tokens=params.min_tokens)
            params = replace(params, stop=())
        if prefixes:
            pinned = sorted(self._pinned(each, prompt.token_ids, tools, options) for each in prefixes)
            context = replace(context, prefixes=tuple(each for each in pinned if each[0]))
        param = "max_completion_tokens" if request.max_tokens is None else "max_tokens"
        params = self._within_room(prompt.token_ids, params, request.token_limit, param, fit=fit)
        reading = encode_setup(ReaderSetup(parsing, rules)) if parsers else b""
        return self._job(request, context, [prompt.token_ids], params, stop, reading, unenforced)

    def _pinned(
        self, prefix: CachedPrefix, prompt: list[int], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[int, float]:
        """How many tokens of ``prompt`` a prefix has, and its seconds. A template that can't render it has no such
        tokens."""
        try:
            messages = [Message.model_validate(message) for message in prefix.messages]
            tokens = self.render(messages, tools, options, add_generation_prompt=False).token_ids
        except (RequestError, ValidationError):
            return 0, prefix.seconds
        same = (at for at, (mine, other) in enumerate(zip(tokens, prompt, strict=False)) if mine != other)
        return next(same, min(len(tokens), len(prompt))), prefix.seconds

    def text(self, request: CompletionRequest, context: RequestContext, *, fit: bool = False) -> Job:
        """The job of a text completion, which no parser reads. ``fit`` as in :meth:`chat`. Raises
        :class:`~llmk.api.RequestError`."""
        limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
        scored = request.logprobs if request.echo else None
        params = request.sampling_params(self._model.default_params, limit, request.logprobs, prompt_logprobs=scored)
        unenforced: list[str] = []
        if (grammar := self._grammars.content(request, unenforced)) is not None:
            params = replace(params, structured_outputs=grammar)
        prompts: list[list[int] | EmbeddedPrompt] = [
            self._tokens(prompt, request.add_special_tokens) for prompt in request.prompts
        ]
        if request.embeddings:
            check_taken(self._model.info.embeddings)
            prompts = [embedded([from_base64(text)], self._model.info) for text in request.embeddings]
        for prompt in prompts:
            params = self._within_room(prompt, params, request.max_tokens, "max_tokens", fit=fit)
        return self._job(request, context, prompts, params, params.stop, unenforced=unenforced)

    def echo(self, request: CompletionRequest) -> list[str]:
        """The prompt of each choice as text."""
        texts = [
            prompt if isinstance(prompt, str) else self._model.tokenizer.decode(prompt) for prompt in request.prompts
        ]
        return [text for text in texts for _ in range(request.n)]

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        **generation: bool,
    ) -> ChatPrompt:
        """Renders the prompt. Raises :class:`~llmk.api.RequestError` if there is no chat template, or it raises."""
        if not self.template.exists:
            hint = "use /v1/completions, or give the server one with --model.chat-template"
            raise RequestError("the model has no chat template", param="messages", hint=hint)
        plain = [_plain(message) for message in history.in_order(messages)]
        how = {**generation, **options}
        tokenizer, shown = self._model.tokenizer, list(tools) or None
        most = self._model.info.max_model_len
        if is_long(sum(map(len, texts([plain, shown]))), most):
            check_text(tokenizer, tokenizer.render_chat(plain, shown, **how), most)
        return tokenizer.encode_chat(plain, shown, **how)

    def _tokens(self, prompt: str | list[int], add_special_tokens: bool) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt, add_special_tokens=add_special_tokens)
        return prompt

    def encode(self, text: str, *, add_special_tokens: bool, most: int | None = None) -> list[int]:
        """The tokens of ``text``, of which there may be ``most`` (``limits.tokens``), or as many as the model's context
        has. Raises :class:`~llmk.api.ContextLengthExceeded` for a text that is far too long.
        """
        if most is None:
            check_text(self._model.tokenizer, text, self._model.info.max_model_len)
        else:
            check_text(self._model.tokenizer, text, most, "limits.tokens")
        return self._model.tokenizer.encode_prompt(text, add_special_tokens)

    def _job(
        self,
        request: SamplingFields,
        context: RequestContext,
        prompts: Sequence[list[int] | EmbeddedPrompt],
        params: SamplingParams,
        stop: Sequence[str],
        reading: bytes = b"",
        unenforced: Sequence[str] = (),
    ) -> Job:
        """The job, once prompts and parameters were checked against the engine."""
        input_processor = InputProcessor(self._model.tokenizer, self._model.info, seed=0)
        for prompt in prompts:
            input_processor.check_prompt(prompt)
        more = {"cache_salt": request.cache_salt, "session": request.prompt_cache_key or ""}
        own = replace(context, priority=request.priority, **more)
        return Job(own, prompts, input_processor.checked(params), reading, stop, unenforced)

    def _within_room(
        self, prompt: list[int] | EmbeddedPrompt, params: SamplingParams, limit: int | None, param: str, *, fit: bool
    ) -> SamplingParams:
        """Refuses a token limit that does not fit in the context, or lowers it where it should ``fit``; without a
        limit, the output may fill the context."""
        room = self._model.info.max_model_len - len(prompt)
        if limit is not None and limit > room > 0:
            if fit:
                return replace(params, max_tokens=room)
            raise ContextLengthExceeded(
                f"this model's maximum context length is {self._model.info.max_model_len} tokens, but {limit} tokens "
                f"were requested after a prompt of {len(prompt)}",
                param=param,
                hint=f"request {room} or fewer, or set no limit",
            )
        return params

    def _check_tools(self) -> None:
        if not self.template.knows("tools"):
            raise RequestError("the model's chat template can't present tools", param="tools")
        if self._dialect.tools is None:
            why = self._dialect.why.get("tool", "there is no tool parser")
            hint = "name one with --select.tool-parser.use"
            raise RequestError(f"tool calls can't be parsed: {why}", param="tools", hint=hint)


def _generation(request: ChatRequest) -> dict[str, bool]:
    if request.continue_final_message:
        return {"add_generation_prompt": False, "continue_final_message": True}
    return {"add_generation_prompt": request.add_generation_prompt is not False}


def _plain(message: Message) -> dict[str, Any]:
    """A message in the form that chat templates expect: content as one text, arguments of calls as objects."""
    plain: dict[str, Any] = {"role": message.role, "content": message.text or ""}
    optional = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": message.thought}
    plain |= {name: value for name, value in optional.items() if value is not None}
    if message.tool_calls:
        plain["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    return plain


def _arguments(text: str) -> Any:
    """Arguments as an object, which templates expect; invalid ones, which a model may have written, as their text."""
    try:
        parsed = json.loads(text or "{}")
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text
