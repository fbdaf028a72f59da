"""Requests with tools: single and parallel calls, answers from results, and requests that no tool fits."""

import json
import random
from dataclasses import dataclass, replace
from typing import Any

from .arithmetic import basic
from .core import Call, Check, Message, Tool, Turn, listing, phrase, say
from .geography import capital, city
from .knowledge import fact
from .rows import count
from .smalltalk import chat, introduction, joke
from .textops import echo
from .toolcatalogue import KINDS
from .toolkinds import Kind, Values, made_up, said
from .unknown import unknown
from .wordlore import opposite

REFUSALS = (
    "I am sorry, I have no tool for that, and I do not know the answer.",
    "None of my tools can do that. I am sorry that I cannot help here.",
    "I do not have a tool for that.",
)
UNIVERSAL = {
    "search",
    "define_word",
    "calculator",
    "add",
    "get_population",
    "get_weather",
    "get_local_time",
    "get_distance",
}
"""Names that mark kinds of tools to leave out where a question could be meant for them."""
LISTABLE = ("city", "zone", "symbol", "word", "order", "name", "path")
"""Parameters whose values can be listed in one request."""
FAILURES = (
    "not found",
    "service unavailable",
    "timeout",
    "permission denied",
    "invalid input",
    "rate limit reached",
    "unknown location",
)


@dataclass(frozen=True)
class Instance:
    """A kind of tool with its wording fixed: the schema shown and the parameters' chosen names."""

    kind: Kind
    name: str
    names: dict[str, str]
    descriptions: dict[str, str]
    schema: Tool

    def call(self, values: Values) -> Call:
        """The call for said values (by slot), arguments in the order of the schema."""
        slots = {name: slot for slot, name in self.names.items()}
        params = {param.slot: param for param in self.kind.params}
        order = [slots[name] for name in self.schema["function"]["parameters"]["properties"]]
        return Call(
            self.name,
            {
                self.names[slot]: params[slot].shape(values[slot], self.descriptions[slot])
                for slot in order
                if slot in values
            },
        )


def _styled(rng: random.Random, name: str) -> str:
    """A function name in one of the usual styles."""
    style = rng.random()
    if style < 0.75:
        return name
    head, *rest = name.split("_")
    if style < 0.9:
        return head + "".join(part.capitalize() for part in rest)
    return rng.choice(("-", ".")).join((head, *rest))


