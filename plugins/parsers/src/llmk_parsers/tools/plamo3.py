"""Tool calls of PLaMo 3: requests of a name and arguments as JSON, each between markers."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_parsers.argument_stream import ArgumentStream
from llmk_parsers.call_reader import LONGEST_NAME
from llmk_parsers.json_writer import JsonWriter
from llmk_parsers.machine import markers
from llmk_parsers.plamo import TURN_END, PlamoMarkers, marker
from llmk_parsers.tool_machine import ToolMachine

_ALL, _ALL_END = marker("begin_tool_requests"), marker("end_tool_requests")
_ONE, _ONE_END = marker("begin_tool_request"), marker("end_tool_request")
_NAME, _NAME_END = marker("begin_tool_name"), marker("end_tool_name")
_ARGUMENTS, _ARGUMENTS_END = marker("begin_tool_arguments"), marker("end_tool_arguments")
_TYPE_MARK, _BODY = "<|plamo:constrain|>", "<|plamo:msg|>"
_OPENING = f"{_ONE}{_NAME}"
_MIDDLE = f"{_NAME_END}{_ARGUMENTS}{_TYPE_MARK}json{_BODY}"
_CLOSING = f"{_ARGUMENTS_END}{_ONE_END}"
_OUTSIDE = markers(_ALL, _ALL_END, TURN_END)
_IN_REQUESTS = markers(_ONE, _ONE_END, _NAME, _ARGUMENTS, _ALL_END, TURN_END)
_IN_NAME = markers(_NAME_END, _ARGUMENTS, _ONE_END, _ALL_END)
_BEFORE_BODY = markers(_BODY, _ARGUMENTS_END, _ONE_END, _ALL_END)
_IN_BODY = markers(_ARGUMENTS_END, _ONE_END, _ALL_END)
WRITER = JsonWriter(
    trigger=_ALL,
    markers=(_ALL, _ALL_END, _ONE, _ONE_END, _NAME, _NAME_END, _ARGUMENTS, _ARGUMENTS_END, _TYPE_MARK, _BODY),
    before=_ALL,
    opening=_OPENING,
    middle=_MIDDLE,
    closing=_CLOSING,
    separator="",
    after=_ALL_END,
    quote=str,
)


class Plamo3(PlamoMarkers, ToolMachine):
    """A block of requests. Other text in it is content, and so is what is too long for a name; a request without
    arguments is dropped."""

    _call: ArgumentStream
    """The open call."""

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._name: list[str] = []
        self._lead: list[str] = []
        self._state = self._content

    def _content(self) -> bool:
        text, found = self._read_until(_OUTSIDE)
        self._say(text)
        if found == _ALL:
            self._said = False
            self._state = self._requests
        return bool(found)

    def _requests(self) -> bool:
        text, found = self._read_until(_IN_REQUESTS)
        self._say(text)
        if found == _NAME:
            self._name = []
            self._state = self._in_name
        elif found == _ARGUMENTS:
            self._lead = []
            self._state = self._before_body
        elif found in (_ALL_END, TURN_END):
            self._state = self._content
        return bool(found)

    def _in_name(self) -> bool:
        text, found = self._read_until(_IN_NAME)
        self._name.append(text)
        if sum(map(len, self._name)) > LONGEST_NAME:
            self._say("".join(self._name))
            self._name = []
            self._back(found)
            return True
        if found:
            self._back(found, _NAME_END)
        return bool(found)

    def _before_body(self) -> bool:
        text, found = self._read_until(_BEFORE_BODY)
        self._lead.append(text)
        if not found:
            return False
        name = "".join(self._name).strip()
        self._name = []
        if name:
            opening = f"{_OPENING}{name}{_NAME_END}{_ARGUMENTS}{''.join(self._lead)}"
            self._call = ArgumentStream(self._start_call(), name, opening + (found if found == _BODY else ""))
            self._out.append(self._call.start())
        if found == _BODY and name:
            self._state = self._body
        else:
            if name:
                self._out += self._call.end(found)
            self._back(found, _ARGUMENTS_END, _BODY)
        return True

    def _body(self) -> bool:
        text, found = self._read_until(_IN_BODY)
        if text:
            self._out += self._call.feed(text)
        if self._call.failed:
            self._said = True
            self._at -= len(found)
            self._state = self._rest
            return True
        if found or self._ended:
            self._out += self._call.end(found)
            self._said = self._call.failed
            self._back(found, _ARGUMENTS_END)
        return bool(found)

    def _rest(self) -> bool:
        """What is behind arguments that are not JSON is text."""
        text, found = self._read_until(_IN_BODY)
        self._say(text)
        if found:
            self._back(found, _ARGUMENTS_END)
        return bool(found)

    def _back(self, found: str, *own: str) -> None:
        """Continues in the block, with the marker just read if it is not one of ``own``."""
        self._at -= 0 if found in own else len(found)
        self._state = self._requests
