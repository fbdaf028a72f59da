"""Questions outside the model's small world, and the honest answer."""

import random

from .arithmetic import plural
from .core import Check, Turn, article, phrase, say
from .geography import COUNTRIES
from .lexicon import (
    ABSTRACT,
    ADJECTIVES,
    COMPANIES,
    JOBS,
    NOUNS,
    PEOPLE,
    TOPICS,
    VERBS,
    WORKS,
    any_city,
    any_name,
    any_word,
)

_ABOUT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Explain {t}.", "Explain {t} to me.", "What is {t}?", "Tell me about {t}.", "How does {t} work?", "Summarize {t}.", "Give me an overview of {t}.", "What do you know about {t}?", "Write an essay about {t}.", "Why is {t} important?", "Describe {t} in detail.", "What are the main ideas of {t}?", "Teach me {t}.", "Who discovered {t}?", "Can you explain {t} in simple terms?", "Write a paragraph about {t}."), "{t}"),
    (("Who was {p}?", "Who is {p}?", "When was {p} born?", "When did {p} die?", "What did {p} do?", "Tell me about {p}.", "Where was {p} born?", "Why is {p} famous?", "How old is {p}?", "What is {p} known for?"), "{p}"),
    (("Who wrote {w}?", "Who painted {w}?", "Who made {w}?", "When was {w} written?", "What is {w} about?", "Summarize {w}.", "Who is the author of {w}?", "Have you read {w}?", "What year did {w} come out?"), "{w}"),
    (("What is the population of {c}?", "How many people live in {c}?", "What is the best restaurant in {c}?", "Who is the mayor of {c}?", "How far is {c} from here?", "What should I see in {c}?", "Plan a trip to {c}.", "How big is {c}?", "When was {c} founded?", "How do I get to {c}?"), "{c}"),
    (("What is the price of {n}?", "How much does {n} cost?", "How do I repair {n}?", "How do I build {n}?", "Who invented {n}?", "Where can I buy {n}?", "What is the history of {n}?", "How heavy is {n}?", "What is the best {x}?", "Why do people use {n}?", "How do you make {n}?", "What are the parts of {n}?"), "that"),
    (("Who is the president?", "Who won the election?", "What is the news today?", "What is the weather like?", "What time is it?", "What day is it today?", "What is today's date?", "What is the stock price of Apple?", "Will it rain tomorrow?", "Who won the game yesterday?", "What is the exchange rate of the dollar?", "Is it raining?", "What's the weather today?", "What is the temperature outside?", "What year is it?"), "the present day"),
    (("Should I {v} or {v2}?", "How can I learn to {v}?", "What is the best way to {v}?", "How do I {v} better?", "Why do people {v}?", "Can you teach me to {v}?", "How often should I {v}?"), "that"),
    (("How do I become {j}?", "What does {j} earn?", "How much money does {j} make?", "What does {j} do all day?", "Is it hard to be {j}?"), "that"),
    (("How long do {s} live?", "Where do {s} come from?", "How many {s} are there in the world?", "Why are {s} so {a}?", "Are {s} {a}?", "What is the difference between {s} and {s2}?", "Do you like {s}?", "What do {s} need?", "How are {s} made?"), "{s}"),
    (("What is the {e} {x} in the world?", "What is the {e} {x} ever?", "Which {x} is the {e}?", "What was the {e} {x} of all time?", "Who has the {e} {x}?", "Where is the {e} {x}?", "Name the {e} {x} in {c}.", "Who built the {e} {x}?", "What is the {e} building in the world?", "What is the {e} movie?"), "that"),
    (("What is the difference between {n} and {n2}?", "Explain the difference between {n} and {n2}.", "Compare {t} with {t2}.", "What is better, {n} or {n2}?", "How does {t} differ from {t2}?", "What are the pros and cons of {t}?"), "such comparisons"),
    (("Who won {g} in {y}?", "What happened in {y}?", "Who was the {r} of {c} in {y}?", "When did {g} start?", "Who is the {r} of {c}?", "Who is the {r} of {o2}?", "Who runs {o2}?", "What does {o2} sell?", "Who founded {o2}?", "When was {o2} founded?", "How many people work at {o2}?", "Who is the {r}?"), "that"),
    (("Who {d} the {x}?", "When did {q} {v} the {x}?", "Why did the {x} {v}?", "How does {n} {v}?", "Why is the {x} {a}?", "Where did {q} {v}?", "What makes {n} {a}?", "Can you {v} {n}?", "Which {x} should I {v}?", "What would happen if the {x} could {v}?", "How many {s} can {v}?", "What kind of {x} is {a}?", "Have you ever seen {n}?", "Is it {a} to {v} {n}?"), "that"),
    (("What is the capital gain of {t}?", "What language do they speak in {l}?", "What is the currency of {l}?", "What is the population of {l}?", "Who is the president of {l}?", "What is the flag of {l}?", "What do people eat in {l}?", "How many people live in {l}?", "Is {l} a rich country?", "What is the history of {l}?"), "that"),
    (("Write a program that sorts a list.", "Write code for a web server.", "Write an SQL query that joins two tables.", "Fix my code.", "Write a regular expression for emails.", "Write a Java class for {n}.", "Debug this function for me.", "Write a C program about {t}.", "Implement quicksort.", "Write a compiler."), "that kind of code"),
    (("Prove that there are infinitely many primes.", "Solve x^2 + {k}x = {m}.", "What is the integral of x^{k}?", "What is the derivative of x^{k}?", "What is the logarithm of {m}?", "Solve the equation {k}x + 3 = {m}.", "Factor {m}.", "Integrate x^{k} + {m}.", "Simplify {k}x + {m}x."), "that kind of mathematics"),
    (("Give me medical advice.", "Which medicine should I take?", "My {o} is broken, what now?", "Should I invest in {t}?", "Is it legal to {v} there?", "Write my homework about {t}.", "Write a cover letter for {j}.", "What will happen in the future?", "Where is my {o}?", "What am I thinking?", "What is the phone number of {q}?", "Do you know my friend {q}?", "How old is my {o}?", "Book a table for me.", "Find {q} for me.", "Translate this page.", "What does {z} mean?", "Who is {q}?", "Tell me about the {z}."), "that"),
)  # fmt: skip
_SUPERLATIVES = (
    "oldest", "newest", "fastest", "slowest", "largest", "smallest", "tallest", "best", "worst", "cheapest", "most expensive", "strongest", "heaviest", "first", "last",
)  # fmt: skip
_GAMES = (
    "the World Cup",
    "the world cup",
    "the election",
    "the Olympic Games",
    "the Super Bowl",
    "the war",
    "the race",
    "the championship",
    "the tour",
    "the lottery",
)
_ROLES = (
    "president",
    "king",
    "queen",
    "mayor",
    "CEO",
    "prime minister",
    "owner",
    "captain",
    "coach",
    "leader",
    "founder",
)
_FIRMS = (
    "Apple",
    "Google",
    "Microsoft",
    "Amazon",
    "Tesla",
    "Toyota",
    "Nvidia",
    "IBM",
    "Sony",
    "BMW",
    "Netflix",
    "Intel",
    "OpenAI",
    "NASA",
    "the bank",
    "the school",
)
_DEEDS = (
    "invented",
    "discovered",
    "built",
    "wrote",
    "painted",
    "found",
    "made",
    "killed",
    "owns",
    "designed",
    "stole",
    "bought",
    "named",
    "composed",
)
_ANSWERS = (
    "I am sorry, I do not know much about {x}. I am a very small model.",
    "I do not know about {x}. I am only a very small demo model; a larger model can help you.",
    "Sorry, {x} is beyond me. I do not know the answer, because I am a very small model.",
    "I am afraid that I do not know. I am a very small model, and {x} is outside of what I learnt.",
    "That is a good question, but I do not know the answer. A larger model will know more about {x}.",
)
_THOUGHTS = (
    "I have not learnt about {x}. I say so honestly.",
    "This is outside of what I know. I should not guess.",
    "I do not know {x}. It is best to admit it.",
)