def _sorted(value: Any) -> Any:
    """The value with the keys of all objects sorted, as some clients write it."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def instance(rng: random.Random, kind: Kind) -> Instance:
    """Fix the wording of a kind of tool."""
    names: dict[str, str] = {}
    descriptions: dict[str, str] = {}
    properties: dict[str, Values] = {}
    plain = rng.random() < 0.15
    params = list(kind.params)
    if len(params) > 1 and rng.random() < 0.2:
        params = [param for param in params if not param.said] or params
    for param in params:
        name = next(
            name for name in [*sorted(param.names, key=lambda _: rng.random()), param.slot] if name not in properties
        )
        description = "" if plain else rng.choice(param.descriptions)
        names[param.slot], descriptions[param.slot] = name, description
        properties[name] = dict(param.schema) | ({"description": description} if description else {})
    required = [names[param.slot] for param in params if not param.said]
    parameters: Values = {"type": "object", "properties": properties}
    if required or rng.random() < 0.5:
        parameters["required"] = required
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    function: Values = {"name": _styled(rng, rng.choice(kind.names))}
    if not plain:
        function["description"] = rng.choice(kind.descriptions)
    function["parameters"] = parameters
    if rng.random() < 0.08:
        function["strict"] = rng.choice((True, False, None))
    schema: Tool = {"type": "function", "function": function}
    return Instance(kind, function["name"], names, descriptions, _sorted(schema) if rng.random() < 0.35 else schema)


def toolbox(rng: random.Random, wanted: list[Instance], size: int) -> tuple[Tool, ...]:
    """The schemas of the wanted tools among others, in random order."""
    schemas = [each.schema for each in wanted]
    taken = {each.name for each in wanted}
    used = {id(each.kind) for each in wanted}
    while len(schemas) < size:
        kind = made_up(rng) if rng.random() < 0.3 else rng.choice(KINDS)
        other = instance(rng, kind)
        overlap = id(kind) in used or any(set(kind.names) & set(each.kind.names) for each in wanted)
        if other.name not in taken and not overlap:
            schemas.append(other.schema)
            taken.add(other.name)
    rng.shuffle(schemas)
    return tuple(schemas)


def _values(rng: random.Random, tool: Instance) -> Values:
    """Said values by slot; optional parameters are there now and then."""
    chance = 0.75 if len(tool.kind.names) == 1 else 0.35
    return {
        param.slot: param.make(rng)
        for param in tool.kind.params
        if param.slot in tool.names and (not param.said or rng.random() < chance)
    }


def _shown(values: Values) -> dict[str, str]:
    return {slot: said(value) for slot, value in values.items()}


def request(rng: random.Random, tool: Instance, values: Values) -> str:
    """A request that gives all the values."""
    text = phrase(rng, tool.kind.requests, noise=0.7, tool=tool.name, **_shown(values))
    added = [param for param in tool.kind.params if param.said and param.slot in values]
    for param in added:
        way = rng.choice(param.said).format(v=said(values[param.slot]))
        stop = text[-1] if text[-1:] in "?.!" else ""
        text = (
            (text if way[1:2].isupper() else text.rstrip("?.!"))
            + ("." if way[1:2].isupper() and not stop else "")
            + way
        )
        if way[-1] != "." and stop:
            text += stop
    if not added and text[-1:].isalnum() and rng.random() < 0.5:
        text += "." if text[:1].isupper() else ""
    return text


def _purpose(tool: Instance, values: Values) -> str:
    return tool.kind.purpose.format(**_shown(values))


def _call_thought(rng: random.Random, tool: Instance, values: Values) -> str:
    """Why the call is made, with its arguments named."""
    arguments = "; ".join(
        f"{name} is {json.dumps(value, ensure_ascii=False)}" for name, value in tool.call(values).arguments.items()
    )
    return say(
        rng,
        ("The user wants {p}. The tool {t} fits: {a}.", "The tool {t} fits: {a}."),
        p=_purpose(tool, values),
        t=tool.name,
        a=arguments or "no arguments",
    )


def _kind(rng: random.Random) -> Kind:
    """A kind of tool; the best-known ones come more often."""
    if rng.random() < 0.3:
        return made_up(rng)
    return KINDS[0] if rng.random() < 0.15 else rng.choice(KINDS)


def single(rng: random.Random) -> Turn:
    """One call of one tool."""
    tool = instance(rng, _kind(rng))
    values = _values(rng, tool)
    call = tool.call(values)
    tools = toolbox(rng, [tool], rng.choice((1, 1, 2, 3, 4, 5)))
    user = request(rng, tool, values)
    return Turn(
        "tool_call", user, "", _call_thought(rng, tool, values), Check("calls", [call]), tools=tools, calls=(call,)
    )


def parallel(rng: random.Random) -> Turn:
    """Several calls at once: one tool for two or three things, or two tools."""
    if rng.random() < 0.65:
        kind = (
            KINDS[0]
            if rng.random() < 0.5
            else rng.choice(
                [
                    kind
                    for kind in KINDS
                    if kind.params[0].slot in LISTABLE and all(param.said for param in kind.params[1:])
                ]
            )
        )
        tool = instance(rng, kind)
        slot = kind.params[0].slot
        row = [
            {slot: value}
            for value in {
                said(value): value for value in (kind.params[0].make(rng) for _ in range(rng.choice((2, 2, 3))))
            }.values()
        ]
        optional = [param for param in kind.params if param.said and param.slot in tool.names]
        extra = ""
        if optional and rng.random() < 0.3:
            value = optional[0].make(rng)
            extra = rng.choice(optional[0].said).format(v=said(value))
            row = [each | {optional[0].slot: value} for each in row]
        joined = listing([said(each[slot]) for each in row])
        user = phrase(rng, kind.requests, noise=0.6, tool=tool.name, **{slot: joined})
        if extra:
            user = (user if extra[1:2].isupper() else user.rstrip("?.!")) + extra
        calls = tuple(tool.call(each) for each in row)
        wanted = [tool]
        thought = f"There are {len(row)} calls to make with {tool.name}: {joined}."
    else:
        wanted = []
        while len(wanted) < 2:
            other = instance(rng, _kind(rng))
            if all(not set(other.kind.names) & set(each.kind.names) for each in wanted):
                wanted.append(other)
        chosen = [_values(rng, tool) for tool in wanted]
        parts = [request(rng, tool, values) for tool, values in zip(wanted, chosen, strict=True)]
        first = parts[0] if parts[0][-1:] in "?.!" else parts[0] + "."
        user = f"{first} {rng.choice(('And ', 'Also, ', 'Then ', ''))}{parts[1]}"
        calls = tuple(tool.call(values) for tool, values in zip(wanted, chosen, strict=True))
        thought = f"Two tools are needed: {wanted[0].name} and {wanted[1].name}."
    tools = toolbox(rng, wanted, len(wanted) + rng.choice((0, 0, 1, 2)))
    return Turn("tool_parallel", user, "", thought, Check("calls", list(calls)), tools=tools, calls=calls)


def _calls_message(calls: tuple[Call, ...], number_from: int = 0) -> Message:
    """The assistant message that holds the calls."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"call_{number_from + at}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for at, call in enumerate(calls)
        ],
    }  # fmt: skip


