"""Small text tasks: spelling, reversing, cases, counting, sorting, lists and opposites."""

import random

from .arithmetic import NUMBER_WORDS
from .core import Check, Turn, phrase
from .lexicon import (
    any_name,
    any_word,
    invented,
    sentence,
)


def _word(rng: random.Random) -> str:
    """A word to work on."""
    word = rng.choice((any_word(rng), any_word(rng), any_name(rng), invented(rng, (1, 2))))
    return word if rng.random() < 0.8 else word.capitalize()


def quoted(rng: random.Random, text: str) -> str:
    """The text as people mark it in a request."""
    return rng.choice((f"'{text}'", f'"{text}"', f'"{text}"', text, text))


def spell(rng: random.Random) -> Turn:
    """Spell a word letter by letter."""
    word = _word(rng)
    letters = "-".join(word.upper()) if rng.random() < 0.3 else "-".join(word)
    upper = letters.isupper()
    ask = (
        ("Spell {w} in capital letters.", "Spell the word {w} with capital letters.")
        if upper
        else (
            "Spell {w}.",
            "Spell the word {w}.",
            "How do you spell {w}?",
            "How is {w} spelled?",
            "Can you spell {w}?",
            "spell {w} for me",
            "Please spell {w} letter by letter.",
        )
    )
    user = phrase(rng, ask, w=quoted(rng, word))
    return Turn(
        "text", user, letters, f"The letters of {word} are {' '.join(word)}.", Check("is", letters), key=f"spell {word}"
    )


def reverse(rng: random.Random) -> Turn:
    """Reverse a word, or the order of words."""
    if rng.random() < 0.25:
        row = [any_word(rng) for _ in range(rng.randint(2, 6))]
        user = phrase(
            rng,
            (
                "Reverse the order of these words: {w}",
                "Put these words in reverse order: {w}",
                "Reverse this list: {w}",
            ),
            w=", ".join(row),
        )
        text = ", ".join(reversed(row))
        return Turn("text", user, text, f"The last word is {row[-1]} and the first is {row[0]}.", Check("is", text))
    word = _word(rng)
    text = word[::-1]
    user = phrase(
        rng,
        (
            "Reverse the word {w}.",
            "Reverse {w}.",
            "What is {w} backwards?",
            "Write {w} backwards.",
            "Spell {w} backwards.",
            "Reverse the string {w}.",
            "Reverse the letters of {w}.",
            "Please write the word {w} in reverse.",
        ),
        w=quoted(rng, word),
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
        "upper": (
            "Write {w} in uppercase.",
            "Uppercase: {w}",
            "Convert {w} to upper case.",
            "Put {w} in capital letters.",
            "Make {w} uppercase.",
            "Write this in capital letters: {w}",
            "Uppercase the text {w}.",
            "Capitalize all letters of {w}.",
        ),
        "lower": (
            "Write {w} in lowercase.",
            "Lowercase: {w}",
            "Convert {w} to lower case.",
            "Make {w} lowercase.",
            "Put {w} in small letters.",
        ),
        "title": ("Write {w} in title case.", "Capitalize each word: {w}", "Convert {w} to title case."),
    }[kind]
    return Turn(
        "text",
        phrase(rng, ask, w=quoted(rng, source)),
        text,
        f"I write it in {kind} case.",
        Check("is", text),
        key=f"{kind} {source}",
    )


def letters(rng: random.Random) -> Turn:
    """Count letters, vowels or one letter; find the first, last or a given letter."""
    word = _word(rng)
    kind = rng.choice(("length", "length", "vowels", "one", "one", "first", "last", "nth"))
    shown, q = " ".join(word), quoted(rng, word)
    if kind == "length":
        user = phrase(
            rng,
            (
                "How many letters are in {w}?",
                "How many letters does {w} have?",
                "Count the letters in {w}.",
                "What is the length of {w}?",
                "How long is the word {w}?",
            ),
            w=q,
        )
        numbered = " ".join(f"{letter}{at}" for at, letter in enumerate(word, 1))
        result = str(len(word))
        text, thought = f"The word {word} has {result} letters.", f"I count: {numbered}."
        if result == "1":
            text = text.replace("letters", "letter")
    elif kind == "vowels":
        found = [letter for letter in word if letter.lower() in "aeiou"]
        user = phrase(
            rng, ("How many vowels are in {w}?", "Count the vowels in {w}.", "How many vowels does {w} have?"), w=q
        )
        result = str(len(found))
        text, thought = (
            f"The word {word} has {result} vowel{'s' * (len(found) != 1)}.",
            f"{shown}. The vowels are {' '.join(found) or 'none'}, so {result}.",
        )
    elif kind == "one":
        letter = rng.choice(word.lower()) if rng.random() < 0.85 else rng.choice("aeiorst")
        count = word.lower().count(letter)
        user = phrase(
            rng,
            (
                "How many times does the letter {l} occur in {w}?",
                "How many {l}'s are in {w}?",
                "Count the letter {l} in {w}.",
                "How often is {l} in {w}?",
                "How many {l} are in {w}?",
            ),
            l=letter,
            w=q,
        )
        result = str(count)
        marks = " ".join(f"{each} yes" if each.lower() == letter else each for each in word)
        text, thought = (
            f"The letter {letter} occurs {result} time{'s' * (count != 1)} in {word}.",
            f"{marks}. That is {result}.",
        )
    else:
        at = {"first": 0, "last": len(word) - 1}.get(kind, rng.randrange(len(word)))
        place = {0: "first", 1: "second", 2: "third", 3: "fourth", 4: "fifth"}.get(at, "last")
        at = len(word) - 1 if place == "last" or kind == "last" else at
        place = "last" if kind == "last" else place
        user = phrase(
            rng,
            ("What is the {p} letter of {w}?", "Which letter comes {p} in {w}?", "Tell me the {p} letter of {w}."),
            p=place,
            w=q,
        )
        result = word[at]
        text, thought = f"The {place} letter of {word} is {result}.", f"{shown}. The {place} letter is {result}."
    return Turn("text", user, text, thought, Check("has", [f" {result}"]), short=result, key=f"{kind} {word}")


