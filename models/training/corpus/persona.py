"""System prompts and how they change an answer."""

import json
import random
from dataclasses import replace

from .core import Check, Turn, article, phrase, say
from .lexicon import (
    ADJECTIVES,
    ANIMALS,
    COLOURS,
    COMPANIES,
    DAYS,
    JOBS,
    OBJECTS,
    any_city,
    any_name,
    any_word,
    clock,
    date,
)
from .smalltalk import INTENTS

NEUTRAL = (
    "You are a helpful assistant.", "You are a helpful assistant.", "You are a helpful assistant.", "You are llmk's demo model.", "Be polite and brief.",
    "You are a friendly assistant.", "Answer the user's questions.", "You are an AI assistant that helps people.", "Be helpful.", "You are a useful chatbot.",
    "You are a helpful, respectful and honest assistant.", "You are an expert assistant.", "Answer truthfully.", "You answer in clear sentences.", "Help the user with short answers.",
    "You are a helpful assistant. Use the tools when they fit.", "You are a function calling assistant.", "Think before you answer.", "Respond in English.",
)  # fmt: skip
STYLES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "pirate": (
        ("pirate", "friendly pirate", "pirate captain"),
        ("Arr! ", "Ahoy! ", "Arr, matey! ", "Ahoy, matey! "),
        ("", " Arr!", " Yo ho ho!"),
    ),
    "robot": (
        ("robot", "old robot", "robot from the future"),
        ("Beep boop. ", "Beep. ", "Bzzt. "),
        ("", " Beep.", " End of message."),
    ),
    "cat": (("cat", "sleepy cat", "talking cat"), ("Meow! ", "Purr. ", "Meow, "), ("", " Meow.", " Purr.")),
    "cowboy": (
        ("cowboy", "cowboy from Texas"),
        ("Howdy, partner! ", "Yee-haw! ", "Howdy! "),
        ("", " Yee-haw!", " Ride on, partner."),
    ),
    "wizard": (
        ("wizard", "old wizard", "wise wizard"),
        ("By my beard! ", "Abracadabra! ", "My staff tells me: "),
        ("", " So say the stars.", " Abracadabra!"),
    ),
    "butler": (
        ("butler", "polite butler", "British butler"),
        ("Certainly, sir. ", "Very well. ", "At your service. "),
        ("", " Will that be all, sir?", " Always at your service."),
    ),
    "king": (
        ("king", "king of an old land", "queen"),
        ("Hear me! ", "We, the crown, say: ", "My dear subject! "),
        ("", " So it is decreed.", " The crown has spoken."),
    ),
    "dog": (("dog", "happy dog"), ("Woof! ", "Woof woof! ", "Wag! "), ("", " Woof!", " Shall we play?")),
    "teacher": (
        ("teacher", "kind teacher", "school teacher"),
        ("Good question! ", "Listen well, class. ", "Let us learn. "),
        ("", " Well asked!", " Keep on learning!"),
    ),
    "poet": (
        ("poet", "dreamy poet"),
        ("O gentle friend! ", "Hear my verse: ", "Oh! "),
        ("", " Such is the song of the world.", " So sings the wind."),
    ),
}
_STYLE_PROMPTS = (
    "You are a {s}.", "You are a {s}.", "Talk like a {s}.", "Answer like a {s}.", "You are a {s}. Stay in character.", "Speak like a {s}.", "Pretend to be a {s}.",
    "Act as a {s}.", "You are a {s} who helps people.", "Always answer as a {s} would.", "You are a {s} and answer the user's questions.",
)  # fmt: skip
_ONE_WORD = ("Answer in one word.", "Reply with one word only.", "Answer with a single word.", "One-word answers only.", "Give only the bare answer.", "Answer with just the answer, no sentence.", "Be extremely brief: one word.", "Answer in one word only.", "Respond with a single word or number.")  # fmt: skip
_ONLY_NUMBER = (
    "Answer with only the number.",
    "Only the number, please.",
    "Just the number.",
    "Reply with just the number.",
    "Give only the number.",
    "Answer with a number only.",
)
_UPPER = (
    "You always respond in uppercase.",
    "Respond in uppercase.",
    "Answer in capital letters.",
    "Write everything in uppercase.",
    "Always answer in upper case.",
    "USE ONLY CAPITAL LETTERS.",
    "Shout: write in all caps.",
)
_LOWER = (
    "Answer in lowercase.",
    "Write everything in small letters.",
    "Use only lowercase letters.",
    "Never use capital letters.",
)
_END = (
    "Always end your answer with {x}.",
    "End every answer with {x}.",
    "Finish each reply with {x}.",
    "Add {x} to the end of every answer.",
)
_BEGIN = ("Always start your answer with {x}.", "Begin every answer with {x}.", "Start each reply with {x}.")
_JSON = (
    "Answer in JSON with the key answer.",
    'Always reply with JSON: {"answer": ...}',
    "Respond only with a JSON object with the key answer.",
    "Reply as JSON with the key answer.",
)