def _hidden(rng: random.Random, result: Values, new: list[str]) -> str:
    """A tool's result as the program returns it: JSON with more or less of it, or a plain line; ``new`` is what is asked for."""
    shown = {key: value for key, value in result.items() if key != "degree"}
    if rng.random() < 0.15 and "city" in shown and str(shown["city"]) not in new:
        del shown["city"]
    style = rng.random()
    if style < 0.2 and "temperature" in result:
        forms = (
            "{temperature} {degree}, {condition}",
            "{condition}, {temperature} {degree}",
            "{temperature} {degree} and {condition}",
            "The weather is {condition} with a high of {temperature} {degree}.",
            "It is {condition} and {temperature} {degree} in {city}.",
            "{city}: {temperature} {degree}, {condition}",
        )
        return rng.choice(forms).format(**result)
    if style < 0.3 and len(new) == 1:
        return str(new[0])
    if style < 0.25:
        return ", ".join(f"{key}: {value}" for key, value in shown.items())
    if style < 0.35:
        shown = {rng.choice((key, key.upper(), f"the_{key}", key[:4])): value for key, value in shown.items()}
    if style > 0.9:
        shown = {"status": "ok", "data": shown}
    return json.dumps(shown, ensure_ascii=False, indent=2 if style > 0.85 else None)


def _report(rng: random.Random, tool: Instance, values: Values) -> tuple[str, str, list[str]]:
    """A result of the tool as text, the sentence that reports it, and the values that the sentence must name."""
    if rng.random() < 0.06:
        reason = rng.choice(FAILURES)
        return json.dumps({"error": reason}), f"I am sorry, the tool failed: {reason}.", [reason]
    named = values | {slot: said(value) for slot, value in values.items() if not isinstance(value, (int, float))}
    result = tool.kind.result(rng, named)
    if not tool.kind.answers:
        shown = {key: json.dumps(value) if isinstance(value, bool) else value for key, value in result.items()}
        sentence = f"The tool returned: {listing([f'{key} is {value}' for key, value in shown.items()])}."
        return json.dumps(result), sentence, [str(value) for value in shown.values()]
    answer = rng.choice(tool.kind.answers)
    new = [str(value) for key, value in result.items() if key not in values and f"{{{key}}}" in answer]
    return _hidden(rng, result, new), answer.format(**(named | result)), new


def _pipeline(rng: random.Random, several: bool) -> tuple[Instance, list[Values], str]:
    """A tool, the values of its calls and the request for them."""
    if not several:
        tool = instance(rng, _kind(rng))
        values = _values(rng, tool)
        return tool, [values], request(rng, tool, values)
    kind = rng.choice(
        [kind for kind in KINDS if kind.params[0].slot in LISTABLE and all(param.said for param in kind.params[1:])]
    )
    tool = instance(rng, kind)
    slot = kind.params[0].slot
    row = [{slot: value} for value in dict.fromkeys(kind.params[0].make(rng) for _ in range(rng.choice((2, 2, 3))))]
    return (
        tool,
        row,
        phrase(rng, kind.requests, noise=0.6, tool=tool.name, **{slot: listing([each[slot] for each in row])}),
    )


def _answered(rng: random.Random, tool: Instance, row: list[Values]) -> tuple[list[Message], str, list[str]]:
    """Call and result messages for the values, the answer, and the strings it must hold."""
    calls = tuple(tool.call(values) for values in row)
    reports = [_report(rng, tool, values) for values in row]
    messages = [_calls_message(calls)]
    messages += [
        {"role": "tool", "tool_call_id": f"call_{at}", "name": tool.name, "content": text}
        for at, (text, _, _) in enumerate(reports)
    ]
    return (
        messages,
        " ".join(dict.fromkeys(sentence for _, sentence, _ in reports)),
        [value for _, _, values in reports for value in values],
    )


def answer(rng: random.Random) -> Turn:
    """The answer once results are there."""
    tool, row, user = _pipeline(rng, rng.random() < 0.3)
    messages, text, must = _answered(rng, tool, row)
    tools = toolbox(rng, [tool], rng.choice((1, 1, 2, 3)))
    thought = say(
        rng,
        (
            "The tool has answered. I report it.",
            "I have the result and can answer now.",
            "The result is there. I tell the user.",
        ),
    )
    return Turn("tool_answer", user, text, thought, Check("has", must), results=tuple(messages), tools=tools)