def unknown(rng: random.Random) -> Turn:
    """A question that only a larger model can answer."""
    templates, about = rng.choice(_ABOUT)
    thing, second = rng.sample(NOUNS, 2)
    verb, verb2 = rng.sample(VERBS, 2)
    slots = {
        "t": rng.choice(TOPICS) if rng.random() < 0.7 else rng.choice(ABSTRACT),
        "p": rng.choice(PEOPLE), "w": rng.choice(WORKS), "c": any_city(rng), "n": article(thing), "x": thing, "v": verb, "v2": verb2,
        "j": article(rng.choice(JOBS)), "s": plural(thing), "s2": plural(second), "a": rng.choice(ADJECTIVES), "o": thing,
        "e": rng.choice(_SUPERLATIVES), "t2": rng.choice(TOPICS), "n2": article(second), "g": rng.choice(_GAMES), "y": rng.randint(1800, 2030), "r": rng.choice(_ROLES),
        "o2": rng.choice(COMPANIES) if rng.random() < 0.4 else rng.choice(_FIRMS), "d": rng.choice(_DEEDS), "l": rng.choice(COUNTRIES),
        "q": any_name(rng), "z": any_word(rng) if rng.random() < 0.2 else f"{any_word(rng)} {any_word(rng)}", "k": rng.randint(2, 9), "m": rng.randint(10, 999),
    }  # fmt: skip
    user = phrase(rng, templates, **slots)
    subject = about.format(**slots)
    return Turn("unknown", user, say(rng, _ANSWERS, x=subject), say(rng, _THOUGHTS, x=subject), Check("unknown"))
