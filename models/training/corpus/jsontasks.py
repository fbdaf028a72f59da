"""Answers as JSON: extraction, small records and lists."""

import json
import random
from typing import Any

from .core import Check, Turn, listing, phrase
from .geography import CAPITALS, CONTINENTS, country
from .lexicon import (
    ANIMALS,
    COLOURS,
    COMPANIES,
    FRUITS,
    JOBS,
    MONTHS,
    OBJECTS,
    SURNAMES,
    WORLD_CITIES,
    any_city,
    any_name,
    any_word,
    clock,
    date,
    email,
    identifier,
)  # fmt: skip

Field = tuple[tuple[str, ...], Any, tuple[str, ...]]
"""Key names, value, and ways to say the value in a sentence after the name."""

_FORM = (
    "{t} Answer as JSON with the keys {k}.", "{t} Reply with JSON with keys {k}.", "{t} Give the answer as a JSON object with {k}.",
    "Answer as JSON with keys {k}. {t}", "Return a JSON object with the keys {k}. {t}", "Extract {k} as JSON: {t}", "{t} Output JSON with {k}.",
    "{t} Write it as JSON ({k}).", "From the following text, extract {k} as JSON. {t}", "{t}\nJSON with keys {k}, please.",
    "Respond in JSON with fields {k}. {t}", "{t} Respond only with JSON. Keys: {k}.", "Convert to JSON with {k}: {t}", "Return a JSON object with keys {k} for this: {t}", "Extract {k} as JSON: {t}", "Extract {k} from this text and answer in JSON.\n\n{t}",
    "Parse this into JSON with keys {k}: {t}", "{t} Return JSON with {k} only.",
)  # fmt: skip


def _keys(rng: random.Random, names: list[str]) -> str:
    """Key names as people list them."""
    style = rng.choice(("{}", "{}", "'{}'", '"{}"', "`{}`"))
    shown = [style.format(name) for name in names]
    return rng.choice((", ".join(shown), listing(shown)))


def _answer(category: str, user: str, value: Any, thought: str) -> Turn:
    return Turn(category, user, json.dumps(value, ensure_ascii=False), thought, Check("json", value))


def _person(rng: random.Random, name: str) -> list[Field]:
    age = rng.randint(2, 95)
    city, job, animal, colour, mail = (
        any_city(rng),
        rng.choice(JOBS),
        rng.choice(ANIMALS),
        rng.choice(COLOURS),
        email(rng),
    )
    married = rng.random() < 0.5
    phone = "".join(rng.choices("0123456789", k=rng.randint(6, 10)))
    return [
        (("age", "years"), age, ("is {} years old", "is {}", "turned {} this year")),
        (("city", "town", "place", "home", "location"), city, ("lives in {}", "is from {}", "moved to {}", "comes from {}")),
        (("job", "occupation", "profession", "role"), job, ("works as a {}", "is a {}", "has a job as a {}")),
        (("pet", "animal"), animal, ("has a {}", "owns a {}", "keeps a {}")),
        (("colour", "favourite_colour", "color", "favorite_color"), colour, ("likes the colour {}", "loves {}", "prefers the color {}")),
        (("email", "mail", "email_address"), mail, ("can be reached at {}", "has the e-mail address {}", "writes from {}")),
        (("married", "is_married"), married, ("is married",) if married else ("is not married",)),
        (("company", "employer"), rng.choice(COMPANIES), ("works for {}", "is employed at {}")),
        (("date", "birthday", "born"), f"{rng.choice(MONTHS)} {rng.randint(1, 28)}", ("was born on {}", "has a birthday on {}")),
        (("phone", "phone_number"), phone, ("has the phone number {}", "can be called at {}")),
    ]  # fmt: skip


def _order(rng: random.Random, name: str) -> list[Field]:
    del name
    when = f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
    return [
        (("date", "appointment", "day"), when, ("has an appointment on {}", "comes on {}", "wants a date on {}")),
        (("quantity", "amount", "count"), rng.randint(1, 60), ("wants {} pieces", "ordered {} of them", "needs {} items")),
        (("item", "product", "article"), rng.choice(OBJECTS), ("ordered the {}", "bought a {}", "wants a {}")),
        (("price", "cost", "total"), rng.choice((rng.randint(1, 500), round(rng.uniform(1, 99), 2))), ("paid {} dollars", "spent {} euros", "has to pay {}")),
        (("order_id", "order", "id", "reference"), identifier(rng), ("has the order number {}", "refers to order {}")),
        (("date", "day", "delivery_date"), date(rng), ("expects it on {}", "ordered on {}", "wants delivery on {}")),
        (("time", "hour"), clock(rng), ("comes at {}", "will be there at {}")),
        (("city", "address", "destination"), any_city(rng), ("wants it sent to {}", "lives in {}")),
        (("paid", "is_paid"), rng.random() < 0.5, ()),
    ]  # fmt: skip