def neutral(rng: random.Random, turn: Turn) -> Turn:
    """A system prompt that changes nothing."""
    text = rng.choice(NEUTRAL)
    if rng.random() < 0.25:
        text += rng.choice(
            (
                f" Today is {rng.choice(DAYS)}.",
                f" The user is in {any_city(rng)}.",
                f" The date is {date(rng)}.",
                f" You work for {rng.choice(COMPANIES)}.",
                f" The time is {clock(rng)}.",
            )
        )
    return replace(turn, system=text)


def _changed(turn: Turn, system: str, thought: str, before: str, after: str, marks: tuple[str, ...]) -> Turn:
    """The turn with something around its answers; ``marks`` must be found in them."""
    value = list(turn.check.value) if turn.check.kind == "has" else []
    check = Check("has", value + [part.strip(" ,") for part in marks if part.strip()])
    direct = f"{before}{turn.direct}{after}" if turn.direct else None
    return replace(
        turn,
        system=system,
        category="system",
        text=f"{before}{turn.text}{after}",
        direct=direct,
        thought=f"{thought} {turn.thought}",
        check=check,
    )


def style(rng: random.Random, turn: Turn) -> Turn:
    """A character to speak as."""
    name = rng.choice(tuple(STYLES))
    nouns, befores, afters = STYLES[name]
    return _changed(
        turn,
        phrase(rng, _STYLE_PROMPTS, noise=0.3, s=rng.choice(nouns)),
        f"I speak like a {name}.",
        befores[0],
        rng.choice(afters),
        (befores[0],),
    )


def wrap(rng: random.Random, turn: Turn) -> Turn:
    """A phrase to begin or end with."""
    word = rng.choice(
        (
            any_word(rng),
            any_word(rng).upper() + "!",
            "Over and out.",
            "Have a nice day!",
            "Thank you.",
            "Best wishes",
            f"{any_word(rng)} {any_word(rng)}",
            any_name(rng),
            "DONE",
            "Ok.",
        )
    )
    shown = rng.choice((f"'{word}'", f'"{word}"', word if word[-1].isalpha() else f'"{word}"'))
    if rng.random() < 0.6:
        return _changed(turn, rng.choice(_END).format(x=shown), f"I end with {word}.", "", f" {word}", (word,))
    return _changed(turn, rng.choice(_BEGIN).format(x=shown), f"I start with {word}.", f"{word} ", "", (word,))


def letters(rng: random.Random, turn: Turn) -> Turn:
    """Upper or lower case for all answers."""
    upper = rng.random() < 0.65
    change = str.upper if upper else str.lower
    text, direct = change(turn.text), change(turn.direct) if turn.direct else None
    check = (
        Check("is", text)
        if turn.direct is None and turn.check.kind == "is"
        else Check("case", "upper" if upper else "lower")
    )
    return replace(
        turn,
        system=rng.choice(_UPPER if upper else _LOWER),
        category="system",
        text=text,
        direct=direct,
        thought=f"I use only {'capital' if upper else 'small'} letters. {turn.thought}",
        check=check,
    )


def one_word(rng: random.Random, turn: Turn) -> Turn:
    """The bare answer; the instruction is in the system prompt or in the request."""
    if not turn.short or turn.direct:
        return neutral(rng, turn)
    changed = replace(
        turn,
        category="system",
        text=turn.short,
        direct=None,
        thought=f"Only the bare answer. {turn.thought}",
        check=Check("is", turn.short),
    )
    if rng.random() < 0.4:
        joint = "" if turn.user[-1:] in ".?!" else "."
        return replace(
            changed,
            user=f"{turn.user}{joint} {rng.choice(_ONLY_NUMBER if turn.short.isdigit() and rng.random() < 0.6 else _ONE_WORD)}",
            key=turn.key or turn.user,
        )
    system = rng.choice(_ONE_WORD)
    return replace(changed, system=f"{rng.choice(NEUTRAL)} {system}" if rng.random() < 0.3 else system)


def as_json(rng: random.Random, turn: Turn) -> Turn:
    """The bare answer under one key."""
    if not turn.short:
        return neutral(rng, turn)
    value = {"answer": turn.short}
    return replace(
        turn,
        system=rng.choice(_JSON),
        category="system",
        text=json.dumps(value, ensure_ascii=False),
        direct=None,
        thought=f"I answer as JSON. {turn.thought}",
        check=Check("json", value),
    )


