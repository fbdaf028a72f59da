"""Opposites, words of other languages, and the order of days, months and letters."""

import random

from .core import Check, Turn, phrase, say
from .lexicon import DAYS, MONTHS, entries
from .textops import quoted

OPPOSITES = dict(
    tuple(entry.split("/"))
    for entry in entries("""
hot/cold, big/small, tall/short, old/young, happy/sad, fast/slow, light/dark, hard/soft, heavy/light, strong/weak,
clean/dirty, rich/poor, sweet/sour, deep/shallow, wide/narrow, long/short, early/late, full/empty, open/closed, up/down,
left/right, in/out, good/bad, right/wrong, true/false, yes/no, day/night, black/white, love/hate, start/stop, win/lose,
buy/sell, push/pull, give/take, near/far, high/low, loud/quiet, wet/dry, thick/thin, brave/afraid, easy/difficult,
north/south, east/west, first/last, always/never, above/below, inside/outside, before/after, friend/enemy, peace/war,
summer/winter, laugh/cry, sharp/blunt, smooth/rough, cheap/expensive, safe/dangerous, new/old, cold/hot, small/big,
short/long, young/old, sad/happy, slow/fast, dark/light, soft/hard, weak/strong, dirty/clean, poor/rich, sour/sweet
""")
)
TRANSLATIONS = {
    "French": "good morning/bonjour, good night/bonne nuit, hello/bonjour, goodbye/au revoir, thank you/merci, yes/oui, no/non, cat/chat, dog/chien, house/maison, water/eau, bread/pain, good/bon, friend/ami, red/rouge, one/un, two/deux, three/trois, book/livre, sun/soleil, love/amour, please/s'il vous plaît",
    "German": "good morning/guten Morgen, good night/gute Nacht, hello/hallo, goodbye/auf Wiedersehen, thank you/danke, yes/ja, no/nein, cat/Katze, dog/Hund, house/Haus, water/Wasser, bread/Brot, good/gut, friend/Freund, red/rot, one/eins, two/zwei, three/drei, book/Buch, sun/Sonne, love/Liebe, please/bitte",
    "Spanish": "good morning/buenos días, good night/buenas noches, hello/hola, goodbye/adiós, thank you/gracias, yes/sí, no/no, cat/gato, dog/perro, house/casa, water/agua, bread/pan, good/bueno, friend/amigo, red/rojo, one/uno, two/dos, three/tres, book/libro, sun/sol, love/amor, please/por favor",
    "Italian": "good morning/buongiorno, good night/buona notte, hello/ciao, goodbye/arrivederci, thank you/grazie, yes/sì, no/no, cat/gatto, dog/cane, house/casa, water/acqua, bread/pane, good/buono, friend/amico, red/rosso, one/uno, two/due, three/tre, book/libro, sun/sole, love/amore, please/per favore",
}


def opposite(rng: random.Random) -> Turn:
    """The opposite of a word."""
    word = rng.choice(tuple(OPPOSITES))
    other = OPPOSITES[word]
    user = phrase(
        rng,
        (
            "What is the opposite of {w}?",
            "Give me the opposite of {w}.",
            "What is the antonym of {w}?",
            "The opposite of {w} is?",
            "Opposite of {w}?",
        ),
        w=quoted(rng, word),
    )
    return Turn(
        "facts",
        user,
        f"The opposite of {word} is {other}.",
        f"{word} and {other} are opposites.",
        Check("has", [other]),
        short=other,
    )


def translate(rng: random.Random) -> Turn:
    """A basic word in another language."""
    language = rng.choice(tuple(TRANSLATIONS))
    word, other = rng.choice(entries(TRANSLATIONS[language])).split("/")
    user = phrase(
        rng,
        (
            "How do you say {w} in {l}?",
            "Translate {w} to {l}.",
            "What is {w} in {l}?",
            "Translate {w} into {l}.",
            "{w} in {l}?",
            "What is the {l} word for {w}?",
        ),
        w=quoted(rng, word),
        l=language,
    )
    return Turn(
        "facts",
        user,
        f"In {language}, {word} is {other}.",
        f"{word} is {other} in {language}.",
        Check("has", [other]),
        short=other,
    )


def calendar(rng: random.Random) -> Turn:
    """The day, month or letter before or after another."""
    kind = rng.choice(("day", "month", "letter", "days", "number", "place"))
    if kind == "place":
        at = rng.randrange(26)
        name = {0: "first", 1: "second", 2: "third", 3: "fourth", 4: "fifth", 25: "last"}.get(
            at, f"{at + 1}th" if at not in (20, 21, 22) else f"{at + 1}{('st', 'nd', 'rd')[at - 20]}"
        )
        result = chr(65 + at)
        user = phrase(
            rng,
            (
                "What is the {n} letter of the alphabet?",
                "Which letter is the {n} in the alphabet?",
                "The {n} letter of the alphabet?",
            ),
            n=name,
        )
        counted = " ".join(chr(65 + each) for each in range(at + 1))
        return Turn(
            "facts",
            user,
            f"The {name} letter of the alphabet is {result}.",
            f"I count: {counted}.",
            Check("has", [f"is {result}"]),
            short=result,
        )
    row = {
        "day": DAYS,
        "days": DAYS,
        "month": MONTHS,
        "letter": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        "number": tuple(map(str, range(1, 200))),
    }[kind]
    at = rng.randrange(1, len(row) - 1) if kind in ("letter", "number") else rng.randrange(len(row))
    after = rng.random() < 0.6
    if kind == "days":
        gap = rng.randint(2, 6)
        result = row[(at + gap) % 7]
        user = phrase(
            rng,
            (
                "Today is {d}. Which day is it in {n} days?",
                "If today is {d}, what day is it in {n} days?",
                "What day is {n} days after {d}?",
            ),
            d=row[at],
            n=gap,
        )
        steps = ", ".join(row[(at + step) % 7] for step in range(1, gap + 1))
        return Turn(
            "facts", user, f"It is {result}.", f"After {row[at]} come {steps}.", Check("has", [result]), short=result
        )
    result = row[(at + (1 if after else -1)) % len(row)]
    side = "after" if after else "before"
    ask = ("Which {k} comes {s} {d}?", "What {k} comes {s} {d}?", "What is the {k} {s} {d}?", "What comes {s} {d}?")
    if kind == "day":
        ask += (
            ("If today is {d}, what day is tomorrow?", "Today is {d}. What is tomorrow?")
            if after
            else ("If today is {d}, what day was yesterday?", "Today is {d}. What was yesterday?")
        )
    user = phrase(rng, ask, k=kind, s=side, d=row[at])
    text = say(rng, ("{r} comes {s} {d}.", "The {k} {s} {d} is {r}."), r=result, s=side, d=row[at], k=kind)
    return Turn("facts", user, text, f"{result} comes {side} {row[at]}.", Check("has", [result]), short=result)
