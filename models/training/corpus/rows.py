"""Counting, sorting and listing."""

import random

from .arithmetic import NUMBER_WORDS
from .core import Check, Turn, listing, phrase
from .lexicon import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLOURS,
    FOODS,
    FRUITS,
    JOBS,
    LANGUAGES,
    NAMES,
    OBJECTS,
    VEGETABLES,
    VERBS,
    any_word,
)

GROUPS = {
    "animals": ANIMALS[:-2],
    "fruits": FRUITS,
    "vegetables": VEGETABLES,
    "colours": COLOURS,
    "colors": COLOURS,
    "jobs": JOBS,
    "foods": FOODS,
    "names": NAMES,
    "objects": OBJECTS,
    "professions": JOBS,
    "things in a house": OBJECTS,
    "cities": CITIES,
    "languages": LANGUAGES,
    "adjectives": ADJECTIVES,
    "verbs": VERBS,
    "drinks": ("water", "tea", "coffee", "juice", "milk", "lemonade", "cocoa", "soup"),
    "sports": ("football", "tennis", "chess", "swimming", "running", "cycling", "golf", "hockey", "boxing", "rowing"),
    "planets": ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
}


def count(rng: random.Random) -> Turn:
    """Count up or down, in steps."""
    kind = rng.choice(("up", "up", "up", "down", "even", "odd", "step", "multiples"))
    start, step = rng.choice((1, 1, 1, 0, rng.randint(2, 60))), 1
    end = start + rng.choice((rng.randint(2, 12), rng.randint(9, 50), 9, 19, 99))
    if kind == "up":
        ask = (
            "Count from {a} to {b}.",
            "Count from {a} to {b}",
            "Please count from {a} to {b}.",
            "List the numbers from {a} to {b}.",
            "Write the numbers {a} to {b}.",
            "Print all numbers between {a} and {b}.",
        )
        if start == 1:
            ask += ("Count to {b}.", "Can you count to {b}?", "List the first {b} numbers.", "Count up to {b}.")
            if end < len(NUMBER_WORDS):
                return Turn(
                    "counting",
                    phrase(
                        rng,
                        ("Count to {b}.", "Count from one to {b}.", "Can you count to {b}?", "count to {b}"),
                        b=NUMBER_WORDS[end],
                    ),
                    ", ".join(map(str, range(1, end + 1))),
                    f"I start with 1 and go to {end}.",
                    Check("is", ", ".join(map(str, range(1, end + 1)))),
                )
    elif kind == "down":
        ask, step = (
            ("Count down from {b} to {a}.", "Count backwards from {b} to {a}.", "Count from {b} down to {a}."),
            -1,
        )
        end = min(end, start + 30)
    elif kind in ("even", "odd"):
        start, step = start + (start % 2 != (kind == "odd")), 2
        end = start + 2 * rng.randint(2, 15)
        ask = (f"List the {kind} numbers from {{a}} to {{b}}.", f"Write the {kind} numbers between {{a}} and {{b}}.")
    elif kind == "step":
        step = rng.choice((2, 3, 5, 10, 4))
        end = start + step * rng.randint(3, 12)
        ask = (
            f"Count from {{a}} to {{b}} by {step}s.",
            f"Count by {step}s from {{a}} to {{b}}.",
            f"Count from {{a}} to {{b}} in steps of {step}.",
        )
    else:
        step = start = rng.randint(2, 12)
        end = step * rng.choice((5, 10, 10, 12))
        ask = (
            f"List the first {end // step} multiples of {step}.",
            f"Write the times table of {step} up to {end}.",
            f"What are the first {end // step} multiples of {step}?",
        )
    row = range(start, end + 1, step) if step > 0 else range(end, start - 1, -1)
    text = ", ".join(map(str, row))
    thought = f"I start with {row[0]} and go to {row[-1]}" + (f" in steps of {abs(step)}." if abs(step) != 1 else ".")
    return Turn(
        "counting",
        phrase(rng, ask, a=start, b=end),
        text,
        thought,
        Check("is", text),
        key=f"count {start} {end} {step}",
    )


def sort(rng: random.Random) -> Turn:
    """Sort words or numbers."""
    size = rng.randint(3, 6)
    backwards = rng.random() < 0.3
    if rng.random() < 0.5:
        row = rng.sample(range(1, rng.choice((20, 100, 1000))), size)
        ordered = sorted(row, reverse=backwards)
        how = (
            ("from largest to smallest", "in descending order")
            if backwards
            else ("from smallest to largest", "in ascending order", "in order")
        )
        user = phrase(
            rng,
            ("Sort these numbers {h}: {s}", "Put {s} {h}.", "Sort {s} {h}.", "Order {s} {h}."),
            h=rng.choice(how),
            s=", ".join(map(str, row)),
        )
    else:
        row = list(dict.fromkeys(any_word(rng).lower() for _ in range(size)))
        ordered = sorted(row)
        user = phrase(
            rng,
            (
                "Sort these words: {s}",
                "Sort these words alphabetically: {s}",
                "Put {s} in alphabetical order.",
                "Alphabetize {s}.",
            ),
            s=", ".join(row),
        )
    text = ", ".join(map(str, ordered))
    steps = [
        f"{each} leaves {', '.join(str(other) for other in row if other not in ordered[: at + 1])}"
        for at, each in enumerate(ordered[:-1])
    ]
    thought = f"I take one after the other: {'; '.join(steps)}; {ordered[-1]}."
    return Turn("text", user, text, thought, Check("is", text))


def list_things(rng: random.Random) -> Turn:
    """List a few members of a group, as a sentence, as lines or numbered."""
    group = rng.choice(tuple(GROUPS))
    size = rng.randint(2, 8)
    things = rng.sample(GROUPS[group], size)
    amount = rng.choice((str(size), NUMBER_WORDS[size]))
    style = rng.choice(("plain", "plain", "lines", "numbered"))
    extra = {
        "plain": ("", "", "", " separated by commas"),
        "lines": (" as a bullet list", " as bullet points", ", one per line with a dash"),
        "numbered": (" as a numbered list", ", numbered", " in a numbered list"),
    }[style]
    user = phrase(
        rng,
        (
            "List {n} {g}{e}.",
            "Name {n} {g}{e}.",
            "Give me {n} {g}{e}.",
            "Tell me {n} {g}{e}.",
            "Write {n} {g}{e}.",
            "Can you list {n} {g}{e}?",
            "I need {n} {g}{e}.",
        ),
        n=amount,
        g=group,
        e=rng.choice(extra),
    )
    if style == "plain" and "commas" in user:
        text = ", ".join(things)
    elif style == "plain":
        text = listing(things) + "."
        text = text[0].upper() + text[1:]
    else:
        text = "\n".join(f"{'-' if style == 'lines' else f'{at}.'} {thing}" for at, thing in enumerate(things, 1))
    return Turn(
        "lists",
        user,
        text,
        f"{size} {group}, {'as a sentence' if style == 'plain' else 'line by line'}.",
        Check("count", size),
    )
