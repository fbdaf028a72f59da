"""Sums, differences, products and quotients, with the working spelt out digit by digit."""

import random

from .core import Check, Turn, number, phrase, say
from .lexicon import FRUITS, OBJECTS, any_name, words
from .working import SHOWN, apply, divide_steps, multiply_parts, working

SYMBOLS = {"+": ("+",), "-": ("-", "-", "−"), "*": ("*", "×", "x", "*"), "/": ("/", "÷", "/")}
WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
ASK = (
    "What is {e}?", "What is {e}?", "What is {e}?", "what's {e}?", "{e}", "{e} =", "{e}=?", "{e}?", "Calculate {e}.",
    "Compute {e}.", "How much is {e}?", "Tell me {e}.", "Solve {e}.", "Can you compute {e}?", "Work out {e}.",
    "What does {e} equal?", "Please calculate {e}.", "I need the result of {e}.", "Give me the answer to {e}.",
    "What do you get for {e}?", "Evaluate {e}.", "Do you know what {e} is?", "What is the result of {e}?",
    "What's the value of {e}?", "How much does {e} make?", "Could you tell me what {e} is?", "Hey, what is {e}?",
)  # fmt: skip
NAMED = {
    "+": ("Add {a} and {b}.", "What is the sum of {a} and {b}?", "Sum {a} and {b}.", "Add {b} to {a}.", "{a} and {b} together make what?"),
    "-": ("Subtract {b} from {a}.", "What is the difference between {a} and {b}?", "Take {b} away from {a}.", "What is {a} less {b}?"),
    "*": ("Multiply {a} by {b}.", "What is the product of {a} and {b}?", "Multiply {a} and {b}.", "What is {a} multiplied by {b}?"),
    "/": ("Divide {a} by {b}.", "What is {a} divided by {b}?", "How many times does {b} go into {a}?", "What is the quotient of {a} and {b}?"),
}  # fmt: skip
NUMBER_WORDS = words("zero one two three four five six seven eight nine ten eleven twelve")
ANSWER = ("{e} = {r}.", "{e} = {r}.", "{e} = {r}.", "The answer is {r}.", "{e} is {r}.", "That makes {r}: {e} = {r}.")


def operands(rng: random.Random, operator: str) -> tuple[int, int]:
    """Two numbers of mixed lengths that suit the operator."""

    def draw(weights: tuple[int, ...]) -> int:
        length = rng.choices(range(1, len(weights) + 1), weights)[0]
        return rng.randint(10 ** (length - 1) if length > 1 else 0, 10**length - 1)

    if operator == "*":
        a, b = rng.choice(
            (((4, 8, 3), (5, 3)), ((3, 8), (2, 8)), ((0, 3, 5, 2), (5, 4, 2)), ((0, 2, 4, 3), (0, 3, 4, 1)))
        )
        pair = [draw(a), draw(b)]
        rng.shuffle(pair)
        return pair[0], pair[1]
    if operator == "/":
        b = rng.choice((rng.randint(1, 12), rng.randint(2, 9), rng.randint(2, 25), rng.choice((10, 100, 50, 20))))
        return b * max(1, draw((3, 6, 3))), b
    lengths = (4, 8, 7, 4, 2, 2, 1)
    a, b = draw(lengths), draw(lengths)
    if rng.random() < 0.2:
        b = rng.randint(0, 10 ** len(str(a)) - 1)
    if operator == "-" and a < b and rng.random() < 0.8:
        a, b = b, a
    return a, b


def key_of(a: int, operator: str, b: int) -> str:
    """The split key of an operation, the same for both orders where order does not matter."""
    low, high = (min(a, b), max(a, b)) if operator in "+*" else (a, b)
    return f"sum {low}{operator}{high}"


def direct_product(a: int, b: int) -> str | None:
    """The short visible working of a product too hard to know at once."""
    big, little = max(a, b), min(a, b)
    parts = multiply_parts(big, little)
    if len(parts) < 2 or big < 13:
        return None
    sums = " + ".join(str(product) for _, product in parts)
    return f"{a} × {b} = {sums} = {a * b}."


