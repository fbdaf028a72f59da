"""Small text tasks: spelling, reversing, cases, counting, sorting, lists and opposites."""

import random

from .core import Check, Turn, listing, phrase, say
from .lexicon import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLOURS,
    DAYS,
    FOODS,
    FRUITS,
    JOBS,
    LANGUAGES,
    MONTHS,
    NAMES,
    OBJECTS,
    VEGETABLES,
    VERBS,
    any_name,
    any_word,
    entries,
    invented,
    sentence,
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
SMALL_NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()


def _word(rng: random.Random) -> str:
    """A word to work on."""
    word = rng.choice((any_word(rng), any_word(rng), any_name(rng), invented(rng, (1, 2))))
    return word if rng.random() < 0.8 else word.capitalize()


def _quoted(rng: random.Random, text: str) -> str:
    """The text as people mark it in a request."""
    return rng.choice((f"'{text}'", f'"{text}"', f'"{text}"', text, text))


def spell(rng: random.Random) -> Turn:
    """Spell a word letter by letter."""
    word = _word(rng)
    letters = "-".join(word.upper()) if rng.random() < 0.3 else "-".join(word)
    upper = letters.isupper()
    ask = ("Spell {w} in capital letters.", "Spell the word {w} with capital letters.") if upper else (
        "Spell {w}.", "Spell the word {w}.", "How do you spell {w}?", "How is {w} spelled?", "Can you spell {w}?", "spell {w} for me", "Please spell {w} letter by letter.")
    user = phrase(rng, ask, w=_quoted(rng, word))
    return Turn("text", user, letters, f"The letters of {word} are {' '.join(word)}.", Check("is", letters), key=f"spell {word}")


def reverse(rng: random.Random) -> Turn:
    """Reverse a word, or the order of words."""
    if rng.random() < 0.25:
        row = [any_word(rng) for _ in range(rng.randint(2, 6))]
        user = phrase(rng, ("Reverse the order of these words: {w}", "Put these words in reverse order: {w}", "Reverse this list: {w}"), w=", ".join(row))
        text = ", ".join(reversed(row))
        return Turn("text", user, text, f"The last word is {row[-1]} and the first is {row[0]}.", Check("is", text))
    word = _word(rng)
    text = word[::-1]
    user = phrase(
        rng,
        ("Reverse the word {w}.", "Reverse {w}.", "What is {w} backwards?", "Write {w} backwards.", "Spell {w} backwards.", "Reverse the string {w}.",
         "Reverse the letters of {w}.", "Please write the word {w} in reverse."),
        w=_quoted(rng, word),
    )
    spelt = f"{' '.join(word)}, reversed {' '.join(text)}."
    return Turn("text", user, text, f"The letters are {spelt}", Check("is", text), key=f"reverse {word}")


def case(rng: random.Random) -> Turn:
    """Upper case, lower case and title case."""
    source = rng.choice((_word(rng), sentence(rng), sentence(rng)))
    kind = rng.choice(("upper", "upper", "lower", "title"))
    if kind == "lower":
        source = rng.choice((source.upper(), source.title()))
    text = {"upper": source.upper(), "lower": source.lower(), "title": source.title()}[kind]
    ask = {
        "upper": ("Write {w} in uppercase.", "Uppercase: {w}", "Convert {w} to upper case.", "Put {w} in capital letters.", "Make {w} uppercase.", "Write this in capital letters: {w}", "Uppercase the text {w}.", "Capitalize all letters of {w}."),
        "lower": ("Write {w} in lowercase.", "Lowercase: {w}", "Convert {w} to lower case.", "Make {w} lowercase.", "Put {w} in small letters."),
        "title": ("Write {w} in title case.", "Capitalize each word: {w}", "Convert {w} to title case."),
    }[kind]
    return Turn("text", phrase(rng, ask, w=_quoted(rng, source)), text, f"I write it in {kind} case.", Check("is", text), key=f"{kind} {source}")