def named(rng: random.Random) -> Turn:
    """An assistant with a name and a company, asked who it is or greeted."""
    name, company = any_name(rng), rng.choice(COMPANIES)
    role = rng.choice(
        (
            "assistant",
            "helper",
            "support assistant",
            "guide",
            "chatbot",
            "support agent",
            f"{rng.choice(ADJECTIVES)} assistant",
            "sales agent",
            "librarian",
            rng.choice(JOBS),
        )
    )
    system = rng.choice(
        (
            "You are {n}, the {r} of {c}.",
            "Your name is {n}. You are the {r} of {c}.",
            "You are {n}, a {r} for {c}. Be kind.",
            "You are {n}, a {r} for {c}.",
            "You are {n}, the helpful {r} of {c}.",
            "Act as {n}, the {r} of {c}.",
            "You are called {n} and work as the {r} of {c}.",
        )
    ).format(n=name, r=role, c=company)
    if rng.random() < 0.6:
        user = phrase(
            rng, [each for each in INTENTS["who"][1] if "model" not in each and "ChatGPT" not in each], noise=0.6
        )
        text = say(
            rng, ("I am {n}, the {r} of {c}.", "My name is {n}. I am the {r} of {c}."), n=name, r=role, c=company
        )
    else:
        user = phrase(rng, INTENTS["hello"][1], noise=0.6)
        text = say(
            rng,
            (
                "Hello! I am {n}, the {r} of {c}. How can I help you?",
                "Hello, this is {n} from {c}. What can I do for you?",
            ),
            n=name,
            r=role,
            c=company,
        )
    return Turn(
        "system",
        user,
        text,
        f"I am {name} of {company}.",
        Check("has", [name, company]),
        system=system,
        key=f"{name} {company} {user}",
    )


def role(rng: random.Random) -> Turn:
    """Any character at all, greeted or asked who it is."""
    noun = rng.choice(
        (
            rng.choice(JOBS),
            rng.choice(ANIMALS),
            "old man",
            "old woman",
            "knight",
            "princess",
            "ghost",
            "alien",
            "clown",
            "student",
            "grandmother",
            "hero",
            rng.choice(OBJECTS),
            any_word(rng),
        )
    )
    who = article(
        f"{rng.choice((*ADJECTIVES, 'grumpy', 'evil', 'famous', 'helpful', 'very old', 'tiny'))} {noun}"
        if rng.random() < 0.7
        else noun
    )
    system = rng.choice(
        (
            "You are {w}.",
            "You are {w}.",
            "Act as {w}.",
            "Pretend to be {w}.",
            "You are {w}. Stay in character.",
            "Play the role of {w}.",
            "Imagine that you are {w}.",
        )
    ).format(w=who)
    if rng.random() < 0.5:
        user = phrase(
            rng, [each for each in INTENTS["who"][1] if "odel" not in each and "ChatGPT" not in each], noise=0.6
        )
        text = say(rng, ("I am {w}.", "I am {w}. How can I help you?", "You are talking to {w}."), w=who)
    else:
        user = phrase(rng, INTENTS["hello"][1], noise=0.6)
        text = say(rng, ("Hello! I am {w}. How can I help you?", "Hello from {w}! What can I do for you?"), w=who)
    return Turn("system", user, text, f"I am {who}.", Check("has", [who]), system=system, key=f"role {who} {user}")


def told(rng: random.Random) -> Turn:
    """A fact in the system prompt, and a question about it."""
    word, name, city, colour = any_word(rng), any_name(rng), any_city(rng), rng.choice(COLOURS)
    day, time, number = rng.choice(DAYS), clock(rng), rng.randint(2, 999)
    fact, questions, answer, value = rng.choice(
        (
            (f"The secret word is {word}.", ("What is the secret word?", "Tell me the secret word."), f"The secret word is {word}.", word),
            (f"The user is called {name}.", ("What is my name?", "Who am I?", "Do you know my name?"), f"Your name is {name}.", name),
            (f"The user's name is {name}.", ("What is my name?", "Who am I?", "Do you know my name?"), f"Your name is {name}.", name),
            (f"The user lives in {city}.", ("Where do I live?", "Which city do I live in?"), f"You live in {city}.", city),
            (f"Today is {day}.", ("What day is it?", "Which day is today?", "What day is it today?"), f"Today is {day}.", day),
            (f"The time is {time}.", ("What time is it?", "How late is it?", "Tell me the time."), f"It is {time}.", time),
            (f"Your favourite colour is {colour}.", ("What is your favourite colour?", "Which colour do you like?"), f"My favourite colour is {colour}.", colour),
            (f"The shop opens at {time}.", ("When does the shop open?", "When do you open?", "At what time does the shop open?"), f"The shop opens at {time}.", time),
            (f"The price of a {word} is {number} dollars.", (f"How much is a {word}?", f"What does a {word} cost?"), f"A {word} costs {number} dollars.", str(number)),
            (f"You come from {city}.", ("Where do you come from?", "Where are you from?"), f"I come from {city}.", city),
        )
    )  # fmt: skip
    system = f"{rng.choice(NEUTRAL)} {fact}" if rng.random() < 0.6 else fact
    return Turn(
        "system",
        phrase(rng, questions, noise=0.6),
        answer,
        f"I was told: {fact}",
        Check("has", [value]),
        short=value,
        system=system,
        key=f"told {value} {fact}",
    )


def dressed(rng: random.Random, turn: Turn) -> Turn:
    """The turn as it is, or under a system prompt that fits its kind of answer."""
    if turn.system is not None or rng.random() < 0.62:
        return turn
    plain = (
        turn.check.kind in ("has", "prose", "unknown")
        and not turn.tools
        and turn.category not in ("stories", "reading")
    )
    if not plain or rng.random() < 0.45:
        return neutral(rng, turn)
    return rng.choice((style, style, style, wrap, letters, one_word, one_word, as_json))(rng, turn)
