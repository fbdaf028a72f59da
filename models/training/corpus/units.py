"""Conversions between units, with the rule written out."""

import random
from dataclasses import dataclass

from .core import Check, Turn, number, phrase, say
from .working import divide_steps, multiply_parts, multiply_steps


@dataclass(frozen=True)
class Unit:
    """A unit's shown name and the ways to write it."""

    name: str
    written: tuple[str, ...]


def _unit(name: str, *others: str) -> Unit:
    return Unit(name, (name, name, *others))


KM, MILES = _unit("kilometres", "km", "kilometers"), _unit("miles", "mi", "mile")
M, CM, MM, FT, INCH = (
    _unit("metres", "m", "meters"),
    _unit("centimetres", "cm", "centimeters"),
    _unit("millimetres", "mm"),
    _unit("feet", "ft"),
    _unit("inches", "in", "inch"),
)
KG, G, LB = _unit("kilograms", "kg", "kilos"), _unit("grams", "g"), _unit("pounds", "lb", "lbs")
TONNE = _unit("tonnes", "tons")
HOURS, MINUTES, SECONDS = _unit("hours", "h", "hrs"), _unit("minutes", "min", "mins"), _unit("seconds", "s", "sec")
DAYS, WEEKS, YEARS, MONTHS = _unit("days"), _unit("weeks"), _unit("years"), _unit("months")
LITRES, ML = _unit("litres", "l", "liters"), _unit("millilitres", "ml")
YARDS, DOZEN, PIECES = _unit("yards", "yd"), _unit("dozen"), _unit("pieces")
GB, MB = _unit("gigabytes", "GB"), _unit("megabytes", "MB")
CELSIUS, FAHRENHEIT = (
    Unit("°C", ("°C", "C", "celsius", "degrees Celsius", "degrees celsius")),
    Unit("°F", ("°F", "F", "fahrenheit", "degrees Fahrenheit", "degrees fahrenheit")),
)
KELVIN = Unit("K", ("K", "kelvin", "Kelvin"))

MULTIPLY: tuple[tuple[Unit, Unit, int], ...] = (
    (KM, M, 1000), (M, CM, 100), (CM, MM, 10), (M, MM, 1000), (FT, INCH, 12), (KG, G, 1000), (TONNE, KG, 1000), (HOURS, MINUTES, 60),
    (MINUTES, SECONDS, 60), (DAYS, HOURS, 24), (WEEKS, DAYS, 7), (YEARS, MONTHS, 12), (LITRES, ML, 1000), (YARDS, FT, 3),
    (DOZEN, PIECES, 12), (HOURS, SECONDS, 3600), (GB, MB, 1000),
)  # fmt: skip
SCALED: tuple[tuple[Unit, Unit, int], ...] = (
    (KM, MILES, 62), (MILES, KM, 161), (KG, LB, 220), (LB, KG, 45), (INCH, CM, 254), (M, FT, 328), (FT, CM, 3048), (CM, INCH, 39),
)  # fmt: skip
"""Target units for each hundred source units, rounded as people do."""
ASK = (
    "Convert {v} {a} to {b}.", "Convert {v} {a} to {b}", "How many {b} are {v} {a}?", "How many {b} are in {v} {a}?", "What is {v} {a} in {b}?",
    "{v} {a} in {b}", "{v} {a} to {b}", "{v} {a} = ? {b}", "How much is {v} {a} in {b}?", "Please convert {v} {a} into {b}.",
    "Change {v} {a} to {b}.", "Express {v} {a} in {b}.", "I have {v} {a}. How many {b} is that?", "What are {v} {a} in {b}?",
)  # fmt: skip


def _ask(rng: random.Random, value: str, source: Unit, target: Unit) -> str:
    return phrase(rng, ASK, v=value, a=rng.choice(source.written), b=rng.choice(target.written))


def _unit_for(value: str, unit: Unit) -> str:
    """The value with the unit's name, in the singular for 1."""
    single = {"feet": "foot", "inches": "inch", "dozen": "dozen"}
    name = unit.name
    if value == "1":
        name = single.get(name, name.removesuffix("s"))
    return f"{value} {name}"


def _turn(
    rng: random.Random,
    source: Unit,
    target: Unit,
    value: str,
    result: str,
    rule: str,
    steps: str,
    about: bool,
    shown: str = "",
) -> Turn:
    """A conversion; ``steps`` is the working of the thought, ``shown`` the shorter one of an answer without thinking."""
    verb = "is about" if about else "is"
    left, right = _unit_for(value, source), _unit_for(result, target)
    plain = say(rng, ("{l} {v} {r}.", "{l} {v} {r}.", "That {v} {r}."), l=left, r=right, v=verb)
    return Turn(
        "units",
        _ask(rng, value, source, target),
        plain,
        f"{rule} {steps}",
        Check("has", [f"{result} "]),
        direct=f"{shown} So {left} {verb} {right}." if shown else plain,
        short=right,
        key=f"unit {value} {source.name}/{target.name}",
    )