def letters(rng: random.Random) -> Turn:
    """Count letters, vowels or one letter; find the first, last or a given letter."""
    word = _word(rng)
    kind = rng.choice(("length", "length", "vowels", "one", "one", "first", "last", "nth"))
    shown, q = " ".join(word), _quoted(rng, word)
    if kind == "length":
        user = phrase(rng, ("How many letters are in {w}?", "How many letters does {w} have?", "Count the letters in {w}.", "What is the length of {w}?", "How long is the word {w}?"), w=q)
        numbered = " ".join(f"{letter}{at}" for at, letter in enumerate(word, 1))
        result = str(len(word))
        text, thought = f"The word {word} has {result} letters.", f"I count: {numbered}."
        if result == "1":
            text = text.replace("letters", "letter")
    elif kind == "vowels":
        found = [letter for letter in word if letter.lower() in "aeiou"]
        user = phrase(rng, ("How many vowels are in {w}?", "Count the vowels in {w}.", "How many vowels does {w} have?"), w=q)
        result = str(len(found))
        text, thought = f"The word {word} has {result} vowel{'s' * (len(found) != 1)}.", f"{shown}. The vowels are {' '.join(found) or 'none'}, so {result}."
    elif kind == "one":
        letter = rng.choice(word.lower()) if rng.random() < 0.85 else rng.choice("aeiorst")
        count = word.lower().count(letter)
        user = phrase(rng, ("How many times does the letter {l} occur in {w}?", "How many {l}'s are in {w}?", "Count the letter {l} in {w}.", "How often is {l} in {w}?", "How many {l} are in {w}?"), l=letter, w=q)
        result = str(count)
        marks = " ".join(f"{each} yes" if each.lower() == letter else each for each in word)
        text, thought = f"The letter {letter} occurs {result} time{'s' * (count != 1)} in {word}.", f"{marks}. That is {result}."
    else:
        at = {"first": 0, "last": len(word) - 1}.get(kind, rng.randrange(len(word)))
        place = {0: "first", 1: "second", 2: "third", 3: "fourth", 4: "fifth"}.get(at, "last")
        at = len(word) - 1 if place == "last" or kind == "last" else at
        place = "last" if kind == "last" else place
        user = phrase(rng, ("What is the {p} letter of {w}?", "Which letter comes {p} in {w}?", "Tell me the {p} letter of {w}."), p=place, w=q)
        result = word[at]
        text, thought = f"The {place} letter of {word} is {result}.", f"{shown}. The {place} letter is {result}."
    return Turn("text", user, text, thought, Check("has", [f" {result}"]), short=result, key=f"{kind} {word}")


def echo(rng: random.Random) -> Turn:
    """Repeat a text, once or several times."""
    source = rng.choice((sentence(rng), _word(rng), sentence(rng)))
    if rng.random() < 0.7:
        user = phrase(rng, ("Repeat after me: {w}", "Say {w}.", "Say: {w}", "Repeat: {w}", "Write {w}.", "Echo {w}", "Please say {w}", "Just answer {w}.", "Reply with {w}", "Answer only with {w}", "Respond with the text {w}", "Repeat this: {w}", "Say the word {w}.", "Say the words {w}", "Write the word {w}", "Repeat the sentence {w}", "Please repeat {w}", "Echo back {w}", "Copy this: {w}", "Output {w}"), noise=0.5, w=_quoted(rng, source))
        return Turn("text", user, source, "I repeat the text.", Check("is", source), key=f"echo {source}")
    times = rng.choice((2, 3, 3, 4, 5, rng.randint(2, 10)))
    word = _word(rng) if rng.random() < 0.6 else sentence(rng)
    user = phrase(rng, ("Write {w} {n} times.", "Repeat the word {w} {n} times.", "Say {w} {n} times.", "Say {w} {n} times, please"), w=_quoted(rng, word), n=rng.choice((str(times), SMALL_NUMBERS[times])))
    text = " ".join([word] * times)
    return Turn("text", user, text, f"{word}, {times} times.", Check("is", text), key=f"echo {word} {times}")


