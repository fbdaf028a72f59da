"""What a kind of tool is, its parameters, how values are said, and kinds that nobody has seen before."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .core import listing
from .lexicon import (
    NOUNS,
    VERBS,
    any_word,
    identifier,
    invented,
)

Values = dict[str, Any]
STRING: Values = {"type": "string"}
INTEGER: Values = {"type": "integer"}
NUMBER: Values = {"type": "number"}


@dataclass(frozen=True)
class Param:
    """A parameter: names and descriptions it may have, its schema, its value, how it is said.

    ``said`` holds ways to add an optional value to a request; a parameter without them is always required.
    ``shape`` turns the said value into the argument, given the description.
    """

    slot: str
    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    make: Callable[[random.Random], Any]
    schema: Values = field(default_factory=lambda: STRING)
    said: tuple[str, ...] = ()
    shape: Callable[[Any, str], Any] = lambda value, description: value


@dataclass(frozen=True)
class Kind:
    """A family of tools with one purpose. ``purpose`` completes "The user wants …"."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    params: tuple[Param, ...]
    requests: tuple[str, ...]
    result: Callable[[random.Random, Values], Any]
    answers: tuple[str, ...]
    purpose: str
    vague: tuple[str, ...] = ()


def enum(*values: str) -> Values:
    """The schema of a string that is one of the values."""
    return {"type": "string", "enum": list(values)}


def said(value: Any) -> str:
    """A value as people say it in a sentence."""
    if isinstance(value, tuple):
        return value[1]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return listing([str(item) for item in value])
    return str(value)


def _made_up_param(rng: random.Random, name: str) -> Param:
    """A parameter with an arbitrary name, type and value."""
    kind = rng.choice(("word", "integer", "number", "boolean", "enum", "words", "id"))
    description = (
        rng.choice(("", f"The {name} to use", f"{name.capitalize()} of the {any_word(rng)}", f"Sets the {name}")),
    )
    if kind == "enum":
        choices = [any_word(rng) for _ in range(rng.randint(2, 4))]
        return Param(name, (name,), description, lambda rng: rng.choice(choices), enum(*choices))
    makers: dict[str, tuple[Callable[[random.Random], Any], Values]] = {
        "word": (any_word, STRING),
        "integer": (lambda rng: rng.randint(0, 999), INTEGER),
        "number": (lambda rng: round(rng.uniform(0, 99), 1), NUMBER),
        "boolean": (lambda rng: rng.random() < 0.5, {"type": "boolean"}),
        "words": (
            lambda rng: [any_word(rng) for _ in range(rng.randint(1, 3))],
            {"type": "array", "items": {"type": "string"}},
        ),
        "id": (identifier, STRING),
    }
    make, schema = makers[kind]
    return Param(name, (name,), description, make, schema)


def made_up(rng: random.Random) -> Kind:
    """A tool nobody has seen before."""
    verb = rng.choice(VERBS) if rng.random() < 0.6 else invented(rng)
    noun = rng.choice(NOUNS) if rng.random() < 0.6 else invented(rng)
    name = rng.choice((f"{verb}_{noun}", f"{verb}_{noun}", f"{noun}_{verb}", verb, f"{verb}_the_{noun}"))
    params: list[Param] = []
    slots = dict.fromkeys(any_word(rng).lower() for _ in range(rng.randint(0, 4)))
    slots.pop("tool", None)
    for slot in slots:
        param = _made_up_param(rng, slot)
        ways = (
            f" with {slot} {{v}}",
            f" and {slot} {{v}}",
            f", {slot} {{v}}",
            f" using {slot}={{v}}",
            f" The {slot} is {{v}}.",
            f" Set {slot} to {{v}}.",
        )
        params.append(Param(slot, param.names, param.descriptions, param.make, param.schema, ways))
    return Kind(
        (name,),
        (
            f"{verb.capitalize()} the {noun}",
            f"{verb.capitalize()}s a {noun} and reports back",
            f"A tool to {verb} the {noun}",
            "",
        ),
        tuple(params),
        (
            f"Please {verb} the {noun}",
            f"{verb.capitalize()} the {noun}",
            "Call {tool}",
            "Use {tool}",
            f"Can you {verb} the {noun}",
            f"I want to {verb} the {noun}",
            "Run {tool}",
        ),
        lambda rng, values: {
            any_word(rng): rng.choice((any_word(rng), rng.randint(0, 999), True)) for _ in range(rng.randint(1, 3))
        },
        (),
        f"to {verb} the {noun}",
    )
