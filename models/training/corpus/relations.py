"""Questions about one number or a few: squares, shares, parity, comparisons, sequences and averages."""

import random
from collections.abc import Callable
from functools import partial

from .core import Check, Turn, number, phrase
from .working import multiply_steps, running_sum, working

YES = {True: "Yes", False: "No"}
NEAR = {"larger": ("larger", "bigger", "greater"), "smaller": ("smaller", "less")}
"""Words for a comparison, the plainest first."""


def _turn(user: str, result: str, text: str, thought: str) -> Turn:
    """The turn whose answer must hold the result."""
    return Turn("arithmetic", user, text, thought, Check("has", [result]), short=result)


def _square(rng: random.Random, _: int) -> Turn:
    """The square of a small number, which is drawn anew."""
    n = rng.randint(1, 25)
    ways = (
        "What is {n} squared?",
        "What is the square of {n}?",
        "Square {n}.",
        "{n}^2",
        "What is {n} to the power of 2?",
    )
    user = phrase(rng, ways, n=n)
    return _turn(user, str(n * n), f"{n} squared is {n * n}.", f"{n} × {n}. {working(n, '*', n)}")


def _multiple(rng: random.Random, n: int, word: str, times: int) -> Turn:
    """The double or the triple, as the word says."""
    ways = ("What is {k} {n}?", "What is the {k} of {n}?", "{K} {n}.", "Tell me {k} {n}.")
    user = phrase(rng, ways, k=word, K=word.capitalize(), n=n)
    return _turn(user, str(n * times), f"{n} × {times} = {n * times}.", working(n, "*", times))