def count(rng: random.Random) -> Turn:
    """Count up or down, in steps."""
    kind = rng.choice(("up", "up", "up", "down", "even", "odd", "step", "multiples"))
    start, step = rng.choice((1, 1, 1, 0, rng.randint(2, 60))), 1
    end = start + rng.choice((rng.randint(2, 12), rng.randint(9, 50), 9, 19, 99))
    if kind == "up":
        ask = ("Count from {a} to {b}.", "Count from {a} to {b}", "Please count from {a} to {b}.", "List the numbers from {a} to {b}.", "Write the numbers {a} to {b}.", "Print all numbers between {a} and {b}.")
        if start == 1:
            ask += ("Count to {b}.", "Can you count to {b}?", "List the first {b} numbers.", "Count up to {b}.")
            if end < len(SMALL_NUMBERS):
                return Turn("counting", phrase(rng, ("Count to {b}.", "Count from one to {b}.", "Can you count to {b}?", "count to {b}"), b=SMALL_NUMBERS[end]), ", ".join(map(str, range(1, end + 1))), f"I start with 1 and go to {end}.", Check("is", ", ".join(map(str, range(1, end + 1)))))
    elif kind == "down":
        ask, step = ("Count down from {b} to {a}.", "Count backwards from {b} to {a}.", "Count from {b} down to {a}."), -1
        end = min(end, start + 30)
    elif kind in ("even", "odd"):
        start, step = start + (start % 2 != (kind == "odd")), 2
        end = start + 2 * rng.randint(2, 15)
        ask = (f"List the {kind} numbers from {{a}} to {{b}}.", f"Write the {kind} numbers between {{a}} and {{b}}.")
    elif kind == "step":
        step = rng.choice((2, 3, 5, 10, 4))
        end = start + step * rng.randint(3, 12)
        ask = (f"Count from {{a}} to {{b}} by {step}s.", f"Count by {step}s from {{a}} to {{b}}.", f"Count from {{a}} to {{b}} in steps of {step}.")
    else:
        step = start = rng.randint(2, 12)
        end = step * rng.choice((5, 10, 10, 12))
        ask = (f"List the first {end // step} multiples of {step}.", f"Write the times table of {step} up to {end}.", f"What are the first {end // step} multiples of {step}?")
    row = range(start, end + 1, step) if step > 0 else range(end, start - 1, -1)
    text = ", ".join(map(str, row))
    thought = f"I start with {row[0]} and go to {row[-1]}" + (f" in steps of {abs(step)}." if abs(step) != 1 else ".")
    return Turn("counting", phrase(rng, ask, a=start, b=end), text, thought, Check("is", text), key=f"count {start} {end} {step}")


def sort(rng: random.Random) -> Turn:
    """Sort words or numbers."""
    size = rng.randint(3, 6)
    backwards = rng.random() < 0.3
    if rng.random() < 0.5:
        row = rng.sample(range(1, rng.choice((20, 100, 1000))), size)
        ordered = sorted(row, reverse=backwards)
        how = ("from largest to smallest", "in descending order") if backwards else ("from smallest to largest", "in ascending order", "in order")
        user = phrase(rng, ("Sort these numbers {h}: {s}", "Put {s} {h}.", "Sort {s} {h}.", "Order {s} {h}."), h=rng.choice(how), s=", ".join(map(str, row)))
    else:
        row = list(dict.fromkeys(any_word(rng).lower() for _ in range(size)))
        ordered = sorted(row)
        user = phrase(rng, ("Sort these words: {s}", "Sort these words alphabetically: {s}", "Put {s} in alphabetical order.", "Alphabetize {s}."), s=", ".join(row))
    text = ", ".join(map(str, ordered))
    steps = [f"{each} leaves {', '.join(str(other) for other in row if other not in ordered[: at + 1])}" for at, each in enumerate(ordered[:-1])]
    thought = f"I take one after the other: {'; '.join(steps)}; {ordered[-1]}."
    return Turn("text", user, text, thought, Check("is", text))


