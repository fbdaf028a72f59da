"""Renders chat templates in the environment that checkpoints write them for: the sandbox, filters and functions of
``transformers``, so that the same messages give the same prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmk.api import RequestError
from llmk.engine.text.control_tokens import unused_characters

Message = Mapping[str, Any]

_REFUSALS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What a template raises over messages that it was not written for."""

_LARGEST = 1 << 20
"""Bits of a number, or entries of a sequence, that ``**`` and ``*`` in a template may make."""
_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


class ChatTemplates:
    """The templates of one checkpoint, by name; ``variables`` are its special tokens (``bos_token``, …).

    Where there are several, ``tool_use`` is taken for messages with tools, ``default`` for all others.
    """

    def __init__(self, sources: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self.sources = dict(sources)
        self.variables = dict(variables)

    @property
    def default(self) -> str | None:
        """The source of the template for messages without tools."""
        return self._choose(with_tools=False)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> str:
        """The prompt. With ``continue_final_message`` it ends where the last message's content does.

        Raises :class:`~llmk.api.RequestError` where there is no template or it refuses the messages.
        """
        source = self._choose(with_tools=tools is not None)
        if source is None:
            raise RequestError("the model has no chat template", hint="give it one with --model.chat-template")
        plain = [_normalised(message) for message in messages]
        mark = ""
        if continue_final_message:
            (mark,) = unused_characters(1, messages, tools, documents, options)
            plain = _mark_end(plain, mark)
            add_generation_prompt = False
        variables = {**self.variables, **options}
        try:
            text = compile_template(source).render(
                messages=plain,
                tools=tools,
                documents=documents,
                add_generation_prompt=add_generation_prompt,
                **variables,
            )
        except _REFUSALS as error:
            raise RequestError(f"the model's chat template refused the messages: {error}", param="messages") from error
        return _cut_at(text, mark) if mark else text

    def _choose(self, *, with_tools: bool) -> str | None:
        if with_tools and "tool_use" in self.sources:
            return self.sources["tool_use"]
        return self.sources.get("default")


def _normalised(message: Message) -> dict[str, Any]:
    """Drops keys that are ``None``, which templates would print, and gives reasoning the name that templates read."""
    plain = {key: value for key, value in message.items() if value is not None}
    reasoning = next((plain[name] for name in _REASONING_NAMES if name in plain), None)
    if reasoning is not None:
        plain = {"thinking": reasoning, **plain, "reasoning_content": reasoning}
    return plain


def _mark_end(messages: list[dict[str, Any]], mark: str) -> list[dict[str, Any]]:
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        return [*messages[:-1], {**messages[-1], "content": content + mark}]
    raise RequestError("continue_final_message needs a last message whose content is a text", param="messages")


def _cut_at(text: str, mark: str) -> str:
    if mark not in text:
        raise RequestError("the model's chat template drops the message that is to be continued", param="messages")
    return text[: text.rindex(mark)].replace(mark, "")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which an expression as short as ``10 ** 10 ** 10`` can't take all time or memory. What is
    intercepted is not computed while a template is compiled either.
    """

    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """Computes an intercepted operation. Raises OverflowError where the result would be large."""
        if operator == "**":
            size = abs(right) * _bits(left) if isinstance(right, int) else 0
        else:
            size = max(_repeated(left, right), _repeated(right, left), _bits(left) + _bits(right))
        if size > _LARGEST:
            raise OverflowError(f"the result of {operator!r} is too large")
        return super().call_binop(context, operator, left, right)


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0


def _repeated(value: Any, times: Any) -> int:
    return len(value) * times if isinstance(value, Sized) and isinstance(times, int) else 0


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's part for training; for a prompt it is just its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=16)
def compile_template(source: str) -> jinja2.Template:
    """A template in the environment that checkpoints write theirs for. Raises ``jinja2.TemplateError``."""
    return _environment().from_string(source)


@lru_cache(maxsize=16)
def variables_of(source: str) -> frozenset[str] | None:
    """The variables that a template reads; ``None`` where it can't be parsed."""
    try:
        return frozenset(jinja2.meta.find_undeclared_variables(_environment().parse(source)))
    except jinja2.TemplateSyntaxError:
        return None


def _environment() -> jinja2.Environment:
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own filter, escapes neither HTML nor other alphabets."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