def basic(rng: random.Random) -> Turn:
    """One operation on two numbers."""
    operator = rng.choice("++--***/")
    a, b = operands(rng, operator)
    result = apply(a, operator, b)
    glyph = rng.choice(SYMBOLS[operator])
    expression = rng.choice((f"{a} {glyph} {b}", f"{a} {glyph} {b}", f"{a}{glyph}{b}", f"{a} {WORDS[operator]} {b}"))
    if max(a, b) < len(NUMBER_WORDS) and rng.random() < 0.2:
        expression = f"{NUMBER_WORDS[a]} {WORDS[operator]} {NUMBER_WORDS[b]}"
    user = phrase(rng, NAMED[operator], a=a, b=b) if rng.random() < 0.2 else phrase(rng, ASK, e=expression)
    shown = f"{a} {SHOWN[operator]} {b}"
    return Turn(
        "arithmetic",
        user,
        say(rng, ANSWER, e=shown, r=result),
        working(a, operator, b),
        Check("has", [str(result)]),
        direct=direct_product(a, b) if operator == "*" else None,
        short=str(result),
        key=key_of(a, operator, b),
    )


def decimals(rng: random.Random) -> Turn:
    """A sum or difference with decimals, or a division with a rest."""
    if rng.random() < 0.4:
        b = rng.randint(2, rng.choice((9, 12, 25)))
        a = rng.randint(b, 40 * b)
        a += a % b == 0
        whole, rest = divmod(a, b)
        expression = f"{a} {rng.choice(SYMBOLS['/'])} {b}"
        text = f"{a} / {b} = {whole} with a remainder of {rest}."
        key = key_of(a, "/", b)
        return Turn(
            "arithmetic",
            phrase(rng, ASK, e=expression),
            text,
            divide_steps(a, b),
            Check("has", [str(whole), f"remainder of {rest}"]),
            key=key,
        )
    places = rng.choice((1, 1, 2))
    unit = 10**places
    a, b = rng.randint(1, 99 * unit), rng.randint(1, 99 * unit)
    operator = rng.choice("+-")
    if a < b:
        a, b = b, a
    total = apply(a, operator, b)
    shown = f"{number(a / unit)} {operator} {number(b / unit)}"
    result = number(total / unit)
    thought = f"As whole numbers with {places} decimal{'s' * (places > 1)}: {a} {operator} {b}. {working(a, operator, b)} So the result is {result}."
    return Turn(
        "arithmetic",
        phrase(rng, ASK, e=shown),
        say(rng, ANSWER, e=shown, r=result),
        thought,
        Check("has", [result]),
        short=result,
        key=key_of(a, operator, b),
    )


def roots(rng: random.Random) -> Turn:
    """Primes and square roots."""
    if rng.random() < 0.4:
        n = rng.randint(0, 30)
        user = phrase(
            rng,
            ("What is the square root of {m}?", "sqrt({m})", "Square root of {m}?", "Compute the square root of {m}."),
            m=n * n,
        )
        return Turn(
            "arithmetic",
            user,
            f"The square root of {n * n} is {n}.",
            f"{n} × {n} = {n * n}.",
            Check("has", [f"is {n}"]),
            short=str(n),
        )
    n = rng.randint(2, 120)
    divisor = next((each for each in (2, 3, 5, 7) if n % each == 0 and n != each), 0)
    user = phrase(rng, ("Is {n} a prime number?", "Is {n} prime?", "Is the number {n} a prime?"), n=n)
    answer = "No" if divisor else "Yes"
    text = (
        f"No, {n} is not a prime number, because {n} = {divisor} × {n // divisor}."
        if divisor
        else f"Yes, {n} is a prime number."
    )
    thought = f"{n} = {divisor} × {n // divisor}." if divisor else f"No smaller number than {n} divides it, except 1."
    return Turn("arithmetic", user, text, thought, Check("has", [f"{answer},"]), short=answer)


def chain(rng: random.Random) -> Turn:
    """Three numbers: a sum, or a product and a sum."""
    a, b, c = (rng.randint(1, rng.choice((12, 50, 99))) for _ in range(3))
    form = rng.choice(
        (
            "{a} + {b} + {c}",
            "{a} + {b} - {c}",
            "{a} + {b} * {c}",
            "{a} * {b} + {c}",
            "({a} + {b}) * {c}",
            "{a} * {b} - {c}",
        )
    )
    if "*" in form:
        a, b, c = a % 20 + 1, b % 12 + 1, c % 12 + 1
    if "({" in form:
        first, second = (a + b), (a + b) * c
        steps = f"First {a} + {b} = {first}. Then {first} × {c} = {second}."
    elif form == "{a} + {b} * {c}":
        first, second = b * c, a + b * c
        steps = f"Multiplication comes first: {b} × {c} = {first}. Then {a} + {first} = {second}."
    else:
        first_op, second_op = form[4], form[10]
        first = apply(a, first_op, b)
        second = apply(first, second_op, c)
        steps = f"First {a} {SHOWN[first_op]} {b} = {first}. Then {first} {SHOWN[second_op]} {c} = {second}."
    expression = form.format(a=a, b=b, c=c)
    text = f"{expression.replace('*', '×')} = {second}."
    direct = f"{steps.removeprefix('Multiplication comes first: ')} So {text}"
    return Turn(
        "arithmetic",
        phrase(rng, ASK, e=expression),
        text,
        steps,
        Check("has", [str(second)]),
        direct=direct,
        short=str(second),
    )