def list_things(rng: random.Random) -> Turn:
    """List a few members of a group, as a sentence, as lines or numbered."""
    group = rng.choice(tuple(GROUPS))
    size = rng.randint(2, 8)
    things = rng.sample(GROUPS[group], size)
    amount = rng.choice((str(size), SMALL_NUMBERS[size]))
    style = rng.choice(("plain", "plain", "lines", "numbered"))
    extra = {
        "plain": ("", "", "", " separated by commas"),
        "lines": (" as a bullet list", " as bullet points", ", one per line with a dash"),
        "numbered": (" as a numbered list", ", numbered", " in a numbered list"),
    }[style]
    user = phrase(rng, ("List {n} {g}{e}.", "Name {n} {g}{e}.", "Give me {n} {g}{e}.", "Tell me {n} {g}{e}.", "Write {n} {g}{e}.", "Can you list {n} {g}{e}?", "I need {n} {g}{e}."), n=amount, g=group, e=rng.choice(extra))
    if style == "plain" and "commas" in user:
        text = ", ".join(things)
    elif style == "plain":
        text = listing(things) + "."
        text = text[0].upper() + text[1:]
    else:
        text = "\n".join(f"{'-' if style == 'lines' else f'{at}.'} {thing}" for at, thing in enumerate(things, 1))
    return Turn("lists", user, text, f"{size} {group}, {'as a sentence' if style == 'plain' else 'line by line'}.", Check("count", size))


def opposite(rng: random.Random) -> Turn:
    """The opposite of a word."""
    word = rng.choice(tuple(OPPOSITES))
    other = OPPOSITES[word]
    user = phrase(rng, ("What is the opposite of {w}?", "Give me the opposite of {w}.", "What is the antonym of {w}?", "The opposite of {w} is?", "Opposite of {w}?"), w=_quoted(rng, word))
    return Turn("facts", user, f"The opposite of {word} is {other}.", f"{word} and {other} are opposites.", Check("has", [other]), short=other)


def translate(rng: random.Random) -> Turn:
    """A basic word in another language."""
    language = rng.choice(tuple(TRANSLATIONS))
    word, other = rng.choice(entries(TRANSLATIONS[language])).split("/")
    user = phrase(rng, ("How do you say {w} in {l}?", "Translate {w} to {l}.", "What is {w} in {l}?", "Translate {w} into {l}.", "{w} in {l}?", "What is the {l} word for {w}?"), w=_quoted(rng, word), l=language)
    return Turn("facts", user, f"In {language}, {word} is {other}.", f"{word} is {other} in {language}.", Check("has", [other]), short=other)