def exact(rng: random.Random) -> Turn:
    """Conversions by a whole factor, either way."""
    big, small, factor = rng.choice(MULTIPLY)
    amount = rng.choice((rng.randint(1, 12), rng.randint(1, 50), rng.randint(1, 250)))
    rule = f"One of the {big.name} has {factor} {small.name}."
    if rng.random() < 0.55:
        result = str(amount * factor)
        hard = factor in (3600, 24) and amount > 9
        parts = " + ".join(str(product) for _, product in multiply_parts(factor, amount))
        shown = f"{amount} × {factor} = {parts} = {result}." if hard and "+" in parts else ""
        steps = multiply_steps(factor, amount) if hard else f"{amount} × {factor} = {result}."
        return _turn(rng, big, small, str(amount), result, rule, steps, False, shown)
    if factor in (10, 100, 1000) and rng.random() < 0.4:
        value = str(rng.randint(1, 40) * factor // 20 or factor)
        result = number(int(value) / factor)
        if factor == 1000 and float(result) * factor != int(value):
            value, result = str(amount * factor), str(amount)
    else:
        value, result = str(amount * factor), str(amount)
    return _turn(rng, small, big, value, result, rule, f"{value} / {factor} = {result}.", False)


def scaled(rng: random.Random) -> Turn:
    """Conversions by a rounded factor with two decimals."""
    source, target, hundredths = rng.choice(SCALED)
    amount = rng.choice(
        (rng.randint(1, 20), rng.choice((10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90, 100)), rng.randint(1, 120))
    )
    rate = number(hundredths / 100)
    result = number(amount * hundredths / 100)
    rule = f"One unit of {source.name} is about {rate} {target.name}."
    parts = [(part, number(part * hundredths / 100)) for part, _ in multiply_parts(hundredths, amount)]
    shown = "; ".join(f"{part} × {rate} = {product}" for part, product in parts)
    shown += f"; {' + '.join(product for _, product in parts)} = {result}." if len(parts) > 1 else "."
    steps = f"{multiply_steps(hundredths, amount)} {amount * hundredths} / 100 = {result}."
    return _turn(rng, source, target, str(amount), result, rule, steps, True, shown)


def temperature(rng: random.Random) -> Turn:
    """Celsius, Fahrenheit and Kelvin."""
    kind = rng.choice(("cf", "cf", "fc", "fc", "ck", "kc"))
    degrees = rng.choice((rng.randint(-40, 45), rng.randint(-8, 20) * 5, rng.randint(0, 110)))
    if kind == "cf":
        if rng.random() < 0.6:
            degrees -= degrees % 5
        double = degrees * 2
        result = number(degrees * 9 / 5 + 32)
        size = [number(abs(each)) for each in (double, double / 10, double - double / 10)]
        sign = "-" if degrees < 0 else ""
        steps = f"{degrees} × 2 = {double}; a tenth less: {size[0]} - {size[1]} = {size[2]}, so {sign}{size[2]}; {sign}{size[2]} + 32 = {result}."
        return _turn(
            rng,
            CELSIUS,
            FAHRENHEIT,
            str(degrees),
            result,
            "Fahrenheit is Celsius times 1.8 plus 32.",
            steps,
            False,
            steps,
        )
    if kind == "fc":
        value = degrees // 5 * 9 + 32 if rng.random() < 0.5 else degrees
        less = value - 32
        times = abs(less) * 5
        whole, rest = divmod(times, 9)
        size = whole + (rest > 4)
        about, sign = bool(rest), "-" if less < 0 and size else ""
        result = f"{sign}{size}"
        rounded = f"; the rest of {rest} rounds {'up' if rest > 4 else 'down'}" if rest else ""
        start = f"{value} - 32 = {less}; {less} × 5 = {less * 5}"
        steps = f"{start}; {divide_steps(times, 9)[:-1]}{rounded}: {result}."
        shown = f"{start}; {less * 5} / 9 is {'about ' if about else ''}{result}."
        return _turn(
            rng,
            FAHRENHEIT,
            CELSIUS,
            str(value),
            result,
            "Celsius is Fahrenheit minus 32, times 5 / 9.",
            steps,
            about,
            shown,
        )
    if kind == "ck":
        return _turn(
            rng,
            CELSIUS,
            KELVIN,
            str(degrees),
            str(degrees + 273),
            "Kelvin is Celsius plus 273.",
            f"{degrees} + 273 = {degrees + 273}.",
            False,
        )
    value = degrees + 273
    return _turn(
        rng,
        KELVIN,
        CELSIUS,
        str(value),
        str(degrees),
        "Celsius is Kelvin minus 273.",
        f"{value} - 273 = {degrees}.",
        False,
    )
