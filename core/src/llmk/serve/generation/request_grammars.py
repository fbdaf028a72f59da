"""The grammars of requests: what their fields and tools say that an answer must match."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmk.api import CallWriter, RequestError
from llmk.engine.wire.grammar_params import PARAM, GrammarParams
from llmk.kernel.first_party import how_to_install
from llmk.serve.generation.output_grammar import Calls, Reasoning, as_grammar, compose
from llmk.serve.generation.parsing import Dialect, ParserKind
from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.protocol.sampling import SamplingFields

if TYPE_CHECKING:
    from llmk.engine.text.grammars import GrammarChecker
    from llmk.engine.text.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]]


class RequestGrammars:
    """Makes and checks grammars for one model. All methods raise :class:`~llmk.api.RequestError`, naming the field."""

    def __init__(self, checker: GrammarChecker, dialect: Dialect, tokenizer: Tokenizer) -> None:
        self._checker = checker
        self._dialect = dialect
        self._tokenizer = tokenizer

    def content(self, request: SamplingFields) -> GrammarParams | None:
        """What the content must match, if anything."""
        if (given := request.grammar) is None:
            return None
        field, grammar = given
        try:
            made = GrammarParams(**as_grammar(grammar))
            self._checker.check(made)
        except RequestError as error:
            raise RequestError(error.message.replace(PARAM, field, 1), param=field, hint=error.hint) from None
        return made

    def answer(self, request: ChatRequest, tools: Tools, tail: str, thinking: bool | None) -> GrammarParams | None:
        """What the answer must match, if anything. ``tail`` is the end of the prompt, ``thinking`` the request's switch
        for reasoning."""
        content, calls = self.content(request), self._calls(request, tools)
        if content is None and calls is None:
            return None
        markers = self._dialect.reasoning.markers if self._dialect.reasoning else ("", "")
        try:
            return compose(content, calls, Reasoning.of(markers, tail, thinking), self._marker)
        except ValueError as error:
            raise RequestError(f"calls of these tools can't be enforced: {error}", param="tools") from error

    def _calls(self, request: ChatRequest, tools: Tools) -> Calls | None:
        """The calls that are enforced: those that must come, those of strict tools, and those that may come instead of
        content that must match a grammar."""
        functions, strict, kind = [tool["function"] for tool in tools], request.strict_schemas, self._dialect.tools
        any_strict = any(function["name"] in strict for function in functions)
        if kind is None or not functions or not (request.must_call or any_strict or request.grammar):
            return None
        if kind.writer is None or "lark" not in self._checker.kinds:
            if request.must_call:
                raise _no_calls(kind)
            return None  # arguments of strict tools are checked when they are complete
        if not (kind.writer.trigger or request.must_call or request.grammar):
            return None  # the same, where any object in free text may be a call
        checked = [
            self._enforceable(kind.writer, function, strict=function["name"] in strict) for function in functions
        ]
        return Calls(kind.writer, checked, request.parallel_tool_calls, request.must_call)

    def _enforceable(self, writer: CallWriter, function: Mapping[str, Any], *, strict: bool) -> Mapping[str, Any]:
        """A function whose schema can be enforced in the dialect. One that can't is an error for a strict tool; for
        others, the names of arguments are left of it."""
        what = f"the parameters of the strict tool {function['name']!r}"
        checked = {**function, "parameters": {"type": "object", **(function.get("parameters") or {})}}
        try:
            self._checker.check(GrammarParams(json=checked["parameters"]))
            writer.grammar([checked], many=False, marker=json.dumps)
        except (RequestError, ValueError) as error:  # of the schema, or of the writer
            if not strict:
                return {**function, "parameters": _loose(checked["parameters"])}
            message = str(error).replace(PARAM, what, 1)
            raise RequestError(message if what in message else f"{what}: {message}", param="tools") from None
        return checked

    def _marker(self, text: str) -> str:
        token = self._tokenizer.control_id(text)
        return json.dumps(text) if token is None else f"<[{token}]>"


def _loose(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with the names of arguments alone."""
    names = [name for name in schema.get("properties") or () if isinstance(name, str)]
    required = [name for name in schema.get("required") or () if name in names]
    return {"type": "object", "properties": {name: {} for name in names}, "required": required}


def _no_calls(kind: ParserKind) -> RequestError:
    why = "writes no calls" if kind.writer is None else "needs a compiler of grammars"
    hint = "" if kind.writer is None else how_to_install("grammar")
    return RequestError(f"no call can be required: the tool parser {kind.id} {why}", param="tool_choice", hint=hint)