def calendar(rng: random.Random) -> Turn:
    """The day, month or letter before or after another."""
    kind = rng.choice(("day", "month", "letter", "days", "number", "place"))
    if kind == "place":
        at = rng.randrange(26)
        name = {0: "first", 1: "second", 2: "third", 3: "fourth", 4: "fifth", 25: "last"}.get(at, f"{at + 1}th" if at not in (20, 21, 22) else f"{at + 1}{('st', 'nd', 'rd')[at - 20]}")
        result = chr(65 + at)
        user = phrase(rng, ("What is the {n} letter of the alphabet?", "Which letter is the {n} in the alphabet?", "The {n} letter of the alphabet?"), n=name)
        counted = " ".join(chr(65 + each) for each in range(at + 1))
        return Turn("facts", user, f"The {name} letter of the alphabet is {result}.", f"I count: {counted}.", Check("has", [f"is {result}"]), short=result)
    row = {"day": DAYS, "days": DAYS, "month": MONTHS, "letter": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), "number": tuple(map(str, range(1, 200)))}[kind]
    at = rng.randrange(1, len(row) - 1) if kind in ("letter", "number") else rng.randrange(len(row))
    after = rng.random() < 0.6
    if kind == "days":
        gap = rng.randint(2, 6)
        result = row[(at + gap) % 7]
        user = phrase(rng, ("Today is {d}. Which day is it in {n} days?", "If today is {d}, what day is it in {n} days?", "What day is {n} days after {d}?"), d=row[at], n=gap)
        steps = ", ".join(row[(at + step) % 7] for step in range(1, gap + 1))
        return Turn("facts", user, f"It is {result}.", f"After {row[at]} come {steps}.", Check("has", [result]), short=result)
    result = row[(at + (1 if after else -1)) % len(row)]
    side = "after" if after else "before"
    ask = ("Which {k} comes {s} {d}?", "What {k} comes {s} {d}?", "What is the {k} {s} {d}?", "What comes {s} {d}?")
    if kind == "day":
        ask += (("If today is {d}, what day is tomorrow?", "Today is {d}. What is tomorrow?") if after else ("If today is {d}, what day was yesterday?", "Today is {d}. What was yesterday?"))
    user = phrase(rng, ask, k=kind, s=side, d=row[at])
    text = say(rng, ("{r} comes {s} {d}.", "The {k} {s} {d} is {r}."), r=result, s=side, d=row[at], k=kind)
    return Turn("facts", user, text, f"{result} comes {side} {row[at]}.", Check("has", [result]), short=result)


def rewrite(rng: random.Random) -> Turn:
    """Pick a word of a sentence, count its words or join words."""
    text_in = sentence(rng)
    row = text_in.split()
    kind = rng.choice(("words", "first", "last", "join", "initials", "contains"))
    if kind == "words":
        user = phrase(rng, ("How many words are in {w}?", "Count the words in {w}.", "How many words does {w} have?"), w=f'"{text_in}"')
        numbered = " ".join(f"{word} {at}" for at, word in enumerate(row, 1))
        return Turn("text", user, f"It has {len(row)} words.", f"I count: {numbered}.", Check("has", [str(len(row))]), short=str(len(row)))
    if kind in ("first", "last"):
        word = row[0] if kind == "first" else row[-1]
        user = phrase(rng, ("What is the {k} word of {w}?", "Tell me the {k} word in {w}.", "Which word comes {k} in {w}?"), k=kind, w=f'"{text_in}"')
        return Turn("text", user, f"The {kind} word is {word}.", f"The sentence starts with {row[0]} and ends with {row[-1]}.", Check("has", [word]), short=word)
    if kind == "join":
        mark = rng.choice(("-", "_", ", ", "/"))
        name = {"-": "hyphens", "_": "underscores", ", ": "commas", "/": "slashes"}[mark]
        text = mark.join(row)
        return Turn("text", phrase(rng, ("Join the words of {w} with {m}.", "Write {w} with {m} between the words."), w=f'"{text_in}"', m=name), text, f"I put {name} between the words.", Check("is", text))
    if kind == "initials":
        text = "".join(word[0] for word in row).upper()
        return Turn("text", phrase(rng, ("What are the initials of {w}?", "Make an acronym from {w}."), w=f'"{text_in}"'), text, f"The first letters are {' '.join(text)}.", Check("is", text))
    word = rng.choice(row) if rng.random() < 0.5 else any_word(rng)
    found = word in row
    user = phrase(rng, ("Does {w} contain the word {x}?", "Is the word {x} in {w}?"), w=f'"{text_in}"', x=_quoted(rng, word))
    answer = "Yes" if found else "No"
    return Turn("yes_no", user, f"{answer}, the word {word} is {'' if found else 'not '}in it.", f"The words are {', '.join(row)}.", Check("has", [f"{answer},"]), short=answer)