def _half(rng: random.Random, n: int) -> Turn:
    """Half of twice the number, so that it is whole."""
    n *= 2
    ways = ("What is half of {n}?", "Halve {n}.", "How much is half of {n}?", "What is {n} halved?")
    return _turn(phrase(rng, ways, n=n), str(n // 2), f"Half of {n} is {n // 2}.", working(n, "/", 2))


def _percentage(rng: random.Random, _: int) -> Turn:
    """A percentage of a number drawn to suit it."""
    share = rng.choice((10, 20, 25, 50, 5, 1, 75, 15, 30, 40, 60))
    n = rng.randint(1, 40) * 100 // (share if share in (25, 50, 20, 10) else 1)
    n = n if n * share % 100 == 0 else (n % 50 + 1) * 20
    result = number(n * share / 100)
    ways = ("What is {s}% of {n}?", "How much is {s} percent of {n}?", "Calculate {s}% of {n}.", "{s}% of {n}")
    user = phrase(rng, ways, s=share, n=n)
    thought = f"{share}% means {share} / 100. {multiply_steps(n, share)} {n * share} / 100 = {result}."
    return _turn(user, result, f"{share}% of {n} is {result}.", thought)


def _parity(rng: random.Random, _: int) -> Turn:
    """Whether a number, drawn anew, is even or odd."""
    n = rng.randint(0, 9999)
    asked = rng.choice(("even", "odd"))
    actual = "odd" if n % 2 else "even"
    user = phrase(rng, ("Is {n} even or odd?", "Is {n} {k}?", "Is {n} an {k} number?"), n=n, k=asked)
    open_question = "even or odd" in user.lower()
    text = f"{n} is {actual}." if open_question else f"{YES[asked == actual]}, {n} is {actual}."
    return _turn(user, actual, text, f"The last digit of {n} is {n % 10}, which is {actual}.")


def _comparison(rng: random.Random, n: int, kind: str) -> Turn:
    """Which of two numbers is the larger or smaller, or whether one is."""
    m = rng.choice((rng.randint(1, 99), rng.randint(1, 9999), n + rng.choice((-1, 1, 10))))
    n = rng.choice((n, rng.randint(1, 9999)))
    m = m + 1 if m == n else m
    best = max(n, m) if kind == "larger" else min(n, m)
    comparison = f"{n} is {'larger' if n > m else 'smaller'} than {m}"
    ways: tuple[str, ...]
    if rng.random() < 0.5:
        ways = ("Which is {k}, {n} or {m}?", "Which number is {k}: {n} or {m}?", "What is {k}, {n} or {m}?")
        word = NEAR[kind][0] if kind == "smaller" else rng.choice(NEAR[kind])
        result, text = str(best), f"{best} is {kind} than {n + m - best}."
    else:
        ways = ("Is {n} {k} than {m}?", "Is it true that {n} is {k} than {m}?")
        word = rng.choice(NEAR[kind])
        result = YES[best == n]
        text = f"{result}, {comparison}."
    user = phrase(rng, ways, k=word, n=n, m=m)
    return _turn(user, result, text, f"Compare {n} and {m}. {comparison[0].upper() + comparison[1:]}.")


def _sequence(rng: random.Random, n: int) -> Turn:
    """The next number of a sequence with equal steps."""
    step = rng.choice((1, 2, 3, 5, 10, 4))
    row = [n + step * at for at in range(4)]
    ways = ("What comes next: {s}, ...?", "Continue the sequence: {s}", "What is the next number in {s}?")
    user = phrase(rng, ways, s=_listed(row))
    following = row[-1] + step
    thought = f"{row[1]} - {row[0]} = {step}, so each number is {step} more. {row[-1]} + {step} = {following}."
    return _turn(user, str(following), f"The next number is {following}.", thought)


def _row(rng: random.Random) -> list[int]:
    """Two to five numbers."""
    return [rng.randint(1, 60) for _ in range(rng.randint(2, 5))]


def _listed(row: list[int]) -> str:
    """The numbers of a row with commas between them."""
    return ", ".join(map(str, row))


def _average(rng: random.Random, _: int) -> Turn:
    """The average of a row whose last number is set so that it is whole."""
    row = _row(rng)
    row[-1] += -sum(row) % len(row)
    total, mean = sum(row), sum(row) // len(row)
    ways = ("What is the average of {s}?", "Find the mean of {s}.", "Average these numbers: {s}")
    user = phrase(rng, ways, s=_listed(row))
    steps = running_sum(row)
    text = f"{steps} The sum is {total} and there are {len(row)} numbers, so the average is {mean}."
    return _turn(user, str(mean), text, f"{steps} {total} / {len(row)} = {mean}.")


def _total(rng: random.Random, _: int) -> Turn:
    """The sum of a row."""
    row = _row(rng)
    ways = ("What is the sum of {s}?", "Add up {s}.", "Add these numbers: {s}", "Sum these: {s}")
    user = phrase(rng, ways, s=_listed(row))
    return _turn(user, str(sum(row)), f"{running_sum(row)} The sum is {sum(row)}.", running_sum(row))


def _extreme(rng: random.Random, _: int) -> Turn:
    """The largest or smallest of a row."""
    row = _row(rng)
    largest = rng.random() < 0.6
    result = str(max(row) if largest else min(row))
    word = rng.choice(("largest", "biggest", "highest") if largest else ("smallest", "lowest"))
    ways = ("What is the {w} of {s}?", "Which number is the {w}: {s}?", "Find the {w} number in {s}.")
    user = phrase(rng, ways, w=word, s=_listed(row))
    thought = f"The numbers are {_listed(row)}. The {word} is {result}."
    return _turn(user, result, f"The {word} number is {result}.", thought)


RELATIONS: tuple[Callable[[random.Random, int], Turn], ...] = (
    _square,
    partial(_multiple, word="double", times=2),
    _half,
    partial(_multiple, word="triple", times=3),
    _percentage,
    _parity,
    partial(_comparison, kind="larger"),
    partial(_comparison, kind="smaller"),
    _sequence,
    _average,
    _extreme,
    _total,
)
"""What may be asked about a number from 2 to 99; some draw their own numbers instead."""


def related(rng: random.Random) -> Turn:
    """Squares, doubles, halves, percentages, parity and comparisons."""
    relation = rng.choice(RELATIONS)
    return relation(rng, rng.randint(2, 99))
