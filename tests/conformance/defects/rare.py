"""Providers that are wrong where few look: long texts, empty values, other devices, white space, odd tools."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from defects import Defect, io_processor, logits_processor, policy, results
from llmk.api import (
    OK,
    Event,
    IOPrompt,
    LogitsBatch,
    LogitsRows,
    ParserContext,
    ParserQuery,
    ReasoningDelta,
    RequestError,
    TextDelta,
    Ticket,
    ToolCallArguments,
    ToolCallStart,
    Verdict,
    no,
)

HERE = __name__
SHARED, REFUSED = "what the whole process shares", "refused with RequestError"
UNNAMED = "and does not name come back"


# Tool parsers


class Given(results.Calls):
    """Changes the arguments of calls by the tools of the request."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self.schemas: dict[str, Mapping[str, Any]] = {
            tool["name"]: (tool.get("parameters") or {}).get("properties") or {} for tool in context.tools
        }

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        if events and isinstance(events[0], ToolCallStart) and isinstance(events[1], ToolCallArguments):
            given = json.loads(events[1].text)
            if isinstance(given, dict):
                changed = json.dumps(self.changed(events[0].name, given), ensure_ascii=False)
                events[1] = ToolCallArguments(events[1].index, changed)
        return events

    def changed(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call."""
        return given


class Listed(Given):
    def changed(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        known = self.schemas.get(name)
        return {key: value for key, value in given.items() if known is None or key in known}


class Defaults(Given):
    def changed(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        known = self.schemas.get(name, {})
        filled = {key: value["default"] for key, value in known.items() if "default" in (value or {})}
        return {**filled, **given}


class OneSchema(Given):
    """The last tool's schema of an argument counts for all."""

    def changed(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        types = {key: (value or {}).get("type") for known in self.schemas.values() for key, value in known.items()}
        return {key: str(value) if types.get(key) == "string" else value for key, value in given.items()}


class KnownTools(results.Calls):
    """Calls of other tools are dropped."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._names = {tool["name"] for tool in context.tools}

    def _call(self, held: str) -> list[Event]:
        name = held.removeprefix("[[call ").partition(" ")[0]
        return [] if self._names and name not in self._names else super()._call(held)


def claims_old(query: ParserQuery) -> Verdict:
    template = str(query.checkpoint.tokenizer_config.get("chat_template"))
    return OK if "<t>" in template else no("chat_template", wanted="<t>")


def claims_either(query: ParserQuery) -> Verdict:
    template = f"{query.checkpoint.tokenizer_config.get('chat_template')} {query.checkpoint.chat_template}"
    return OK if "<t>" in template else no("chat_template", wanted="<t>")


def claims_texts(query: ParserQuery) -> Verdict:
    template = query.checkpoint.tokenizer_config.get("chat_template") or query.checkpoint.chat_template or ""
    return OK if "<t>" in template.strip() else no("chat_template", wanted="<t>")


def claims_upper(query: ParserQuery) -> Verdict:
    return OK if "<t>" in (query.checkpoint.chat_template or "").lower() else no("chat_template", wanted="<t>")


def claims_end(query: ParserQuery) -> Verdict:
    return OK if "t>" in (query.checkpoint.chat_template or "") else no("chat_template", wanted="<t>")


def claims_pairs(query: ParserQuery) -> Verdict:
    template = query.checkpoint.chat_template or ""
    return OK if "<t>" in template and "</t>" in template else no("chat_template", wanted="<t> and </t>")


# Reasoning parsers


class WithoutTools(results.Thoughts):
    """Where there are tools, the prompt starts no thought."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._inside = self._inside and not context.tools


class TakesTitles(results.Thoughts):
    """The request's tools are changed."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        for tool in context.tools:
            (tool.get("parameters") or {}).pop("title", None)


class Behind(results.Thoughts):
    """Knows the place behind a block."""

    _behind = False

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            was = self._inside
            for event in super().push(character):
                assert isinstance(event, TextDelta | ReasoningDelta)
                if self._behind and event.text.isspace() and self.drops(event.text):
                    continue
                self._behind = False
                events.append(event)
            self._behind = self._behind or (was and not self._inside)
        return events

    def drops(self, space: str) -> bool:
        """Whether a character behind a block goes."""
        return False


class OneBlank(Behind):
    """A character of white space goes."""

    def drops(self, space: str) -> bool:
        self._behind = False
        return True


class Twice(Behind):
    """Line breaks go behind a block, and once more where the prompt has them."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._behind = context.prompt_tail.rstrip().endswith("</t>")

    def drops(self, space: str) -> bool:
        self._behind = False
        return space == "\n"


class HeldSpace(results.Thoughts):
    """White space waits for the next word."""

    _space = ""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for event in super().push(text):
            assert isinstance(event, TextDelta | ReasoningDelta)
            kind, whole = type(event), self._space + event.text
            self._space = whole[len(whole.rstrip()) :]
            events += [kind(whole.rstrip())] if whole.rstrip() else []
        return events

    def finish(self) -> list[Event]:
        space, self._space = self._space, ""
        return [*([self._said(space)] if space else []), *super().finish()]


# Logits processors


class EmptyPush(logits_processor.Good):
    """What is empty is taken for what is left out."""

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        return super()._read({key: value for key, value in parameters.items() if value not in ("", [], {})})


class OnTheHost(logits_processor.Good):
    """The state is on the CPU."""

    def __init__(self, batch: LogitsBatch) -> None:
        super().__init__(batch)
        self._step = torch.zeros(len(batch.tokens), dtype=torch.int64)


class RowsOnTheHost(logits_processor.Good):
    """The result is."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        super().apply(logits, rows)
        return logits.to("cpu")


class AsInExamples(logits_processor.Good):
    """Steps from 100 on are others."""

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        step, push = super()._read(parameters)
        return step % 100, push


# IO processors


class Cut(io_processor.Sums):
    """Texts have a thousand characters at most."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        return super().request([replace(one, prompt=one.prompt[:1000]) for one in prompts])


class Bare(io_processor.Sums):
    """Texts are encoded without the tokens that are added."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        encode = self.context.tokenizer.encode
        return super().request(
            [replace(one, prompt=encode(str(one.prompt), add_special_tokens=False)) for one in prompts]
        )


class Hundred(io_processor.Sums):
    """From the 257th text on, all are the first one."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        return super().request([*prompts[:256], *(prompts[0] for _ in prompts[256:])])


class EmptyOption(io_processor.Sums):
    """What is empty is taken for what is left out."""

    def open(self, body: Any) -> Any:
        if body.get("kind") == 0:
            body = {**body, "kind": "hidden"}
        if not isinstance(body.get("texts"), list):
            raise RequestError("texts must be a list of texts", param="texts")
        return super().open(body)


class NamesTheFirst(io_processor.Sums):
    """Errors name the first text."""

    def open(self, body: Any) -> Any:
        request = super().open(body)
        if "" in body["texts"]:
            raise RequestError("a text is empty", param="texts[0]")
        return request


class NamesTheBody(io_processor.Sums):
    """Errors name a field that there is not."""

    def open(self, body: Any) -> Any:
        try:
            return super().open(body)
        except RequestError as error:
            raise RequestError(error.message, param="body") from error


OPTIONS = replace(results.IO, options={"most": 4, "least": 1})


class NeedsAll(io_processor.Sums):
    """Where there are options, all must be there."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._most = context.options["most"] + context.options["least"] if context.options else 4


class Tokenless(io_processor.Sums):
    """Text that comes later than its tokens is lost."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        request = io_processor.SumsRequest(prompts)
        take = request.take
        request.take = lambda output: take(output) if output.token_ids else None  # type: ignore[method-assign]
        return request


class SeedsTorch(io_processor.Sums):
    """Sets the seed of the process."""

    def open(self, body: Any) -> Any:
        torch.manual_seed(0)
        return super().open(body)


class DrawsToo(logits_processor.Good):
    """Draws from the generator of the process."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        torch.rand(1)
        return super().apply(logits, rows)


class Learns(logits_processor.Good):
    """Computes a gradient."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        weight = torch.ones(1, requires_grad=True)
        (weight * 2).sum().backward()
        return super().apply(logits, rows)


class DeepLimit(results.Calls):
    """Lets values be nested deeply."""

    def push(self, text: str) -> list[Event]:
        sys.setrecursionlimit(5000)
        return super().push(text)


class OneByOne(policy.Good):
    """A function calls itself for each request."""

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        return self._rest(list(super().order(requests)))

    def _rest(self, left: list[Ticket]) -> Iterator[Ticket]:
        if left:
            yield left[0]
            yield from self._rest(left[1:])


class Shuffles(policy.Good):
    """Seeds the generator of the process."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        random.seed(4)
        return super().order(requests)


class Narrow(policy.Good):
    """Lengths are kept in two bytes."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return sorted(requests, key=lambda ticket: ticket.arrival + min(ticket.num_prompt_tokens % 2**16, 64))


class Chunks(policy.Good):
    """What is computed in large chunks gives others the next turn."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._large = False

    def computed(self, request: Ticket, num_tokens: int) -> None:
        self._large = num_tokens > 4096

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        return running[0] if self._large else super().victim(running)


POLICIES = (
    Defect("one-by-one", "thousands of requests raise", OneByOne, "returns the given requests"),
    Defect("shuffles", "the process's generator is seeded", Shuffles, SHARED),
    Defect("narrow", "long prompts are taken for short ones", Narrow, results.ORACLE),
    Defect("chunks", "large chunks are counted otherwise", Chunks, results.ORACLE),
)
TOOL_PARSERS = (
    Defect("listed", "arguments that a schema does not name are dropped", Listed, UNNAMED),
    Defect("defaults", "defaults are filled in", Defaults, "are not filled in"),
    Defect("one-schema", "another tool's schema types an argument", OneSchema, "each tool's own schema"),
    Defect("deep-limit", "the recursion limit is raised", DeepLimit, SHARED),
    Defect("known-tools", "calls of unknown tools are dropped", KnownTools, "are not lost"),
)
REASONING_PARSERS = (
    Defect("old-template", "templates in a file of their own are not read", {"claims": claims_old}, "claims find"),
    Defect("either-template", "a template that was replaced counts", {"claims": claims_either}, "claims refuse"),
    Defect("text-template", "a list of templates raises", {"claims": claims_texts}, "verdicts on any checkpoint"),
    Defect("upper", "capitals are taken for the marker", {"claims": claims_upper}, "claims refuse"),
    Defect("end", "the end of another tag is taken for the marker", {"claims": claims_end}, "claims refuse"),
    Defect("pairs", "templates that only open a block are refused", {"claims": claims_pairs}, "claims find"),
    Defect("without-tools", "thoughts are content where there are tools", WithoutTools, "that the prompt started"),
    Defect("takes-titles", "titles are taken out of the request's tools", TakesTitles, "any options and tools"),
    Defect("one-blank", "a space behind a block goes", OneBlank, "of white space around thoughts"),
    Defect("twice", "white space goes that the prompt's end has, too", Twice, "that the prompt ended, white space"),
    Defect("held-space", "white space waits for the next word", HeldSpace, "white space that is kept"),
    Defect("unnamed", "the spec has no markers", {"markers": ("", "")}, "markers around thoughts are in the spec"),
)
LOGITS_PROCESSORS = (
    Defect("empty-push", "an empty value is taken for one that is left out", EmptyPush, "what is empty or 0"),
    Defect("on-the-host", "the state is on the CPU", OnTheHost, "on the batch's device"),
    Defect("rows-on-the-host", "the result is on the CPU", RowsOnTheHost, "on the batch's device"),
    Defect("draws-too", "numbers are drawn that others would have had", DrawsToo, SHARED),
    Defect("learns", "gradients are computed, which steps don't have", Learns, results.ORACLE),
    Defect("as-in-examples", "other values than the examples' are read wrongly", AsInExamples, results.ORACLE),
)
IO_PROCESSORS = (
    Defect("cut", "long texts are cut", Cut, "of long texts"),
    Defect("bare", "special tokens are left out", Bare, "a tokenizer that adds tokens"),
    Defect("names-the-first", "errors name the first text", NamesTheFirst, REFUSED),
    Defect("names-the-body", "errors name no field", NamesTheBody, REFUSED),
    Defect(
        "needs-all",
        "one option needs the other",
        {"name": f"{HERE}:NeedsAll", "examples": f"{HERE}:OPTIONS"},
        "options may be left out",
    ),
    Defect("tokenless", "text that comes later than its tokens is lost", Tokenless, "the answer is the same"),
    Defect("seeds-torch", "the process's generator is seeded", SeedsTorch, SHARED),
    Defect("hundred", "long lists are answered wrongly", Hundred, "of long texts and of many"),
    Defect("empty-option", "0 is taken for what is left out", EmptyOption, "what is empty or 0"),
)
