"""Providers whose answers are plausible and wrong, each with an oracle, a writer or markers that know better."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from defects import Defect, io_processor, logits_processor, parser, policy
from llmk.api import (
    OK,
    Event,
    IOContext,
    IOOutput,
    IOPrompt,
    LogitsRequest,
    LogitsRows,
    ParserContext,
    ParserQuery,
    PolicyContext,
    ReasoningDelta,
    RequestError,
    TextDelta,
    Ticket,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    Verdict,
    WrittenCall,
    no,
)
from llmk_testing.logits_examples import LogitsExamples, Parameters
from llmk_testing.parser_example import ParserExample
from llmk_testing.policy_examples import PolicyExamples
from llmk_testing.suites.io_processor import IOExamples

WRITTEN = "what its writer renders comes back"
ORACLE = "of its oracle"


# Tool parsers


class Writer:
    """Writes ``[[call name {...}]]``."""

    trigger = parser.OPEN
    stops = (parser.CLOSE,)

    def render(self, calls: Sequence[WrittenCall]) -> str:
        return "\n".join(
            f"[[call {call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}]]" for call in calls
        )

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        calls = [f"call_{at}: {self.called(tool)}" for at, tool in enumerate(tools)]
        one = " | ".join(f"call_{at}" for at in range(len(tools)))
        return "\n".join([r'start: one ("\n" one)*' if many else "start: one", f"one: {one}", *calls])

    def called(self, tool: Mapping[str, Any]) -> str:
        """The rule of a call of ``tool``."""
        schema = {**self.schema(tool), "x-guidance": {"whitespace_pattern": " ?"}}
        opening = f"[[call {tool['name']} "
        return f"{json.dumps(opening)} %json {json.dumps(schema)} {json.dumps(parser.CLOSE)}"

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema of the arguments of ``tool``."""
        return {"type": "object", **(tool.get("parameters") or {})}


class AnyArguments(Writer):
    """The grammar knows no schema."""

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"type": "object"}


class NoOptions(Writer):
    """The grammar allows the required arguments alone."""

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        schema = super().schema(tool)
        wanted, named = schema.get("required", ()), schema.get("properties", {})
        return {**schema, "properties": {name: value for name, value in named.items() if name in wanted}}


class Unlimited(Writer):
    """The grammar knows no limit of a text's length."""

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        parameters = super().schema(tool)
        properties = {
            name: {key: each for key, each in value.items() if key != "maxLength"}
            for name, value in parameters.get("properties", {}).items()
        }
        return {**parameters, "properties": properties}


class NothingRequired(Writer):
    """The grammar knows no required argument."""

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        return {key: value for key, value in super().schema(tool).items() if key != "required"}


class Uncounted(Writer):
    """The grammar knows no bound on how many arguments there are."""

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        bounds = ("minProperties", "maxProperties")
        return {key: value for key, value in super().schema(tool).items() if key not in bounds}


class Repeated(Writer):
    """The grammar allows any argument before the others, also one of theirs."""

    def called(self, tool: Mapping[str, Any]) -> str:
        listed = super().called(tool)
        names = self.schema(tool).get("properties") or {}
        first = " | ".join(f"{json.dumps(json.dumps(name))}" for name in names) or '"x"'
        opening = json.dumps(f"[[call {tool['name']} {{")
        return f'{listed} | {opening} (({first}) ": " %json {{}} ", "?)* "}}]]"'


class Chatty(Writer):
    """The grammar allows a word behind a call."""

    def called(self, tool: Mapping[str, Any]) -> str:
        return f'{super().called(tool)} (" ok")?'


class NoNotes(Writer):
    """The grammar refuses schemas with titles."""

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        parameters = super().schema(tool)
        named = parameters.get("properties", {}).values()
        if any("title" in value for value in (parameters, *named) if value not in (True, False)):
            raise ValueError("'title' can't be enforced")
        return parameters


