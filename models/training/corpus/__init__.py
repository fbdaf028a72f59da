"""The generated training corpus: an endless, reproducible stream of samples."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

from . import (
    arithmetic,
    dialogue,
    geography,
    jsontasks,
    knowledge,
    persona,
    plain,
    relations,
    rows,
    smalltalk,
    stories,
    textops,
    tools,
    units,
    unknown,
    wordlore,
)
from .core import Call, Check, Message, Sample, Tool, Turn, split_of

__all__ = ["Call", "Check", "Message", "Sample", "Tool", "Turn", "samples"]

TASKS: tuple[tuple[Callable[[random.Random], Turn], float], ...] = (
    (smalltalk.chat, 9),
    (smalltalk.joke, 0.8),
    (knowledge.fact, 4),
    (smalltalk.introduction, 0.6),
    (knowledge.plain_question, 1),
    (smalltalk.pick, 0.4),
    (smalltalk.letter, 0.5),
    (arithmetic.basic, 14),
    (arithmetic.decimals, 2),
    (arithmetic.roots, 0.8),
    (arithmetic.chain, 2),
    (arithmetic.word_problem, 3.5),
    (relations.related, 4),
    (geography.capital, 6),
    (geography.state, 0.8),
    (geography.nowhere, 0.6),
    (geography.city, 2.5),
    (geography.name_countries, 0.7),
    (geography.capital_pair, 0.8),
    (geography.country_of, 1.5),
    (geography.continent, 1.2),
    (geography.confirm, 4),
    (units.exact, 2.5),
    (units.scaled, 3),
    (units.temperature, 3),
    (textops.spell, 1.5),
    (textops.reverse, 3.5),
    (textops.case, 2.5),
    (textops.letters, 3),
    (textops.echo, 2),
    (rows.count, 2),
    (rows.sort, 1.8),
    (rows.list_things, 1.5),
    (wordlore.opposite, 0.8),
    (wordlore.translate, 1),
    (wordlore.calendar, 1.2),
    (textops.rewrite, 1.5),
    (unknown.unknown, 9),
    (jsontasks.extract, 4),
    (jsontasks.pairs, 1.5),
    (jsontasks.record, 2),
    (jsontasks.array, 1.5),
    (jsontasks.classify, 1),
    (tools.single, 10),
    (tools.parallel, 4),
    (tools.answer, 5),
    (tools.again, 3.5),
    (tools.research, 1.2),
    (tools.no_fit, 5),
    (dialogue.memory, 3.5),
    (dialogue.not_told, 0.6),
    (dialogue.next_capital, 1.2),
    (dialogue.next_sum, 1.5),
    (dialogue.repeat, 1.2),
    (dialogue.transform, 1.2),
    (dialogue.reading, 6),
    (dialogue.gist, 1),
    (dialogue.summary, 0.6),
    (persona.named, 1.4),
    (persona.role, 1),
    (persona.told, 1.2),
    (stories.story, 3.5),
    (stories.poem, 1.2),
    (stories.talk, 0.6),
)
"""Task functions with the share of samples that each makes."""
PLAIN_SHARE = 0.03
"""Share of documents without chat markup."""
LOOSE = 0.12
"""Share of turns that get unrelated turns before them."""


def _sample(rng: random.Random, turn: Turn) -> Sample:
    """The messages of a turn, with thinking on or off."""
    turn = persona.dressed(rng, turn)
    thinking = rng.random() < 0.5
    history = turn.history
    if not history and not turn.tools and rng.random() < LOOSE:
        history = dialogue.chatter(rng, rng.choice((1, 1, 2, 3)))
    system: tuple[Message, ...] = ({"role": "system", "content": turn.system},) if turn.system is not None else ()
    messages = [*system, *history, {"role": "user", "content": turn.user}, *turn.results]
    text = turn.direct if turn.direct and not thinking else turn.text
    return Sample(
        turn.category, messages, text, turn.check, turn.thought, thinking, False, turn.calls, list(turn.tools) or None
    )


def samples(seed: int, split: str) -> Iterator[Sample]:
    """Samples of the split (``train`` or ``test``), the same for the same seed.

    A turn belongs to the split of its key; for the test split, turns whose key is always trained are left out.
    """
    rng = random.Random(f"{split} {seed}")
    functions, weights = zip(*TASKS, strict=True)
    while True:
        if split == "train" and rng.random() < PLAIN_SHARE:
            yield plain.document(rng)
            continue
        turn = rng.choices(functions, weights)[0](rng)
        if split_of(turn.key or turn.user) == split:
            yield _sample(rng, replace(turn, user=turn.user.strip()))