STORIES = {
    "+": (
        "{n} has {a} {t} and gets {b} more. How many {t} does {n} have now?",
        "There are {a} {t} in one box and {b} in another. How many {t} are there in all?",
        "{n} bought {a} {t} on Monday and {b} on Tuesday. How many is that in total?",
        "If I have {a} {t} and you give me {b} more, how many do I have?",
        "A shop has {a} {t}. A truck brings {b} more. How many {t} are in the shop?",
    ),
    "-": (
        "{n} has {a} {t} and gives away {b}. How many {t} are left?",
        "There were {a} {t}. {n} took {b}. How many remain?",
        "A shop had {a} {t} and sold {b}. How many {t} are left?",
        "I had {a} {t} and lost {b} of them. How many do I still have?",
        "I have {a} {t} and eat {b}. How many are left?",
        "If I have {a} {t} and give {b} to {n}, how many {t} do I have left?",
        "{n} has {a} {t} and loses {b}. How many does {n} still have?",
        "You have {a} {t}. You sell {b}. How many {t} remain?",
    ),
    "*": (
        "{n} has {b} boxes with {a} {t} in each. How many {t} is that?",
        "Each bag holds {a} {t}. How many {t} are in {b} bags?",
        "One of the {t} costs {a} dollars. How much do {b} cost?",
        "There are {b} shelves with {a} {t} each. How many {t} are there?",
        "A train travels {a} km in one hour. How far does it go in {b} hours?",
        "If a car drives {a} miles per hour, how many miles does it drive in {b} hours?",
        "{n} reads {a} pages a day. How many pages is that in {b} days?",
        "If one of the {t} weighs {a} grams, how heavy are {b} of them in grams?",
    ),
    "/": (
        "{n} shares {a} {t} equally among {b} friends. How many does each friend get?",
        "{a} {t} are packed into {b} boxes evenly. How many go into each box?",
        "If {b} people split {a} {t} fairly, how many does each get?",
    ),
}  # fmt: skip


def plural(noun: str) -> str:
    """The plural of a regular noun."""
    if noun.endswith(("s", "x", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return {"knife": "knives", "shelf": "shelves", "mango": "mangoes"}.get(noun, noun + "s")


def word_problem(rng: random.Random) -> Turn:
    """A little story with one operation."""
    operator = rng.choice("++--*/")
    low, high = (2, 12) if operator in "*/" else (1, 99)
    a, b = rng.randint(low, high), rng.randint(max(low, 2), high)
    if operator == "*":
        a = rng.choice((a, rng.randint(2, 99), 10 * a))
    if operator == "/":
        a *= b
    if operator == "-" and a < b:
        a, b = b, a
    things = plural(rng.choice(FRUITS + OBJECTS))
    result = apply(a, operator, b)
    who = any_name(rng)
    spoken = rng.random() < 0.2 and max(a, b) < len(NUMBER_WORDS)
    user = phrase(
        rng, STORIES[operator], n=who, a=NUMBER_WORDS[a] if spoken else a, b=NUMBER_WORDS[b] if spoken else b, t=things
    )
    sum_text = f"{a} {SHOWN[operator]} {b} = {result}"
    unit = next(
        (unit for unit in (" dollars", " km ", " miles ", " pages ", " grams ") if unit in f"{user} "), f" {things}"
    ).strip()
    what = f"{result} {unit}"
    text = say(
        rng, ("{s}, so the answer is {w}.", "The answer is {w}, because {s}.", "{s}. That is {w}."), s=sum_text, w=what
    )
    thought = f"This is a story with {'adding' if operator == '+' else 'taking away' if operator == '-' else 'multiplying' if operator == '*' else 'sharing'}. {working(a, operator, b)}"
    return Turn("arithmetic", user, text, thought, Check("has", [str(result)]), short=str(result))