def echo(rng: random.Random) -> Turn:
    """Repeat a text, once or several times."""
    source = rng.choice((sentence(rng), _word(rng), sentence(rng)))
    if rng.random() < 0.7:
        user = phrase(
            rng,
            (
                "Repeat after me: {w}",
                "Say {w}.",
                "Say: {w}",
                "Repeat: {w}",
                "Write {w}.",
                "Echo {w}",
                "Please say {w}",
                "Just answer {w}.",
                "Reply with {w}",
                "Answer only with {w}",
                "Respond with the text {w}",
                "Repeat this: {w}",
                "Say the word {w}.",
                "Say the words {w}",
                "Write the word {w}",
                "Repeat the sentence {w}",
                "Please repeat {w}",
                "Echo back {w}",
                "Copy this: {w}",
                "Output {w}",
            ),
            noise=0.5,
            w=quoted(rng, source),
        )
        return Turn("text", user, source, "I repeat the text.", Check("is", source), key=f"echo {source}")
    times = rng.choice((2, 3, 3, 4, 5, rng.randint(2, 10)))
    word = _word(rng) if rng.random() < 0.6 else sentence(rng)
    user = phrase(
        rng,
        ("Write {w} {n} times.", "Repeat the word {w} {n} times.", "Say {w} {n} times.", "Say {w} {n} times, please"),
        w=quoted(rng, word),
        n=rng.choice((str(times), NUMBER_WORDS[times])),
    )
    text = " ".join([word] * times)
    return Turn("text", user, text, f"{word}, {times} times.", Check("is", text), key=f"echo {word} {times}")


def rewrite(rng: random.Random) -> Turn:
    """Pick a word of a sentence, count its words or join words."""
    text_in = sentence(rng)
    row = text_in.split()
    kind = rng.choice(("words", "first", "last", "join", "initials", "contains"))
    if kind == "words":
        user = phrase(
            rng,
            ("How many words are in {w}?", "Count the words in {w}.", "How many words does {w} have?"),
            w=f'"{text_in}"',
        )
        numbered = " ".join(f"{word} {at}" for at, word in enumerate(row, 1))
        return Turn(
            "text",
            user,
            f"It has {len(row)} words.",
            f"I count: {numbered}.",
            Check("has", [str(len(row))]),
            short=str(len(row)),
        )
    if kind in ("first", "last"):
        word = row[0] if kind == "first" else row[-1]
        user = phrase(
            rng,
            ("What is the {k} word of {w}?", "Tell me the {k} word in {w}.", "Which word comes {k} in {w}?"),
            k=kind,
            w=f'"{text_in}"',
        )
        return Turn(
            "text",
            user,
            f"The {kind} word is {word}.",
            f"The sentence starts with {row[0]} and ends with {row[-1]}.",
            Check("has", [word]),
            short=word,
        )
    if kind == "join":
        mark = rng.choice(("-", "_", ", ", "/"))
        name = {"-": "hyphens", "_": "underscores", ", ": "commas", "/": "slashes"}[mark]
        text = mark.join(row)
        return Turn(
            "text",
            phrase(
                rng,
                ("Join the words of {w} with {m}.", "Write {w} with {m} between the words."),
                w=f'"{text_in}"',
                m=name,
            ),
            text,
            f"I put {name} between the words.",
            Check("is", text),
        )
    if kind == "initials":
        text = "".join(word[0] for word in row).upper()
        return Turn(
            "text",
            phrase(rng, ("What are the initials of {w}?", "Make an acronym from {w}."), w=f'"{text_in}"'),
            text,
            f"The first letters are {' '.join(text)}.",
            Check("is", text),
        )
    word = rng.choice(row) if rng.random() < 0.5 else any_word(rng)
    found = word in row
    user = phrase(
        rng, ("Does {w} contain the word {x}?", "Is the word {x} in {w}?"), w=f'"{text_in}"', x=quoted(rng, word)
    )
    answer = "Yes" if found else "No"
    return Turn(
        "yes_no",
        user,
        f"{answer}, the word {word} is {'' if found else 'not '}in it.",
        f"The words are {', '.join(row)}.",
        Check("has", [f"{answer},"]),
        short=answer,
    )