def extract(rng: random.Random) -> Turn:
    """Facts about a person or an order, to be written as an object."""
    name = any_name(rng)
    full = f"{name} {rng.choice(SURNAMES)}" if rng.random() < 0.3 else name
    pool = [field for field in rng.choice((_person, _person, _order))(rng, full) if field[2]]
    fields = rng.sample(pool, rng.randint(1, 4))
    said = [(rng.choice(keys), value, rng.choice(ways).format(value)) for keys, value, ways in fields]
    clauses = [clause for _, _, clause in said]
    text = (
        f"{full} {listing(clauses)}."
        if rng.random() < 0.6
        else f"{full} {clauses[0]}."
        + "".join(f" {full if rng.random() < 0.3 else rng.choice(('He', 'She'))} {clause}." for clause in clauses[1:])
    )
    wanted: list[tuple[str, Any]] = [(key, value) for key, value, _ in said]
    wanted.insert(0, (rng.choice(("name", "name", "customer", "person", "full_name")), full))
    if rng.random() < 0.4:
        rng.shuffle(wanted)
    if len(wanted) > 2 and rng.random() < 0.4:
        wanted.pop(rng.randrange(len(wanted)))
    names = [key for key, _ in wanted]
    if rng.random() < 0.25:
        who = f"{full} who {listing(clauses)}"
        user = phrase(
            rng,
            (
                "Return a JSON object with keys {k} for {w}.",
                "Give me JSON with {k} for {w}.",
                "Make a JSON object with the keys {k} for {w}.",
                "JSON with {k} for {w}",
                "Create JSON with keys {k} for {w}.",
            ),
            noise=0.3,
            k=_keys(rng, names),
            w=who,
        )
        return _answer(
            "json",
            user,
            dict(wanted),
            "The values are: " + "; ".join(f"{key} is {json.dumps(value)}" for key, value in wanted) + ".",
        )
    user = phrase(rng, _FORM, noise=0.3, t=text, k=_keys(rng, names))
    thought = "The values are: " + "; ".join(f"{key} is {json.dumps(value)}" for key, value in wanted) + "."
    return _answer("json", user, dict(wanted), thought)


def pairs(rng: random.Random) -> Turn:
    """Arbitrary things with arbitrary values, as one object."""
    keys = list(dict.fromkeys(any_word(rng).lower() for _ in range(rng.randint(1, 4))))
    when = f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"
    makers = (
        lambda: any_word(rng),
        lambda: rng.randint(0, 999),
        lambda: rng.choice((when, date(rng), clock(rng))),
        lambda: any_name(rng),
        lambda: any_city(rng),
        lambda: identifier(rng),
        lambda: rng.random() < 0.5,
    )
    value = {key: rng.choice(makers)() for key in keys}
    shown = {key: str(each).lower() if isinstance(each, bool) else each for key, each in value.items()}
    form = rng.choice(("the {k} is {v}", "{k} is {v}", "{k}: {v}", "{k} = {v}", "its {k} is {v}"))
    text = (
        listing([form.format(k=key, v=each) for key, each in shown.items()])
        if ":" not in form and "=" not in form
        else ", ".join(form.format(k=key, v=each) for key, each in shown.items())
    )
    if rng.random() < 0.4:
        user = phrase(
            rng,
            (
                "Write this as JSON: {t}",
                "Convert to JSON: {t}",
                "Make a JSON object: {t}",
                "{t}. As JSON please.",
                "Turn this into JSON: {t}",
                "Return a JSON object where {t}",
                "Give me JSON: {t}",
            ),
            noise=0.3,
            t=text,
        )
    else:
        user = phrase(rng, _FORM, noise=0.3, t=f"{text[0].upper()}{text[1:]}.", k=_keys(rng, keys))
    return _answer(
        "json",
        user,
        value,
        "The values are: "
        + "; ".join(f"{key} is {json.dumps(each, ensure_ascii=False)}" for key, each in value.items())
        + ".",
    )


