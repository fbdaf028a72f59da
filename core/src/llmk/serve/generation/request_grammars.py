"""The grammars of requests: what their fields and tools say that an answer must match."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from llmk.api import RequestError
from llmk.engine.wire.grammar_params import PARAM, GrammarParams
from llmk.kernel.first_party import how_to_install
from llmk.serve.generation.output_grammar import Calls, Reasoning, as_grammar, compose
from llmk.serve.generation.parsing import Dialect, ParserKind
from llmk.serve.generation.weakening import weakened
from llmk.serve.protocol.chat import ChatRequest
from llmk.serve.protocol.sampling import SamplingFields
from llmk.serve.protocol.tool_schema import fault

if TYPE_CHECKING:
    from llmk.engine.text.grammars import GrammarChecker
    from llmk.engine.text.tokenizer import Tokenizer

Tools = Sequence[Mapping[str, Any]]
LeftOut = list[str]
"""Keywords of schemas that are not enforced."""
_KEPT = 32
"""Weakened schemas that are kept for requests with the same ones."""


class RequestGrammars:
    """Makes and checks grammars for one model. All methods raise :class:`~llmk.api.RequestError`, naming the field.

    With ``weakens``, schemas that can't be enforced are weakened as far as needed, unless they are strict or the
    request says otherwise. What is left out is added to the ``left_out`` of methods.
    """

    def __init__(
        self, checker: GrammarChecker, dialect: Dialect, tokenizer: Tokenizer, *, weakens: bool = False
    ) -> None:
        self._checker = checker
        self._dialect = dialect
        self._tokenizer = tokenizer
        self._weakens = weakens
        self._weak_content = lru_cache(_KEPT)(self._weak(self._check))
        self._weak_arguments = lru_cache(_KEPT)(self._weak(self._check_arguments))

    def content(self, request: SamplingFields, left_out: LeftOut) -> GrammarParams | None:
        """What the content must match, if anything."""
        if (given := request.grammar) is None:
            return None
        field, grammar = given
        try:
            try:
                made = GrammarParams(**as_grammar(grammar))
                self._checker.check(made)
            except RequestError:
                if not self._is_weakened(request, strict=request.has_strict_format):
                    raise
                if (weaker := self._weaker(grammar, left_out)) is None:
                    raise
                made = GrammarParams(**as_grammar(weaker))
                self._checker.check(made)
        except RequestError as error:
            raise RequestError(error.message.replace(PARAM, field, 1), param=field, hint=error.hint) from None
        return made

    def answer(
        self, request: ChatRequest, tools: Tools, tail: str, thinking: bool | None, left_out: LeftOut
    ) -> GrammarParams | None:
        """What the answer must match, if anything. ``tail`` is the end of the prompt, ``thinking`` the request's switch
        for reasoning."""
        content, calls = self.content(request, left_out), self._calls(request, tools, left_out)
        if content is None and calls is None:
            return None
        markers = self._dialect.reasoning.markers if self._dialect.reasoning else ("", "")
        try:
            return compose(content, calls, Reasoning.of(markers, tail, thinking), self._marker)
        except ValueError as error:
            raise RequestError(f"calls of these tools can't be enforced: {error}", param="tools") from error

    def _calls(self, request: ChatRequest, tools: Tools, left_out: LeftOut) -> Calls | None:
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
            self._enforceable(request, function, left_out, strict=function["name"] in strict) for function in functions
        ]
        return Calls(kind.writer, checked, request.parallel_tool_calls, request.must_call)

    def _enforceable(
        self, request: ChatRequest, function: Mapping[str, Any], left_out: LeftOut, *, strict: bool
    ) -> Mapping[str, Any]:
        """A function whose schema can be enforced in the dialect. One that can't is weakened, or else an error for a
        strict tool; for others, the names of arguments are left of it."""
        what = f"the parameters of the strict tool {function['name']!r}"
        parameters = {"type": "object", **(function.get("parameters") or {})}
        try:
            self._check_arguments(parameters, function["name"])
        except (RequestError, ValueError) as error:  # of the schema, or of the writer
            if self._is_weakened(request, strict=strict) and (found := self._weak_arguments(json.dumps(parameters))):
                left_out += found[1]
                return {**function, "parameters": {"type": "object", **found[0]}}
            if not strict:
                return {**function, "parameters": _loose(parameters)}
            message = str(error).replace(PARAM, what, 1)
            raise RequestError(message if what in message else f"{what}: {message}", param="tools") from None
        return {**function, "parameters": parameters}

    def _is_weakened(self, request: SamplingFields, *, strict: bool) -> bool:
        return request.unenforceable == "warn" if request.unenforceable else self._weakens and not strict

    def _weaker(self, given: Mapping[str, Any], left_out: LeftOut) -> dict[str, Any] | None:
        """A request's grammar with schemas that can be enforced, if its schemas are why it can't."""
        if "json" in given:
            found = self._weak_content(given["json"] if isinstance(given["json"], str) else json.dumps(given["json"]))
            left_out += found[1] if found else []
            return {"json": found[0]} if found else None
        if "structural_tag" not in given:
            return None
        tags = given["structural_tag"]
        tags = json.loads(tags) if isinstance(tags, str) else tags
        structures = []
        for structure in tags["structures"]:
            if (made := self._weaker({"json": structure.get("schema", {})}, left_out)) is None:
                return None
            structures.append({**structure, "schema": made["json"]})
        return {"structural_tag": {**tags, "structures": structures}}

    def _weak(self, check: Callable[[Any], None]) -> Callable[[str], tuple[Any, list[str]] | None]:
        """Weakens a schema, given as text, until ``check`` no longer raises. ``None``: that isn't possible."""

        def fits(schema: Any) -> bool:
            try:
                check(schema)
            except (RequestError, ValueError):
                return False
            return True

        def weak(text: str) -> tuple[Any, list[str]] | None:
            try:
                schema = json.loads(text)
            except ValueError:
                return None
            return None if fault(schema) else weakened(schema, fits)

        return weak

    def _check(self, schema: Any) -> None:
        self._checker.check(GrammarParams(json=schema))

    def _check_arguments(self, parameters: Mapping[str, Any], name: str = "tool") -> None:
        """Raises ValueError where the dialect can't write calls with such arguments."""
        kind = self._dialect.tools
        assert kind is not None
        assert kind.writer is not None
        self._check(parameters)
        tool = {"name": name, "parameters": {"type": "object", **parameters}}
        kind.writer.grammar([tool], many=False, marker=json.dumps)

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