class NeedsParameters(Writer):
    """Every tool has parameters."""

    def schema(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(tool["parameters"])


class OtherTrigger(Writer):
    """Calls start otherwise than it says."""

    trigger = "<call>"


class NoStops(Writer):
    """Does not tell what ends a text."""

    stops = ()


class OneMarker(Writer):
    """Tells of the marker that opens alone."""

    def render(self, calls: Sequence[WrittenCall]) -> str:
        return f"<calls>{super().render(calls)}</calls>"

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        rules = super().grammar(tools, many=many, marker=marker).replace("start:", "calls:", 1)
        return f'start: {marker("<calls>")} calls "</calls>"\n{rules}'


class ShortTrigger(Writer):
    """Ends its trigger before it says what follows."""

    trigger = "[["


class Filling(Writer):
    """Writes defaults into the calls that it is given."""

    def render(self, calls: Sequence[WrittenCall]) -> str:
        for call in calls:
            dict.setdefault(call.arguments, "count", 1)  # type: ignore[arg-type]
        return super().render(calls)


class TenTools(Writer):
    """The rules of tools have names of one digit."""

    def grammar(self, tools: Sequence[Mapping[str, Any]], *, many: bool, marker: Callable[[str], str]) -> str:
        return super().grammar(tools[:10], many=many, marker=marker)


class Spaced(Writer):
    """The grammar allows line breaks behind a call, which are content."""

    def called(self, tool: Mapping[str, Any]) -> str:
        return rf"{super().called(tool)} /\n*/"


SHORT_TRIGGER, FILLING, TEN_TOOLS, SPACED = ShortTrigger(), Filling(), TenTools(), Spaced()
WRITER, ANY_ARGUMENTS, NO_OPTIONS, UNLIMITED = Writer(), AnyArguments(), NoOptions(), Unlimited()
NOTHING_REQUIRED, CHATTY, NO_NOTES, ONE_MARKER = NothingRequired(), Chatty(), NoNotes(), OneMarker()
UNCOUNTED, REPEATED = Uncounted(), Repeated()
NEEDS_PARAMETERS, OTHER_TRIGGER, NO_STOPS = NeedsParameters(), OtherTrigger(), NoStops()


class Calls(parser.Good):
    """Takes long calls, and drops what is between calls if that is white space."""

    limit = 100_000

    def push(self, text: str) -> list[Event]:
        """What can't end a call is taken at once."""
        events: list[Event] = []
        at = 0
        while at < len(text):
            if self._reads_arguments():
                end = text.find("]", at)
                skipped = min((len(text) if end < 0 else end + 1) - 1, at + self.limit - len(self._held) - 1)
                self._held += text[at:skipped]
                at = max(at, skipped)
            events += self._take(text[at])
            at += 1
        return events

    def _reads_arguments(self) -> bool:
        head = self._held[:4096]
        return head.startswith(parser.OPEN) and head[len(parser.OPEN) :].partition(" ")[2][:1] in tuple('{["')

    def _take(self, character: str) -> list[Event]:
        if len(self._held) + 1 < self.limit:
            return super()._take(character)
        held, self._held = self._held + character, ""
        return [TextDelta(held)]

    def finish(self) -> list[Event]:
        return super().finish()


class FirstArguments(Calls):
    first = ""

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        if len(events) == 3:
            self.first = self.first or events[1].text
            events[1] = ToolCallArguments(events[1].index, self.first)
        return events


class Texts(Calls):
    """Every value is a text."""

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        if len(events) == 3:
            values = json.loads(events[1].text)
            plain = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
            events[1] = ToolCallArguments(events[1].index, json.dumps(plain))
        return events


class Lost(Calls):
    """What was held back is forgotten at the end."""

    def finish(self) -> list[Event]:
        return []


class Once(Calls):
    """A call that is written twice is taken for one."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._seen: set[str] = set()

    def _call(self, held: str) -> list[Event]:
        again = held in self._seen
        self._seen.add(held)
        return [] if again else super()._call(held)


class NoText(Calls):
    """A part of the marker that becomes none is dropped."""

    def _take(self, character: str) -> list[Event]:
        events = super()._take(character)
        return [event for event in events if not (isinstance(event, TextDelta) and event.text == "[")]


class Shared(Calls):
    """The ids of all calls are equal."""

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        return [
            ToolCallStart(one.index, one.name, "call_1") if isinstance(one, ToolCallStart) else one for one in events
        ]


class Dropped(Calls):
    """Text before calls is not content."""

    def push(self, text: str) -> list[Event]:
        events = super().push(text)
        called = any(isinstance(event, ToolCallEnd) for event in events)
        return [event for event in events if not (called and isinstance(event, TextDelta))]


class Unread(Calls):
    """What stands between braces is taken as it is."""

    def _call(self, held: str) -> list[Event]:
        name, _, arguments = held[len(parser.OPEN) : -len(parser.CLOSE)].partition(" ")
        if not arguments.startswith("{"):
            return [TextDelta(held)]
        self._calls += 1
        index = self._calls - 1
        return [ToolCallStart(index, name), ToolCallArguments(index, arguments), ToolCallEnd(index)]


class Unescaped(Calls):
    """Escapes of characters are lost."""

    def _call(self, held: str) -> list[Event]:
        return super()._call(held.replace("\\u", "u"))


class Nameless(Calls):
    def _may_be_name(self, name: str) -> bool:
        return True


class ToolsAlone(Calls):
    """A call of a tool that the request doesn't have is text."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._tools = {tool["name"] for tool in context.tools}

    def _may_be_name(self, name: str) -> bool:
        return super()._may_be_name(name) and name in self._tools


class ShortNames(Calls):
    """The end of a long name is lost."""

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        return [ToolCallStart(one.index, one.name[:100]) if isinstance(one, ToolCallStart) else one for one in events]


class Late(Calls):
    """Each piece is read with the next one."""

    _unread = ""

    def push(self, text: str) -> list[Event]:
        waiting, self._unread = self._unread, text
        return super().push(waiting)

    def finish(self) -> list[Event]:
        return super().push(self._unread) + super().finish()


class Tildes(Calls):
    """A character in strings is lost."""

    def _call(self, held: str) -> list[Event]:
        return super()._call(held.replace("~", ""))


class Deep(Calls):
    """Values of any depth are read."""

    def _call(self, held: str) -> list[Event]:
        try:
            json.loads(held[len(parser.OPEN) : -len(parser.CLOSE)].partition(" ")[2])
        except ValueError:
            return [TextDelta(held)]
        return super()._call(held)


class Short(Calls):
    """A call is no longer than it usually is."""

    limit = 2000


class Halves(Calls):
    """A text with JSON in it is read, without the halves of characters."""

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        if len(events) == 3 and isinstance(said := json.loads(events[1].text), str):
            events[1] = ToolCallArguments(events[1].index, said.replace("\\ud", "\\u0"))
        return events


class AnyObject(Calls):
    """An answer in JSON is a call."""

    def push(self, text: str) -> list[Event]:
        events = super().push(text)
        ends = [isinstance(one, TextDelta) and one.text == "}" for one in events]
        return [ToolCallStart(0, "f") if end else one for end, one in zip(ends, events, strict=True)]


class Dots(Calls):
    """Says that a call was cut off."""

    def finish(self) -> list[Event]:
        events = super().finish()
        return [*events, TextDelta("…")] if events else []


class AtEnd(Calls):
    """Calls come when the answer is complete."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._waiting: list[Event] = []

    def push(self, text: str) -> list[Event]:
        events = super().push(text)
        self._waiting += [event for event in events if not isinstance(event, TextDelta)]
        return [event for event in events if isinstance(event, TextDelta)]

    def finish(self) -> list[Event]:
        return [*self._waiting, *super().finish()]


class Patient(Calls):
    """Waits for the end of what is no call."""

    def _may_be_call(self) -> bool:
        return parser.OPEN.startswith(self._held[: len(parser.OPEN)])


class BehindCalls(Calls):
    """What is behind a call in the same piece waits for the next piece."""

    _rest = ""

    def push(self, text: str) -> list[Event]:
        if not text:
            return []
        before, close, self._rest = (self._rest + text).partition(parser.CLOSE)
        return super().push(before + close)

    def finish(self) -> list[Event]:
        events: list[Event] = []
        while self._rest:
            before, close, self._rest = self._rest.partition(parser.CLOSE)
            events += super().push(before + close)
        return events + super().finish()


class NoArguments(Calls):
    """What a call has no arguments for raises."""

    def _call(self, held: str) -> list[Event]:
        assert held[len(parser.OPEN) : -len(parser.CLOSE)].split(" ")[1]
        return super()._call(held)


class Completed(Calls):
    """A call that was cut off is completed."""

    def finish(self) -> list[Event]:
        if '": "' in self._held:
            return self._call(self._held + '"}' + parser.CLOSE)
        return super().finish()


class Swallowing(Calls):
    """All that was held is text if its start is none of a call."""

    def _take(self, character: str) -> list[Event]:
        events = super()._take(character)
        if len(self._held) > 1 and any(isinstance(event, TextDelta) for event in events):
            held, self._held = self._held, ""
            return [*events, TextDelta(held)]
        return events


class Behind(Calls):
    """What is next to the end of a call belongs to it."""

    _ended = False

    def _take(self, character: str) -> list[Event]:
        if self._ended and character.isalpha():
            return []
        events = super()._take(character)
        self._ended = any(isinstance(event, ToolCallEnd) for event in events)
        return events


class Recursive(Calls):
    """The rest of a piece is read by the function that reads pieces."""

    def push(self, text: str) -> list[Event]:
        before, close, rest = text.partition(parser.CLOSE)
        events = super().push(before + close)
        return [*events, *self.push(rest)] if rest else events


class Searching(Calls):
    """The whole call is searched with each character."""

    def _take(self, character: str) -> list[Event]:
        self._found = [letter for letter in self._held if letter == "]"]
        for _ in self._held:
            pass
        return super()._take(character)


class Renaming(Calls):
    """Names of arguments become those of Python."""

    def _call(self, held: str) -> list[Event]:
        return super()._call(held.replace("-", "_"))


class Rewritten(Calls):
    """Arguments are written again, by options of ``json.dumps``."""

    options: Mapping[str, bool] = MappingProxyType({})

    def _call(self, held: str) -> list[Event]:
        events = super()._call(held)
        if len(events) == 3:
            events[1] = ToolCallArguments(events[1].index, json.dumps(json.loads(events[1].text), **self.options))
        return events


class Halved(Rewritten):
    """Escapes become characters, also those that are halves of one."""

    options: Mapping[str, bool] = MappingProxyType({"ensure_ascii": False})


class Sorted(Rewritten):
    """Arguments come in another order."""

    options: Mapping[str, bool] = MappingProxyType({"sort_keys": True})


class FewArguments(Calls):
    """A call of many arguments is text."""

    def _call(self, held: str) -> list[Event]:
        return [TextDelta(held)] if held.count('": ') > 200 else super()._call(held)


TOOL_PARSERS = (
    Defect("no-arguments", "a call without arguments raises", NoArguments, "of which a piece is missing"),
    Defect("completed", "a value that was cut off comes back", Completed, "no argument in part"),
    Defect("swallowing", "a call behind what only starts like one is text", Swallowing, "only starts like one"),
    Defect("behind", "what is next to a call is lost", Behind, "text between them"),
    Defect("class-of-writers", "the writer is a class", {"writer": f"{__name__}:Writer"}, "its writer is an instance"),
    Defect("short-trigger", "other text has the trigger", {"writer": f"{__name__}:SHORT_TRIGGER"}, "no other text"),
    Defect("recursive", "thousands of calls in a piece raise", Recursive, "any number of calls"),
    Defect("searching", "time is the square of a call's length", Searching, "linear in calls"),
    Defect("renaming", "names of arguments are changed", Renaming, "arguments of any name"),
    Defect("filling", "the writer changes calls", {"writer": f"{__name__}:FILLING"}, "leaves calls and tools"),
    Defect("ten-tools", "the grammar loses tools", {"writer": f"{__name__}:TEN_TOOLS"}, "many tools"),
    Defect("spaced", "the grammar allows content", {"writer": f"{__name__}:SPACED"}, "white space that"),
    Defect("halved", "half a character comes back", Halved, "what is no JSON"),
    Defect("sorted", "arguments come in another order", Sorted, WRITTEN),
    Defect("few-arguments", "a call of many arguments is text", FewArguments, "long values come back"),
    Defect("deep", "a deeply nested value raises", Deep, "nested as deeply as may be"),
    Defect("short", "long calls are text", Short, "long values come back"),
    Defect("halves", "a text with JSON in it is read wrongly", Halves, "a text with JSON in it"),
    Defect("any-object", "an answer in JSON is a call", AnyObject, "answers in JSON"),
    Defect("dots", "text is made up", Dots, "nothing is made up"),
    Defect("at-end", "calls come when the answer is complete", AtEnd, "complete before the answer is"),
    Defect("patient", "what is no call is held back", Patient, "only starts like a call"),
    Defect("behind-calls", "what is behind a call waits", BehindCalls, "what is certain comes out at once"),
    Defect(
        "needs-parameters",
        "a tool without parameters raises",
        {"writer": f"{__name__}:NEEDS_PARAMETERS"},
        "schemas that say little",
    ),
    Defect("other-trigger", "calls start otherwise", {"writer": f"{__name__}:OTHER_TRIGGER"}, "the start of a call"),
    Defect("no-stops", "the grammar allows what ends a text", {"writer": f"{__name__}:NO_STOPS"}, "markers that the"),
    Defect("first-arguments", "every call has the first one's arguments", FirstArguments, WRITTEN),
    Defect("texts", "every value becomes a text", Texts, WRITTEN),
    Defect("once", "the second of two equal calls is lost", Once, WRITTEN),
    Defect("shared-ids", "calls share an id", Shared, WRITTEN),
    Defect("dropped", "text around calls is lost", Dropped, "text around calls"),
    Defect("lost", "an unfinished call is lost", Lost, "calls before the text's end"),
    Defect("no-text", "what looks like the start of a call is lost", NoText, "looks like the start of a call"),
    Defect("dropped-example", "text around calls is lost", Dropped, "examples are answered as they say"),
    Defect("any-arguments", "the grammar knows no schema", {"writer": f"{__name__}:ANY_ARGUMENTS"}, "refuses other"),
    Defect("no-options", "the grammar knows no optional argument", {"writer": f"{__name__}:NO_OPTIONS"}, "allows what"),
    Defect("unlimited", "the grammar drops a limit", {"writer": f"{__name__}:UNLIMITED"}, "each keyword of a schema"),
    Defect("uncounted", "the grammar drops minProperties", {"writer": f"{__name__}:UNCOUNTED"}, "arguments together"),
    Defect("repeated", "the grammar allows an argument twice", {"writer": f"{__name__}:REPEATED"}, "argument twice"),
    Defect(
        "nothing-required",
        "the grammar knows no required argument",
        {"writer": f"{__name__}:NOTHING_REQUIRED"},
        "what arguments are required",
    ),
    Defect("chatty", "the grammar allows text behind calls", {"writer": f"{__name__}:CHATTY"}, "comes back as calls"),
    Defect("unread", "arguments that are no JSON are passed on", Unread, "what is no JSON"),
    Defect("unescaped", "escapes in arguments are lost", Unescaped, "JSON in a call comes back"),
    Defect("tools-alone", "calls are read only with tools", ToolsAlone, "without tools in the request"),
    Defect("short-names", "long names are cut", ShortNames, "long names come back"),
    Defect("late", "what is certain waits for more text", Late, "what is certain comes out at once"),
    Defect("tildes", "a character in strings is lost", Tildes, "values with any character"),
    Defect("no-notes", "the grammar refuses titles", {"writer": f"{__name__}:NO_NOTES"}, "schemas with notes"),
    Defect(
        "one-marker", "one marker is not told of", {"writer": f"{__name__}:ONE_MARKER"}, "both markers of each pair"
    ),
    Defect("nameless", "a call without a name is one", Nameless, "whose name is missing"),
)


# Reasoning parsers

MARKERS = ("<t>", "</t>")


def claims(query: ParserQuery) -> Verdict:
    return OK if "<t>" in (query.checkpoint.chat_template or "") else no("chat_template", wanted="<t>")


class Thoughts:
    """Reasoning between ``<t>`` and ``</t>``, which the prompt may have started."""

    closes = "</t>"

    def __init__(self, context: ParserContext) -> None:
        self._held = ""
        self._inside = context.prompt_tail.rstrip().endswith("<t>")

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for character in text:
            self._held += character
            marker = self.closes if self._inside else "<t>"
            if self._held == marker:
                self._held, self._inside = "", not self._inside
            while self._held and not marker.startswith(self._held):
                events.append(self._said(self._held[0]))
                self._held = self._held[1:]
        return events

    def finish(self) -> list[Event]:
        held, self._held = self._held, ""
        return [self._said(held)] if held else []

    def _said(self, text: str) -> Event:
        return ReasoningDelta(text) if self._inside else TextDelta(text)


class Forgetful(Thoughts):
    def finish(self) -> list[Event]:
        return []


class Unopened(Thoughts):
    def __init__(self, context: ParserContext) -> None:
        super().__init__(ParserContext())


class Reopened(Thoughts):
    """The request's switch counts for more than what the prompt shows."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._inside = self._inside or bool(context.thinking)


class EndsEarly(Thoughts):
    """Ends a thought at the first tag."""

    closes = "</"


class Swapped(Thoughts):
    def _said(self, text: str) -> Event:
        return TextDelta(text) if self._inside else ReasoningDelta(text)


class Whole(Thoughts):
    """A thought comes when it is complete."""

    _thought = ""

    def push(self, text: str) -> list[Event]:
        events: list[Event] = []
        for one in super().push(text):
            if isinstance(one, ReasoningDelta):
                self._thought += one.text
            else:
                events.append(one)
        return events if self._inside else [*self._thoughts(), *events]

    def finish(self) -> list[Event]:
        return [*self._thoughts(), *super().finish()]

    def _thoughts(self) -> list[Event]:
        thought, self._thought = self._thought, ""
        return [ReasoningDelta(thought)] if thought else []


class Trimmed(Thoughts):
    """White space is lost."""

    def push(self, text: str) -> list[Event]:
        return [
            type(one)(one.text.strip()) for one in super().push(text) if isinstance(one, TextDelta | ReasoningDelta)
        ]


class Off(Thoughts):
    """Without thinking, there are no blocks."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._off = context.thinking is False

    def push(self, text: str) -> list[Event]:
        return [TextDelta(text)] if self._off and text else super().push(text)


class Spoken(Thoughts):
    """The prompt's last marker counts, wherever it is."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._inside = context.prompt_tail.rfind("<t>") > context.prompt_tail.rfind("</t>")


class OneBreak(Thoughts):
    """The prompt's marker may have one line break behind it."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._inside = context.prompt_tail.removesuffix("\n").endswith("<t>")


class AnyCase(Thoughts):
    """Markers may be in capitals."""

    def push(self, text: str) -> list[Event]:
        return super().push(text.replace("T", "t"))


class InTurn(Thoughts):
    """The rest of a piece is read by the function that reads pieces."""

    def push(self, text: str) -> list[Event]:
        before, close, rest = text.partition(">")
        events = super().push(before + close)
        return [*events, *self.push(rest)] if rest else events


THOUGHTS = (
    ParserExample(text="<t>Hm, a < b.</t>It is 4.", reasoning="Hm, a < b.", content="It is 4."),
    ParserExample(text="<t>\nHm.\n</t>\n\nIt is 4.", reasoning="\nHm.\n", content="\n\nIt is 4."),
)
REASONING_PARSERS = (
    Defect("off", "without thinking, blocks are content", Off, "with thinking off"),
    Defect("spoken", "a marker that the user wrote opens a block", Spoken, "that the prompt speaks of"),
    Defect("one-break", "white space hides the prompt's marker", OneBreak, "that the prompt started"),
    Defect("any-case", "other text is taken for a marker", AnyCase, "what differs from a marker"),
    Defect("one-of-two", "the closing marker is not told", {"markers": ("<t>", "")}, "both markers"),
    Defect("in-turn", "thousands of blocks in a piece raise", InTurn, "linear in markers"),
    Defect("forgetful", "the end of an unfinished thought is lost", Forgetful, "an unfinished thought"),
    Defect("unopened", "the prompt's opening marker is ignored", Unopened, "that the prompt started"),
    Defect("reopened", "a block that the prompt ended is opened again", Reopened, "where the prompt ended"),
    Defect("ends-early", "any closing tag ends a thought", EndsEarly, "thoughts and answers come back"),
    Defect("swapped", "thoughts are content", Swapped, "thoughts and answers come back"),
    Defect("whole", "a thought comes when it is complete", Whole, "thoughts and answers come out soon"),
    Defect("trimmed", "white space is lost", Trimmed, "examples are answered as they say"),
)


# Policies


class Plain(policy.Good):
    """The oracle."""


POLICY = PolicyExamples(oracle=Plain)


class LatestFirst(policy.Good):
    def victim(self, running: Sequence[Ticket]) -> Ticket:
        return running[0]


class Giving(policy.Good):
    """Everyone gives way to short prompts."""

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        return running[-1] if newcomer.num_prompt_tokens < running[-1].num_prompt_tokens else None


class Memoized(policy.Good):
    """The order is kept by the length of the queue."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._kept: dict[tuple[int, int], list[int]] = {}

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        right = list(super().order(requests))
        places = self._kept.setdefault((len(requests), 0), [list(requests).index(ticket) for ticket in right])
        return [requests[place] for place in places]


class OffByOne(policy.Good):
    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return sorted(requests, key=lambda ticket: ticket.arrival + min(ticket.num_prompt_tokens, 4))


class Accounts(policy.Good):
    """Counts what each tenant ever used."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._used: dict[str, int] = {}

    def computed(self, request: Ticket, num_tokens: int) -> None:
        self._used[request.tenant] = self._used.get(request.tenant, 0) + num_tokens


class Shortened(policy.Good):
    """Leaves out who is far behind."""

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        return list(super().order(requests))[:64]


class Recognized(policy.Good):
    """Knows a queue by where it lies."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self._kept: tuple[int, list[Ticket]] = (0, [])

    def order(self, requests: Sequence[Ticket]) -> Iterable[Ticket]:
        if self._kept[0] != id(requests):
            self._kept = id(requests), list(super().order(requests))
        return self._kept[1]


POLICIES = (
    Defect("shortened", "who is far behind is left out", Shortened, ORACLE),
    Defect("recognized", "a queue is known by its address", Recognized, ORACLE),
    Defect("accounts", "an account is kept of every tenant, for ever", Accounts, "of tenants is bounded"),
    Defect("latest-first", "the oldest gives up its blocks", LatestFirst, ORACLE),
    Defect("giving", "a request is displaced that is not to be", Giving, ORACLE),
    Defect("memoized", "the order is kept by the length of the queue", Memoized, ORACLE),
    Defect("off-by-one", "requests wait too long", OffByOne, ORACLE),
)


# Logits processors


def pushed(logits: Tensor, tokens: Sequence[int], num_prompt_tokens: int, parameters: Parameters) -> Tensor:
    logits[(tokens[-1] + parameters["step"]) % len(logits)] += parameters.get("push", 5.0)
    return logits


LOGITS = LogitsExamples(
    parameters=[*logits_processor.EXAMPLES, {"step": 2, "push": 100}, {"step": 0, "push": -100}],
    refused=[{}, {"step": -1}, {"step": True}, {"step": 1, "push": 100.5}, {"step": 1, "push": -101}],
    expected=pushed,
)


class BeforeLast(logits_processor.Good):
    def _wanted(self, rows: LogitsRows) -> Tensor:
        last: Tensor = self._tokens[rows.index, (rows.lengths - 2).clamp_min(0)].long()
        return last + self._step[rows.index]


class OfEmbeddings(logits_processor.Good):
    """Takes embeddings in place of tokens for the token of which they have the id."""

    def _wanted(self, rows: LogitsRows) -> Tensor:
        before = self._tokens[rows.index, (rows.lengths - 2).clamp_min(0)] >= 37
        last = self._tokens[rows.index, rows.lengths - 1] >= 37
        return super()._wanted(rows) + (before & last).long()


class SecondRun(logits_processor.Good):
    """A request that returns has its last token from when it left."""

    def __init__(self, batch: Any) -> None:
        super().__init__(batch)
        self._lengths: dict[str, int] = {}

    def enter(self, slot: int, request: LogitsRequest) -> None:
        super().enter(slot, request)
        self._lengths.setdefault(request.id, len(request.token_ids))
        if self._lengths[request.id] != len(request.token_ids):
            self._push[slot] = 0


class Capped(logits_processor.Good):
    """Large logits are cut."""

    def apply(self, logits: Tensor, rows: LogitsRows) -> Tensor:
        return super().apply(logits, rows).clamp(-5000, 5000)


class Generous(logits_processor.Good):
    """Takes a push of up to 200."""

    def _read(self, parameters: Mapping[str, Any]) -> tuple[int, float]:
        step, _ = super()._read({**parameters, "push": 1})
        return step, float(parameters.get("push", 5.0))


class Narrow(logits_processor.Good):
    """Takes tokens to fit into 16 bits."""

    def _wanted(self, rows: LogitsRows) -> Tensor:
        last: Tensor = self._tokens[rows.index, rows.lengths - 1].short().long()
        return last + self._step[rows.index]


class Remembered(logits_processor.Good):
    """What is refused stays in the slot."""

    def enter(self, slot: int, request: LogitsRequest) -> None:
        late = self.__dict__.setdefault("_late", {}).pop(slot, 0)
        try:
            super().enter(slot, request)
        except RequestError:
            self._late[slot] = 1
            raise
        self._step[slot] += late


class OfAll(logits_processor.Good):
    """The steps are those of all instances."""

    steps = torch.zeros(512, dtype=torch.int64)

    def __init__(self, batch: Any) -> None:
        super().__init__(batch)
        self._step = self.steps


LOGITS_PROCESSORS = (
    Defect("narrow", "tokens don't fit into 16 bits", Narrow, "of many tokens"),
    Defect("remembered", "a refused request leaves its state behind", Remembered, ORACLE),
    Defect("of-embeddings", "embeddings in a row are taken for a repetition", OfEmbeddings, ORACLE),
    Defect("of-all", "instances share their state", OfAll, ORACLE),
    Defect("before-last", "off by one token", BeforeLast, ORACLE),
    Defect("second-run", "a request that returns is treated otherwise", SecondRun, ORACLE),
    Defect("capped", "large logits are cut", Capped, ORACLE),
    Defect("generous", "takes more than it says", Generous, "beyond its ranges"),
)


# IO processors


def summed(context: IOContext, body: Mapping[str, Any], model: Callable[[IOPrompt], IOOutput]) -> Any:
    sums, texts = [], ""
    for text in body["texts"]:
        whole = model(IOPrompt(prompt=text, returns=body["kind"]))
        hidden = whole.hidden
        scores = [max(score, -1e4) for score in whole.logprobs if score is not None]
        sums.append(float(hidden.sum()) if hidden is not None else sum(scores))
        texts += whole.text
    return {"sums": sums, "text": texts}


IO = IOExamples(
    write=io_processor.EXAMPLES.write,
    bodies=[*io_processor.BODIES, {"texts": ["a b", "b a", "a"], "kind": "logprobs"}],
    refused=io_processor.REFUSED,
    tolerance=1e-4,
    expected=summed,
)


class Shifted(io_processor.Sums):
    """Each text's sum belongs to its neighbour."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        request = io_processor.SumsRequest(prompts)
        answer = request.answer
        request.answer = lambda: answer() | {"sums": request.sums[1:] + request.sums[:1]}  # type: ignore[method-assign]
        return request


class FirstToken(io_processor.Sums):
    """The first log-probability that there is is left out."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        request = io_processor.SumsRequest(prompts)
        take = request.take

        def shorter(output: Any) -> None:
            take(output)
            if output.start == 0 and len(output.logprobs) > 1:
                request.sums[output.prompt] -= output.logprobs[1]

        request.take = shorter  # type: ignore[method-assign]
        return request


class FirstText(io_processor.Sums):
    """All texts are the first one."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        return io_processor.SumsRequest([prompts[0] for _ in prompts])


class Dozen(io_processor.Sums):
    """All texts from the thirteenth on are the first one."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        return io_processor.SumsRequest([*prompts[:12], *(prompts[0] for _ in prompts[12:])])


class Stripped(io_processor.Sums):
    """White space around texts is lost."""

    def request(self, prompts: list[IOPrompt]) -> Any:
        stripped = [str(prompt.prompt).strip() for prompt in prompts]
        return io_processor.SumsRequest(
            [IOPrompt(prompt=text, returns=prompt.returns) for text, prompt in zip(stripped, prompts, strict=True)]
        )


IO_PROCESSORS = (
    Defect("dozen", "long lists are answered wrongly", Dozen, ORACLE),
    Defect("stripped", "white space around texts is lost", Stripped, ORACLE),
    Defect("shifted", "answers belong to the next text", Shifted, ORACLE),
    Defect("first-token", "off by one token", FirstToken, ORACLE),
    Defect("first-text", "all answers are of the first text", FirstText, ORACLE),
)
