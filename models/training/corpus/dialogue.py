"""Conversations of several turns in which the last request refers back."""

import json
import random
from collections.abc import Callable
from dataclasses import replace

from .arithmetic import basic
from .core import Check, Message, Turn, article, listing, phrase, say, split_of
from .geography import ANSWER, CAPITALS, capital, country, typed
from .knowledge import fact
from .lexicon import (
    ANIMALS,
    COLOURS,
    COMMON,
    COMPANIES,
    DAYS,
    FOODS,
    JOBS,
    NOUNS,
    any_city,
    any_name,
    any_word,
    identifier,
)
from .smalltalk import chat, introduction, joke
from .textops import echo
from .units import exact
from .wordlore import opposite, translate
from .working import SHOWN, apply, working

Task = Callable[[random.Random], Turn]
SIMPLE: tuple[Task, ...] = (chat, joke, fact, capital, basic, introduction, opposite, echo, exact, translate)


def trained(rng: random.Random, tasks: tuple[Task, ...]) -> Turn:
    """A turn of the training split, for use as history: held-out requests must not be seen there either."""
    while True:
        turn = rng.choice(tasks)(rng)
        if split_of(turn.key or turn.user) == "train":
            return turn


def said_in_turns(turn: Turn) -> tuple[Message, Message]:
    """A turn as two messages of a history."""
    return {"role": "user", "content": turn.user}, {"role": "assistant", "content": turn.direct or turn.text}


def chatter(rng: random.Random, turns: int) -> tuple[Message, ...]:
    """Unrelated earlier turns."""
    return tuple(message for _ in range(turns) for message in said_in_turns(trained(rng, SIMPLE)))


