"""What the conformance kit tries the pier's plugins on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from llmk.api import IOContext, IOOutput, IOPrompt, ParserContext, PolicyContext, SchedulingPolicy, Ticket
from llmk_testing.checkpoints import write_checkpoint
from llmk_testing.logits_examples import LogitsExamples
from llmk_testing.parser_example import ParserExample
from llmk_testing.policy_examples import PolicyExamples
from llmk_testing.suites.io_processor import IOExamples

# --- policy


class PlainLanes(SchedulingPolicy):
    """The rule of ``pier.lanes``, by lists."""

    def __init__(self, context: PolicyContext) -> None:
        self.context = context
        self.spent = [0, 0, 0]

    def lane(self, ticket: Ticket) -> int:
        if ticket.num_prompt_tokens <= self.context.step_tokens:
            return 0
        return 1 if ticket.num_prompt_tokens <= 8 * self.context.step_tokens else 2

    def place(self, ticket: Ticket) -> tuple[int, int]:
        weight = self.context.weights.get(ticket.tenant, 1)
        head_start = round(32 * math.log2(min(max(weight, 2**-16), 2**16)))
        return ticket.arrival + 32 * ticket.priority - head_start, ticket.arrival

    def order(self, requests: Sequence[Ticket]) -> Iterator[Ticket]:
        lanes: list[list[Ticket]] = [[], [], []]
        for ticket in sorted(requests, key=self.place):
            lanes[self.lane(ticket)].append(ticket)
        places = [0, 0, 0]
        for _ in range(len(requests)):
            _, best = min((self.spent[at], at) for at in range(3) if places[at] < len(lanes[at]))
            places[best] += 1
            yield lanes[best][places[best] - 1]

    def victim(self, running: Sequence[Ticket]) -> Ticket:
        return sorted(running, key=self.place)[-1]

    def displaced(self, running: Sequence[Ticket], newcomer: Ticket) -> Ticket | None:
        rank = self.place(newcomer)[0]
        worse = [each for each in running if each.priority > newcomer.priority and self.place(each)[0] > rank]
        return sorted(worse, key=self.place)[-1] if worse else None

    def computed(self, request: Ticket, num_tokens: int) -> None:
        lane = self.lane(request)
        self.spent[lane] += num_tokens * (3, 8, 24)[lane]
        for at in range(3):
            self.spent[at] = max(self.spent[at], max(self.spent) - 32 * self.context.step_tokens * 3)


POLICY = PolicyExamples(
    oracle=PlainLanes, weights=({"a": 4.0, "b": 0.25}, {"a": 1.7, "b": 0.3}, {"a": 1e9, "b": 1e-9, "c": 0.0})
)

# --- logits processor


def without_loops(
    logits: Tensor, tokens: Sequence[int], num_prompt_tokens: int, parameters: Mapping[str, Any]
) -> Tensor:
    """The rule of ``pier.dry`` for one row, token by token."""
    options: dict[str, Any] = {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "window": 512, "breakers": []}
    options |= parameters
    text = list(tokens[-options["window"] :])
    free = {*options["breakers"], len(logits)}
    longest: dict[int, int] = {}
    for at, token in enumerate(text):
        length = 0
        while length < min(at, 32) and text[at - 1 - length] == text[-1 - length] and text[-1 - length] not in free:
            length += 1
        if token not in free:
            longest[token] = max(longest.get(token, 0), length)
    result = logits.clone()
    for token, length in longest.items():
        if length >= options["allowed_length"]:
            result[token] -= float(options["multiplier"]) * options["base"] ** (length - options["allowed_length"])
    return result


LOGITS = LogitsExamples(
    parameters=(
        {"multiplier": 5.0, "base": 2.0, "allowed_length": 1},
        {},
        {"multiplier": 3, "base": 1, "allowed_length": 1, "window": 2},
        {"multiplier": 100, "base": 4, "allowed_length": 1, "window": 1024, "breakers": [0, 5, 7]},
        {"multiplier": 2.5, "base": 1.1, "allowed_length": 3, "window": 64, "breakers": list(range(16))},
        {"multiplier": 0, "allowed_length": 32},
        {"multiplier": 1.0, "base": 1.5, "allowed_length": 1, "window": 7, "breakers": [3]},
    ),
    refused=(
        {"multiplier": -0.1},
        {"multiplier": 100.5},
        {"multiplier": "1"},
        {"multiplier": True},
        {"multiplier": math.nan},
        {"multiplier": None},
        {"base": 0.99},
        {"base": 4.01},
        {"base": 10**400},
        {"allowed_length": 0},
        {"allowed_length": 33},
        {"allowed_length": 2.0},
        {"window": 1},
        {"window": 1025},
        {"window": [64]},
        {"breakers": list(range(17))},
        {"breakers": [-1]},
        {"breakers": [1 << 40]},
        {"breakers": ["\n"]},
        {"breakers": {"0": 1}},
        {"breakers": None},
        {"penalty": 1},
    ),
    expected=without_loops,
)

# --- IO processor


def write(folder: Path) -> Path:
    """A tiny checkpoint."""
    return write_checkpoint(folder, "qwen3")


def compared(context: IOContext, body: Mapping[str, Any], model: Callable[[IOPrompt], IOOutput]) -> Any:
    """The answer of ``pier.compare``, a prompt at a time. Bodies that are not valid raise."""
    encode = context.tokenizer.encode

    def opening(text: str) -> list[int]:
        whole, plain = encode(text), encode(text, add_special_tokens=False)
        return whole[: max(at for at in range(len(whole) + 1) if whole[:at][-len(plain) :] == plain)]

    def score(head: str, candidate: str) -> tuple[float, int, int]:
        start, tail = opening(head), encode(candidate, add_special_tokens=False)
        output = model(IOPrompt(prompt=start + tail, returns="logprobs"))
        total = sum(max(value, -1e4) for value in output.logprobs[len(start) :] if value is not None)
        divisor = {"mean": len(tail), "sum": 1, "bytes": len(candidate.encode())}[body.get("normalize") or "mean"]
        return total / divisor, len(tail), len(start + tail)

    heads = [body["context"], *([body["prior"]] if body.get("prior") else [])]
    rows = [[score(head, candidate) for candidate in body["candidates"]] for head in heads]
    scores = [row[0] - rows[1][at][0] if len(rows) > 1 else row[0] for at, row in enumerate(rows[0])]
    shares = [math.exp(each - max(scores)) for each in scores]
    total = sum(tokens for row in rows for _, _, tokens in row)
    return {
        "object": "comparison",
        "model": context.model_name,
        "best": scores.index(max(scores)),
        "candidates": [
            {
                "index": at,
                "text": text,
                "score": scores[at],
                "probability": shares[at] / sum(shares),
                "tokens": rows[0][at][1],
            }
            for at, text in enumerate(body["candidates"])
        ],
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }


_BODY = {"context": "The capital of France is", "candidates": [" Paris", " Lyon", " a city in the south"]}
_REFUSED: Sequence[Mapping[str, Any]] = (
    {},
    {"context": "a"},
    {"candidates": ["a", "b"]},
    {**_BODY, "context": ""},
    {**_BODY, "context": 3},
    {**_BODY, "context": "\ud800"},
    {**_BODY, "candidates": "ab"},
    {**_BODY, "candidates": ["a"]},
    {**_BODY, "candidates": ["a", ""]},
    {**_BODY, "candidates": ["a", None]},
    {**_BODY, "candidates": ["a", "\udc00"]},
    {**_BODY, "normalize": "max"},
    {**_BODY, "normalize": ["mean"]},
    {**_BODY, "prior": ""},
    {**_BODY, "prior": False},
    {**_BODY, "model": "another"},
    {**_BODY, "temperature": 1},
)
COMPARE = (
    IOExamples(
        write=write,
        bodies=(
            _BODY,
            {**_BODY, "normalize": "sum"},
            {**_BODY, "normalize": "bytes", "prior": "Answer:"},
            {
                "context": "Größe?",
                "candidates": ["ä", "ö", "größer als ein Haus", "ä"],
                "prior": "So: ",
                "normalize": "mean",
            },
        ),
        refused=(*_REFUSED, {**_BODY, "candidates": ["a"] * 65}),
        expected=compared,
    ),
    IOExamples(
        write=write,
        bodies=(_BODY, {**_BODY, "candidates": ["a", "b", "c"], "normalize": None, "prior": None}),
        refused=(*_REFUSED, {**_BODY, "candidates": ["a"] * 4}),
        options={"max_candidates": 3},
        expected=compared,
    ),
)

# --- tool parser

_WEATHER = '<<call get_weather\n--city "Paris"\n--days [1, 2]\n>>'
_TOOLS = (
    {
        "name": "get_weather",
        "description": "The weather of some days",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}}},
            "required": ["city"],
        },
    },
    {"name": "now"},
)
_CONTEXT = ParserContext(tools=_TOOLS)
COMMAND_LINE = (
    ParserExample(text=_WEATHER, calls=[("get_weather", {"city": "Paris", "days": [1, 2]})], context=_CONTEXT),
    ParserExample(
        text=f"I'll look.\n{_WEATHER}<<call now\n>>\nThat's it. ",
        content="I'll look.\n\nThat's it. ",
        calls=[("get_weather", {"city": "Paris", "days": [1, 2]}), ("now", {})],
        context=_CONTEXT,
    ),
    ParserExample(
        text='<<call a.b\n--"odd \\"name" {"x": [null, true, -1.5e3], "y": {}}\n--n 0\n>>',
        calls=[("a.b", {'odd "name': {"x": [None, True, -1500.0], "y": {}}, "n": 0})],
    ),
    ParserExample(
        text='<<call a  --x\t"<<call b"\r\n --y {\n  "z" : ">>"\n}>>',
        calls=[("a", {"x": "<<call b", "y": {"z": ">>"}})],
    ),
    ParserExample(text="x <<call me maybe >> y", content="x <<call me maybe >> y"),
    ParserExample(text="std::cout << a <<<call << b", content="std::cout << a <<<call << b"),
    ParserExample(text="<<call <<call now\n>>", content="<<call ", calls=[("now", {})]),
    ParserExample(text='<<call a\n--x {"y": 01}\n>>', content='<<call a\n--x {"y": 01}\n>>'),
    ParserExample(text='<<call a\n--x "open<<call now\n>>', content='<<call a\n--x "open', calls=[("now", {})]),
    ParserExample(text="<<call a\n--x Paris\n>>", content="<<call a\n--x Paris\n>>"),
    ParserExample(
        text=json.dumps({"name": "get_weather", "arguments": {}}), content='{"name": "get_weather", "arguments": {}}'
    ),
    ParserExample(text="<<call a\n--x 1\n--x 2\n>>", calls=[("a", {"x": 2})]),
    ParserExample(text="cut off <<call a\n--x [1, ", content="cut off <<call a\n--x [1, "),
)