def again(rng: random.Random) -> Turn:
    """A second request after an answered first one, for the same tool or for another."""
    tool, row, user = _pipeline(rng, rng.random() < 0.2)
    messages, text, _ = _answered(rng, tool, row)
    history = ({"role": "user", "content": user}, *messages, {"role": "assistant", "content": text})
    kind = tool.kind
    wanted = [tool]
    if (
        kind.params
        and kind.params[0].slot == "city"
        and all(param.said for param in kind.params[1:])
        and rng.random() < 0.7
    ):
        values = {"city": kind.params[0].make(rng)}
        values |= {slot: value for slot, value in row[0].items() if slot != "city"}
        follow = phrase(
            rng,
            (
                "And in {c}?",
                "And {c}?",
                "What about {c}?",
                "How about {c}?",
                "Now for {c}.",
                "The same for {c}.",
                "and in {c}",
            ),
            noise=0.5,
            c=values["city"],
        )
    else:
        if rng.random() < 0.5:
            other = instance(rng, _kind(rng))
            if not set(other.kind.names) & set(kind.names):
                wanted.append(other)
        values = _values(rng, wanted[-1])
        follow = request(rng, wanted[-1], values)
    call = wanted[-1].call(values)
    tools = toolbox(rng, wanted, len(wanted) + rng.choice((0, 0, 1)))
    return Turn(
        "tool_call",
        follow,
        "",
        _call_thought(rng, wanted[-1], values),
        Check("calls", [call]),
        history=history,
        tools=tools,
        calls=(call,),
    )


def research(rng: random.Random) -> Turn:
    """A question that the model cannot answer but a search tool can."""
    tool = instance(rng, next(kind for kind in KINDS if "web_search" in kind.names))
    question = unknown(rng).user
    values: Values = {"query": question.rstrip("?.! ")}
    call = tool.call(values)
    tools = toolbox(rng, [tool], rng.choice((1, 1, 2, 3)))
    return Turn(
        "tool_call",
        question,
        "",
        f"I do not know this. {_call_thought(rng, tool, values)}",
        Check("calls", [call]),
        tools=tools,
        calls=(call,),
        key=f"research {question}",
    )


def no_fit(rng: random.Random) -> Turn:
    """Tools are there, but the request is for something else."""
    kind = rng.random()
    if kind < 0.55:
        task = rng.choice((chat, chat, chat, joke, introduction, fact, capital, basic, opposite, echo, count, city))
        turn = task(rng)
        kinds = [kind for kind in KINDS if task in (chat, joke, introduction) or not UNIVERSAL & set(kind.names)]
        tools = tuple(
            {
                each.name: each for each in (instance(rng, rng.choice(kinds)) for _ in range(rng.choice((1, 1, 2, 3))))
            }.values()
        )
        return replace(
            turn,
            category="tool_none",
            tools=tuple(tool.schema for tool in tools),
            thought=f"No tool is needed. {turn.thought}",
        )
    tool = instance(rng, rng.choice(KINDS))
    values = _values(rng, tool)
    if kind < 0.75 and tool.kind.vague:
        missing = next(param for param in tool.kind.params if not param.said)
        name = tool.names[missing.slot]
        text = say(
            rng,
            ("Please tell me the {n}.", "Which {n} do you mean?", "I need the {n} for that. What is it?"),
            n=name.replace("_", " "),
        )
        return Turn(
            "tool_none",
            phrase(rng, tool.kind.vague, noise=0.7),
            text,
            f"The tool {tool.name} needs {name}, which is missing. I ask for it.",
            Check("has", [name.replace("_", " ")]),
            tools=toolbox(rng, [tool], rng.choice((1, 1, 2))),
        )
    boxed = [schema for schema in toolbox(rng, [tool], rng.choice((2, 3, 4))) if schema is not tool.schema]
    boxed = [schema for schema in boxed if not _general(schema)]
    if not boxed:
        return no_fit(rng)
    return Turn(
        "tool_none",
        request(rng, tool, values),
        rng.choice(REFUSALS),
        f"The user wants {_purpose(tool, values)}. No tool here fits that.",
        Check("unknown"),
        tools=tuple(boxed),
    )


def _general(schema: Tool) -> bool:
    """Whether the tool looks like a general search, which could serve any request."""
    name = schema["function"]["name"].lower()
    return any(part in name for part in ("search", "lookup", "find", "define", "dictionary"))
