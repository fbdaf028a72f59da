"""Plain documents without chat markup, for servers that complete a text."""

import random

from .arithmetic import basic
from .core import Check, Sample, article, bars
from .dialogue import trained
from .geography import CAPITALS, CONTINENTS, country, sentence_case
from .knowledge import FACTS
from .lexicon import NOUNS, any_name
from .smalltalk import INTENTS, JOKES
from .stories import poem, tale


def _cut(rng: random.Random, text: str, category: str, after: str = " ") -> Sample:
    """A document cut at a random place where a word begins; what follows is the reply."""
    places = [at for at in range(1, len(text)) if text[at] in after]
    at = rng.choice(places) if places else len(text) // 2
    return Sample(category, [{"role": "text", "content": text[:at]}], text[at:], Check("prose", 1), plain=True)


def document(rng: random.Random) -> Sample:
    """A fact, story, poem, sum, count or question with its answer, to be continued."""
    kind = rng.choice(
        ("capital", "capital", "story", "story", "sum", "count", "question", "facts", "llmk", "poem", "joke")
    )
    if kind == "capital":
        rows = []
        for _ in range(rng.randint(1, 5)):
            name = country(rng)
            rows.append(
                rng.choice(
                    (
                        f"The capital of {name} is {CAPITALS[name]}.",
                        f"{CAPITALS[name]} is the capital of {name}.",
                        sentence_case(f"{name} is in {CONTINENTS[name]}."),
                    )
                )
            )
        return _cut(rng, " ".join(rows), "plain")
    if kind == "story":
        return _cut(
            rng, tale(rng, rng.choice(NOUNS), rng.randint(0, 8), any_name(rng) if rng.random() < 0.3 else ""), "plain"
        )
    if kind == "sum":
        rows = [trained(rng, (basic,)).text for _ in range(rng.randint(1, 6))]
        return _cut(rng, "\n".join(rows), "plain")
    if kind == "count":
        start = rng.randint(0, 50)
        return _cut(rng, ", ".join(map(str, range(start, start + rng.randint(5, 40)))), "plain")
    if kind == "question":
        requests, answer = rng.choice(FACTS)
        form = rng.choice(
            ("Q: {q}\nA: {a}", "Question: {q}\nAnswer: {a}", "{q} {a}", "{q}\n{a}", "User: {q}\nAssistant: {a}")
        )
        return _cut(rng, form.format(q=rng.choice(bars(requests)), a=answer.replace("\\n", "\n")), "plain")
    if kind == "poem":
        return _cut(rng, poem(rng).text, "plain", " \n")
    if kind == "joke":
        return _cut(rng, rng.choice(JOKES), "plain")
    if kind == "facts":
        return _cut(
            rng, " ".join(rng.choice(FACTS)[1].replace("\\n", "\n") for _ in range(rng.randint(1, 4))), "plain", " \n"
        )
    topics = rng.sample(
        ("llmk", "plugin", "microkernel", "kv", "batch", "llm", "inference", "token"), rng.randint(1, 4)
    )
    opening = rng.choice(
        ("", "", f"Here is a text about llmk, written by {article('very small model')}. ", "About llmk: ")
    )
    return _cut(rng, opening + " ".join(rng.choice(INTENTS[topic][2]) for topic in topics), "plain")