_MEMORIES: tuple[tuple[Callable[[random.Random], str], tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    (any_name, ("My name is {x}.", "I am {x}.", "I'm {x}.", "Hi, I am {x}!", "Call me {x}.", "hello, my name is {x}", "Hello! My name is {x}. How are you?", "My name is {x}. What can you do?"), ("Nice to meet you, {x}!", "Hello {x}! How can I help you?"), ("What is my name?", "What's my name?", "Do you remember my name?", "Who am I?", "Do you know my name?", "What am I called?", "Can you tell me my name?"), ("Your name is {x}.", "You are {x}.", "Your name is {x}, as you told me.")),
    (lambda rng: rng.choice(COLOURS), ("My favourite colour is {x}.", "I like {x} most of all colours.", "My favorite color is {x}."), ("{x} is a lovely colour!", "I will remember that you like {x}."), ("What is my favourite colour?", "What's my favorite color?", "Which colour do I like?"), ("Your favourite colour is {x}.",)),
    (any_city, ("I live in {x}.", "I am from {x}.", "I am in {x} at the moment.", "My home is {x}."), ("{x} is surely a nice place!", "How nice that you live in {x}!"), ("Where do I live?", "Which city do I live in?", "Where am I from?", "Do you remember where I live?"), ("You live in {x}.", "You told me that you live in {x}.")),
    (any_name, ("My {a} is called {x}.", "I have a {a} called {x}.", "I have a {a} named {x}."), ("{x} is a good name for a {a}!", "Say hello to {x} from me!"), ("What is the name of my {a}?", "What is my {a} called?", "How is my {a} called?", "What's my {a}'s name?"), ("Your {a} is called {x}.",)),
    (lambda rng: str(rng.randint(2, 9999)), ("Remember the number {x}.", "My lucky number is {x}.", "Please remember {x}.", "The number is {x}.", "The secret number is {x}."), ("I will remember the number {x}.", "All right: {x}."), ("What was the number?", "Which number did I tell you?", "What is the number?", "Do you remember the number?", "Tell me the number."), ("The number is {x}.", "You told me the number {x}.")),
    (any_word, ("Remember the word {x}.", "The secret word is {x}.", "The password is {x}.", "The code word is {x}."), ("I will remember the word {x}.", "All right, the word is {x}."), ("What was the word?", "Which word did I tell you?", "What is the secret word?", "Do you remember the word?", "What is the password?"), ("The word is {x}.",)),
    (lambda rng: rng.choice(JOBS), ("I am a {x}.", "I work as a {x}.", "My job is {x}."), ("It must be interesting to be a {x}!", "A {x} has much to do!"), ("What is my job?", "What do I do for a living?", "What do I work as?"), ("You are a {x}.", "You work as a {x}.")),
    (lambda rng: rng.choice(FOODS), ("My favourite food is {x}.", "I love {x}.", "I like to eat {x}."), ("{x} is a good choice!", "I hope that you get some {x} today."), ("What is my favourite food?", "What do I like to eat?", "What food do I like?"), ("You like {x}.", "Your favourite food is {x}.")),
    (identifier, ("My order number is {x}.", "The code is {x}.", "My ticket is {x}.", "The key is {x}."), ("I have noted {x}.", "Thank you. I have noted {x}."), ("What is my order number?", "What was the code?", "Which number did I give you?", "Repeat the code."), ("It is {x}.", "You gave me {x}.")),
    (lambda rng: str(rng.randint(5, 99)), ("I am {x} years old.", "I'm {x}.", "My age is {x}.", "I turned {x} today."), ("{x} is a good age!", "Thank you for telling me that you are {x}."), ("How old am I?", "What is my age?", "Do you know how old I am?"), ("You are {x} years old.",)),
)  # fmt: skip


def memory(rng: random.Random) -> Turn:
    """One or two facts about the user, and a later question about one of them."""
    chosen = rng.sample(_MEMORIES, rng.choice((1, 1, 1, 2)))
    history: list[Message] = []
    if rng.random() < 0.3:
        history += chatter(rng, 1)
    asked = rng.randrange(len(chosen))
    question = answer = value = ""
    animal = rng.choice(ANIMALS)
    for at, (make, tells, notes, questions, answers) in enumerate(chosen):
        x = make(rng)
        told = phrase(rng, tells, noise=0.6, x=x, a=animal)
        note = say(rng, notes, x=x, a=animal)
        history += [{"role": "user", "content": told}, {"role": "assistant", "content": note[0].upper() + note[1:]}]
        history += chatter(rng, rng.choice((0, 0, 1, 2)))
        if at == asked:
            question, answer, value = phrase(rng, questions, noise=0.6, a=animal), say(rng, answers, x=x, a=animal), x
    return Turn(
        "multi_turn",
        question,
        answer,
        f"The user told me this: {value}.",
        Check("has", [value]),
        short=value,
        history=tuple(history),
        key=f"memory {value} {question}",
    )


def not_told(rng: random.Random) -> Turn:
    """A question about the user that was never answered."""
    questions = rng.choice([memory[3] for memory in _MEMORIES])
    user = phrase(rng, questions, noise=0.6, a=rng.choice(ANIMALS))
    text = say(
        rng,
        (
            "I do not know, because you have not told me yet.",
            "You have not told me yet.",
            "I do not know. You have not told me.",
        ),
    )
    history = tuple(
        message
        for _ in range(rng.choice((0, 0, 1, 2)))
        for message in said_in_turns(trained(rng, (joke, fact, capital, basic)))
    )
    return Turn("unknown", user, text, "The user has not told me this.", Check("unknown"), history=history)


def next_capital(rng: random.Random) -> Turn:
    """``And of Italy?``"""
    history = list(said_in_turns(trained(rng, (capital,))))
    for _ in range(rng.choice((0, 0, 1))):
        name = country(rng)
        history += [
            {"role": "user", "content": f"And of {name}?"},
            {"role": "assistant", "content": say(rng, ANSWER, c=name, k=CAPITALS[name])},
        ]
    name = country(rng)
    user = phrase(
        rng,
        (
            "And of {c}?",
            "And {c}?",
            "What about {c}?",
            "How about {c}?",
            "and of {c}",
            "And the capital of {c}?",
            "{c}?",
            "Now {c}.",
            "The same for {c}?",
        ),
        noise=0.6,
        c=typed(rng, name),
    )
    city = CAPITALS[name]
    return Turn(
        "multi_turn",
        user,
        say(rng, ANSWER, c=name, k=city),
        f"Now the user asks for the capital of {name}. It is {city}.",
        Check("has", [city]),
        short=city,
        history=tuple(history),
    )


def next_sum(rng: random.Random) -> Turn:
    """``Add 5 to that.``"""
    first = trained(rng, (basic,))
    while not first.short or len(first.short) > 3 or first.short.startswith("-"):
        first = trained(rng, (basic,))
    value = int(first.short)
    operator = rng.choice("++-**" if value > 0 else "+")
    other = rng.randint(2, 12) if operator == "*" else rng.randint(1, 60)
    if operator == "-" and other > value:
        operator = "+"
    ask = {
        "+": ("Add {n} to that.", "And plus {n}?", "Plus {n}?", "Now add {n}.", "And if you add {n}?", "add {n} to it"),
        "-": ("Subtract {n} from that.", "Minus {n}?", "Now take away {n}.", "And minus {n}?", "subtract {n}"),
        "*": ("Multiply that by {n}.", "Times {n}?", "And times {n}?", "Now multiply by {n}.", "multiply it by {n}"),
    }[operator]
    result = apply(value, operator, other)
    text = f"{value} {SHOWN[operator]} {other} = {result}."
    return Turn(
        "multi_turn",
        phrase(rng, ask, noise=0.6, n=other),
        text,
        f"The last result was {value}. {working(value, operator, other)}",
        Check("has", [str(result)]),
        short=str(result),
        history=said_in_turns(first),
        key=f"then {value}{operator}{other}",
    )


def repeat(rng: random.Random) -> Turn:
    """Repeat the last answer or an earlier question."""
    turns = [trained(rng, (capital, basic, fact, opposite, echo, exact)) for _ in range(rng.choice((1, 2, 3)))]
    history = tuple(message for turn in turns for message in said_in_turns(turn))
    kind = rng.choice(("answer", "question", "first"))
    if kind == "answer":
        ask: tuple[str, ...] = (
            "Repeat that.",
            "Say that again.",
            "Can you repeat that?",
            "What did you say?",
            "Repeat your last answer.",
            "Pardon?",
            "Please say it again.",
        )
        text = str(history[-1]["content"])
        return Turn(
            "multi_turn",
            phrase(rng, ask, noise=0.6),
            text,
            "I repeat my last answer.",
            Check("is", text),
            history=history,
            key=f"repeat {text}",
        )
    asked = turns[-1].user if kind == "question" else turns[0].user
    ask = (
        ("What did I just ask?", "What was my last question?", "Repeat my last message.", "What did I say?")
        if kind == "question"
        else ("What did I ask first?", "What was my first question?", "What was the first thing I said?")
    )
    return Turn(
        "multi_turn",
        phrase(rng, ask, noise=0.6),
        f'You wrote: "{asked}"',
        f"I look at the {'last' if kind == 'question' else 'first'} message.",
        Check("has", [asked]),
        history=history,
        key=f"repeat {asked}",
    )


def transform(rng: random.Random) -> Turn:
    """Change the last answer: upper case, reversed, as JSON, another one."""
    kind = rng.choice(("upper", "lower", "json", "short", "another"))
    first = trained(rng, (capital, opposite, translate, basic))
    history = said_in_turns(replace(first, direct=None))
    if kind == "another":
        return replace(
            joke(rng),
            user=phrase(
                rng, ("Another one.", "One more.", "Another one please!", "Tell me another one.", "More!"), noise=0.6
            ),
            history=said_in_turns(joke(rng)),
            category="multi_turn",
        )
    if kind == "json":
        value = {"answer": first.short}
        return Turn(
            "multi_turn",
            phrase(
                rng,
                (
                    "As JSON with the key answer, please.",
                    "Give me that as JSON with the key answer.",
                    "Now as JSON with key answer.",
                ),
                noise=0.5,
            ),
            json.dumps(value),
            f"The answer was {first.short}.",
            Check("json", value),
            history=history,
            key=f"json {first.user}",
        )
    if kind == "short":
        return Turn(
            "multi_turn",
            phrase(
                rng, ("Just the answer, please.", "In one word?", "Shorter, please.", "Only the answer."), noise=0.5
            ),
            str(first.short),
            f"The bare answer is {first.short}.",
            Check("is", first.short),
            history=history,
            key=f"short {first.user}",
        )
    text = first.text.upper() if kind == "upper" else first.text.lower()
    name = {"upper": ("uppercase", "capital letters"), "lower": ("lowercase", "small letters")}[kind]
    return Turn(
        "multi_turn",
        phrase(rng, ("Now in {n}.", "Write that in {n}.", "Please repeat it in {n}."), noise=0.5, n=rng.choice(name)),
        text,
        "I write my last answer again.",
        Check("is", text),
        history=history,
        key=f"{kind} {first.user}",
    )


def reading(rng: random.Random) -> Turn:
    """A question about a short text that is given."""
    people = list(dict.fromkeys(any_name(rng) for _ in range(rng.randint(2, 5))))
    kind = rng.choice(("has", "lives", "day", "works", "likes"))
    values = {
        "has": rng.sample(NOUNS, len(people)),
        "lives": list(dict.fromkeys(any_city(rng) for _ in range(30)))[: len(people)],
        "day": rng.sample(DAYS, len(people)),
        "works": [article(job) for job in rng.sample(JOBS, len(people))],
        "likes": rng.sample(COMMON, len(people)),
    }[kind]
    form = {
        "has": "{n} has the {v}.",
        "lives": "{n} lives in {v}.",
        "day": "{n} comes on {v}.",
        "works": "{n} works as {v}.",
        "likes": "{n} likes {v}.",
    }[kind]
    text = " ".join(form.format(n=name, v=value) for name, value in zip(people, values, strict=True))
    at = rng.randrange(len(people))
    name, value = people[at], values[at]
    if rng.random() < 0.6:
        ask = {
            "has": "What does {n} have?",
            "lives": "Where does {n} live?",
            "day": "When does {n} come?",
            "works": "What does {n} work as?",
            "likes": "What does {n} like?",
        }[kind]
        result = value
    else:
        ask = {
            "has": "Who has the {v}?",
            "lives": "Who lives in {v}?",
            "day": "Who comes on {v}?",
            "works": "Who works as {v}?",
            "likes": "Who likes {v}?",
        }[kind]
        result = name
    question = ask.format(n=name, v=value)
    user = rng.choice(
        (
            f"{text} {question}",
            f"{text}\n{question}",
            f"Read this: {text}\n\nQuestion: {question}",
            f"{question}\n{text}",
            f"Text: {text}\nQuestion: {question}",
        )
    )
    answer = form.format(n=name, v=value)
    pairs = "; ".join(f"{thing} is {person}" for person, thing in zip(people, values, strict=True))
    thought = (
        f"The text says: {answer}" if result == value else f"I go through the text: {pairs}. So {value} is {name}."
    )
    return Turn("reading", user, answer, thought, Check("has", [result]), short=result)


def gist(rng: random.Random) -> Turn:
    """Say in a sentence what a short text is about."""
    names = list(dict.fromkeys(any_name(rng) for _ in range(rng.randint(1, 3))))
    things = rng.sample(NOUNS, len(names))
    forms = (
        "{n} has a new {v}.",
        "{n} likes the {v}.",
        "{n} is looking for the {v}.",
        "{n} sat near the {v}.",
        "{n} sold the {v}.",
        "The {v} belongs to {n}.",
    )
    text = " ".join(rng.choice(forms).format(n=name, v=thing) for name, thing in zip(names, things, strict=True))
    if rng.random() < 0.4:
        text += rng.choice((" It was a good day.", " Everyone was happy.", " The weather was fine.", " It was late."))
    user = phrase(
        rng,
        (
            "Summarize: {t}",
            "Summarize the following text: {t}",
            "Summarize this in one sentence: {t}",
            "What is this text about? {t}",
            "Give me a short summary of this: {t}",
            "TL;DR: {t}",
        ),
        noise=0.5,
        t=text,
    )
    answer = f"The text is about {listing(names)}, with the {listing(things)}."
    return Turn(
        "reading",
        user,
        answer,
        f"The text names {listing(names)} and the {listing(things)}.",
        Check("has", [*names, *things]),
    )


def summary(rng: random.Random) -> Turn:
    """List the things named in the request."""
    things = rng.sample(NOUNS, rng.randint(3, 5))
    shop = rng.choice(COMPANIES)
    user = phrase(
        rng,
        (
            "I bought {s} at {c}. List what I bought.",
            "On the table at {c} are {s}. What is on the table?",
            "My list: {s}. Repeat my list.",
        ),
        noise=0.6,
        s=listing(things),
        c=shop,
    )
    text = listing(things)
    return Turn(
        "reading", user, text[0].upper() + text[1:] + ".", f"The things are {', '.join(things)}.", Check("has", things)
    )