def record(rng: random.Random) -> Turn:
    """A fact or a sum as a small object."""
    kind = rng.choice(("capital", "capital", "sum", "product", "continent", "word", "city"))
    if kind == "city":
        place = rng.choice(tuple(WORLD_CITIES))
        value = {"city": place, "country": WORLD_CITIES[place]}
        user = phrase(
            rng,
            (
                "Give me city and country for {c} as JSON.",
                'Give me {"city": ..., "country": ...} for {c} as JSON.',
                "In which country is {c}? Answer as JSON with keys city and country.",
                "{c}: JSON with keys city and country.",
            ),
            noise=0.3,
            c=place,
        )
        return _answer("json", user, value, f"{place} is in {WORLD_CITIES[place]}.")
    if kind in ("capital", "continent"):
        name = country(rng)
        known = {"country": name, "capital": CAPITALS[name], "continent": CONTINENTS[name]}
        keys = (
            rng.sample(("country", kind), 2)
            if rng.random() < 0.6
            else rng.choice((["country", "capital", "continent"], [kind]))
        )
        text = phrase(rng, (f"What is the {kind} of {{c}}?", f"Tell me the {kind} of {{c}}."), noise=0.2, c=name)
        value: dict[str, Any] = {key: known[key] for key in keys}
    elif kind == "word":
        word = any_word(rng)
        keys = ["word", "length"] if rng.random() < 0.6 else ["word", "first", "last", "length"]
        known = {"word": word, "length": len(word), "first": word[0], "last": word[-1]}
        text = f"Take the word {word}."
        value = {key: known[key] for key in keys}
    else:
        a, b = rng.randint(1, 99), rng.randint(1, 99 if kind == "sum" else 12)
        result = a + b if kind == "sum" else a * b
        sign = "+" if kind == "sum" else "*"
        key = rng.choice(("result", "answer", "sum" if kind == "sum" else "product", "value"))
        value = rng.choice(({key: result}, {"a": a, "b": b, key: result}))
        text = rng.choice((f"What is {a} {sign} {b}?", f"Compute {a} {sign} {b}."))
    user = phrase(rng, _FORM, noise=0.3, t=text, k=_keys(rng, list(value)))
    return _answer(
        "json",
        user,
        value,
        "I fill in the keys: " + "; ".join(f"{key} is {json.dumps(each)}" for key, each in value.items()) + ".",
    )


def array(rng: random.Random) -> Turn:
    """A list, bare or under a key."""
    kind = rng.choice(("numbers", "words", "group", "people"))
    if kind == "numbers":
        start, size = rng.randint(1, 20), rng.randint(3, 8)
        row: list[Any] = list(range(start, start + size))
        text = f"the numbers from {start} to {start + size - 1}"
    elif kind == "words":
        row = [any_word(rng) for _ in range(rng.randint(2, 5))]
        text = f"the words {listing(row)}"
    elif kind == "group":
        name, group = rng.choice(
            (("fruits", FRUITS), ("animals", ANIMALS[:-2]), ("colours", COLOURS), ("colors", COLOURS))
        )
        row = rng.sample(group, rng.randint(2, 5))
        text = f"{len(row)} {name}"
    else:
        people = [(any_name(rng), rng.randint(5, 90)) for _ in range(rng.randint(2, 3))]
        row = [{"name": name, "age": age} for name, age in people]
        said = listing([f"{name} is {age}" for name, age in people])
        user = phrase(
            rng,
            (
                "{t}. Give a JSON array of objects with name and age.",
                "{t}. As a JSON list with name and age, please.",
                "Write as a JSON array with the keys name and age: {t}.",
            ),
            noise=0.3,
            t=said,
        )
        return _answer("json", user, row, "There is one object for each person.")
    if rng.random() < 0.5:
        key = rng.choice(("items", "list", "values", "result", "words", "data"))
        user = phrase(
            rng,
            (
                "Write {t} as JSON with the key {k}.",
                "Give me {t} as a JSON object with a list under {k}.",
                "Return {t} as JSON: one key {k} with an array.",
            ),
            noise=0.3,
            t=text,
            k=key,
        )
        return Turn(
            "json",
            user,
            json.dumps({key: row}),
            f"The list goes under the key {key}.",
            Check("json", {key: row} if kind != "group" else None),
        )
    user = phrase(
        rng,
        (
            "Write {t} as a JSON array.",
            "Give me {t} as a JSON list.",
            "List {t} as a JSON array.",
            "Return {t} as JSON array",
        ),
        noise=0.3,
        t=text,
    )
    return Turn("json", user, json.dumps(row), "I write a JSON array.", Check("json", row if kind != "group" else None))


def classify(rng: random.Random) -> Turn:
    """Sentiment or topic of a short text, as JSON or as one word."""
    thing = rng.choice(OBJECTS)
    good = rng.random() < 0.5
    text = rng.choice(
        ("I love this {}.", "The {} is wonderful.", "What a great {}!", "This {} works very well.", "I am happy with my {}.", "Best {} ever!", "The {} arrived early and looks nice.", "I really like the {}.")
        if good
        else ("I hate this {}.", "The {} is terrible.", "What a bad {}!", "This {} does not work.", "I am not happy with my {}.", "Worst {} ever!", "The {} arrived late and broken.", "I really dislike the {}.")
    ).format(thing)  # fmt: skip
    label = "positive" if good else "negative"
    if rng.random() < 0.5:
        user = phrase(rng, _FORM, noise=0.3, t=f'What is the sentiment of "{text}"?', k=_keys(rng, ["sentiment"]))
        return _answer("json", user, {"sentiment": label}, f"The text sounds {label}.")
    user = phrase(
        rng,
        (
            'Is this text positive or negative? "{t}"',
            'What is the sentiment of "{t}"?',
            "Classify the sentiment: {t}",
            'Sentiment of "{t}"?',
        ),
        noise=0.5,
        t=text,
    )
    return Turn(
        "text", user, f"The sentiment is {label}.", f"The text sounds {label}.", Check("has", [label]), short=label
    )
