"""Stories, poems and longer explanations, put together from parts so that long answers exist."""

import random

from .core import Check, Turn, article, phrase
from .lexicon import ADJECTIVES, ANIMALS, COLOURS, FOODS, JOBS, NATURE, NOUNS, OBJECTS, any_name, any_word
from .smalltalk import INTENTS

_PLACES = (
    "in a quiet village", "at the edge of a dark forest", "on a green hill", "near a wide river", "in an old castle", "by the sea", "in a busy city",
    "on a small island", "in a little house", "high up in the mountains", "behind the old mill", "in a garden full of flowers",
)  # fmt: skip
_TIMES = (
    "One morning",
    "One day",
    "On a cold evening",
    "Early in spring",
    "One summer day",
    "On a windy afternoon",
    "Late one night",
    "On the first day of autumn",
)
_WISHES = (
    "to see the sea", "to find a friend", "to learn a song", "to climb the highest hill", "to build a boat", "to find a lost {o}", "to bake the best {f} of all",
    "to see the world", "to fly like a bird", "to find out where the river ends", "to give a gift to the {h2}", "to touch a star",
)  # fmt: skip
_TROUBLES = (
    "But a storm came up, and the rain fell for hours.", "But the way was long, and the night was dark.", "But the bridge was broken, and the water was deep.",
    "But nobody knew the way.", "But a heavy stone lay on the path.", "But the door was closed, and the key was gone.", "But the map got wet, and its lines were gone.",
    "But the wind took the {o} and carried it away.",
)  # fmt: skip
_HELP = (
    "A {a2} {h2} came by and asked, \"Why do you look so sad?\"", "Then a {a2} {h2} stopped and offered to help.", "A {a2} {h2} had watched all this and came closer.",
    "Just then, a {a2} {h2} looked out from behind a tree.",
)  # fmt: skip
_DEEDS = (
    "Together they pushed and pulled until the way was free.", "The {h2} knew a secret path, and they walked it side by side.", "They waited, shared a piece of {f}, and told each other stories.",
    "The {h2} had a lamp, and its light showed them the way.", "They built a small raft and crossed the water.", "They asked the moon, and the moon shone brighter than before.",
)  # fmt: skip
_MIDDLES = (
    "On the way they met {x}, who told them to be brave.", "They rested under {y} and looked at the clouds.", "The {h} found {z} and kept it for luck.",
    "The sun came out, and the whole land looked {c}.", "They laughed so much that even the birds joined in.", "For lunch they had {f}, and it tasted better than ever.",
    "The {h} sang a song, and the {h2} danced to it.", "They crossed three hills and two rivers before the night came.", "At night they counted the stars until they fell asleep.",
    "The {h} was tired, but did not give up.", "An owl called from far away, and they followed the sound.", "Each step was small, but each step counted.",
    "The {h2} told a joke about {z}, and they both smiled.", "They drew a map so that others could follow.",
)  # fmt: skip
_ENDS = (
    "In the end the wish came true.", "At last they were there, and it was more beautiful than in any dream.", "When the sun rose, everything was good again.",
    "And so the long day came to a happy end.",
)  # fmt: skip
_MORALS = (
    "From then on, the {h} and the {h2} were the best of friends.", "The {h} learnt that no way is too long with a friend.", "And if you listen on a quiet night, you can still hear them laugh.",
    "The {h} never forgot that day.", "Since then the {h} has helped everyone who asks.", "They went home and told everyone about it.",
)  # fmt: skip
_ASK = (
    "Tell me a story about {t}.", "Write a story about {t}.", "Tell me a short story about {t}.", "Write a short story about {t}.", "Can you tell me a story about {t}?",
    "A story about {t} please.", "Write me a story about {t}.", "Tell me a story with {t}.", "I want a story about {t}.", "Make up a story about {t}.", "Tell a fairy tale about {t}.", "Once upon a time there was {t}. Continue.",
)  # fmt: skip
_ASK_ANY = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "Write a short story.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Tell a story please.",
    "Story time!",
    "Tell me a bedtime story.",
    "Make up a story.",
)


def tale(rng: random.Random, hero: str, middles: int, name: str = "", kind: str = "", second_hero: str = "") -> str:
    """A story of about ``middles + 9`` sentences; ``kind`` is the hero's adjective."""
    helper = second_hero or rng.choice([animal for animal in ANIMALS if animal != hero])
    adjective, second = rng.sample(ADJECTIVES, 2)
    slots = {
        "h": hero, "h2": helper, "a2": second, "o": rng.choice([thing for thing in OBJECTS if thing != hero]), "f": rng.choice(FOODS), "c": rng.choice(COLOURS),
        "x": article(rng.choice(JOBS)), "y": article(rng.choice(("tree", "bridge", "roof", "tower"))), "z": article(rng.choice(OBJECTS)),
    }  # fmt: skip
    adjective = kind or adjective
    called = f" called {name}" if name else ""
    parts = [
        f"Once upon a time, there was {article(adjective)} {hero}{called} who lived {rng.choice(_PLACES)}.",
        f"More than anything, the {hero} wanted {rng.choice(_WISHES)}.",
        f"{rng.choice(_TIMES)}, the {hero} set out.",
        rng.choice(_TROUBLES),
        rng.choice(_HELP),
        rng.choice(_DEEDS),
        *rng.sample(_MIDDLES, middles),
        rng.choice(_ENDS),
        rng.choice(_MORALS),
    ]
    return " ".join(parts).format(**slots).replace("A old", "An old").replace(" a old", " an old")


def story(rng: random.Random) -> Turn:
    """A story about a given hero or any hero, of the wanted length."""
    length = rng.choice(("", "", "", "short", "long"))
    middles = {"": rng.randint(1, 6), "short": 0, "long": rng.randint(8, 12)}[length]
    hero = (
        rng.choice(ANIMALS if rng.random() < 0.5 else NOUNS)
        if rng.random() < 0.8
        else rng.choice(
            (
                any_word(rng),
                f"{rng.choice(NOUNS)} {rng.choice(('keeper', 'maker', 'hunter', 'seller', 'painter'))}",
                "princess",
                "prince",
                "knight",
                "boy",
                "girl",
                "witch",
                "king",
            )
        )
    )
    other = (
        rng.choice((*ANIMALS, *JOBS, "princess", "prince", "knight", "king", "queen", any_word(rng)))
        if rng.random() < 0.25
        else ""
    )
    name = any_name(rng) if rng.random() < 0.3 else ""
    kind = rng.choice(ADJECTIVES) if rng.random() < 0.25 else ""
    if rng.random() < 0.75:
        topic = article(f"{kind} {hero}".strip())
        topic += f" named {name}" if name else ""
        topic += f" and {article(other)}" if other else ""
        user = phrase(rng, _ASK, noise=0.7, t=topic)
    else:
        user, name, kind, other = phrase(rng, _ASK_ANY, noise=0.7), "", "", ""
        topic = article(hero)
    if length == "long":
        user = (
            user.replace("short story", "long story").replace("a story", "a long story").replace("fairy", "long fairy")
        )
    if "long" not in user:
        middles = min(middles, 6)
    text = tale(rng, hero, middles, name, kind, other)
    if length == "short" and rng.random() < 0.5:
        user = f"{user.rstrip('.!? ')} in three sentences."
        first, *rest = text.split(". ")
        text = ". ".join([first, rest[0], rest[-1]])
    return Turn("stories", user, text, f"The user wants a story. The hero is {topic}.", Check("prose", 25))


_COUPLETS = tuple(tuple(line.split("/")) for line in """
The {t} is near, the {t} is far,/it shines at night like any star.
I saw {at} one day in spring,/and all at once I had to sing.
The wind was soft, the sky was blue,/the {t} was there, and so were you.
The morning came with golden light,/and took away the quiet night.
A little {t} upon a hill/looked at the world and sat quite still.
The rain fell down on roof and tree,/the {t} looked out and smiled at me.
The river runs, the river bends,/and good days come to those with friends.
So close your eyes and dream a while,/and think of {at} and softly smile.
The stars come out, the day is done,/tomorrow brings another sun.
O {t}, you are a joy to see,/stay a little while with me.
The clouds go by, the leaves fall down,/there is {at} in every town.
The snow lies deep, the fire is warm,/the {t} is safe from any storm.
""".strip().split("\n"))  # fmt: skip
_HAIKUS = tuple(line.split("/") for line in """
Quiet morning light/the {t} waits in the garden/and the day begins
Soft rain on the roof/I think about the {t}/until it grows dark
The moon above us/a small song about the {t}/drifts across the lake
Autumn leaves fall down/somewhere near the {t} a bird/calls for one more day
A cold winter night/only the {t} is awake/and the stars look on
""".strip().split("\n"))  # fmt: skip


def poem(rng: random.Random) -> Turn:
    """A rhymed poem or a haiku about a thing."""
    thing = rng.choice(
        (
            rng.choice(NATURE + NOUNS),
            rng.choice(NATURE + NOUNS),
            rng.choice(
                ("spring", "summer", "autumn", "winter", "love", "time", "music", "hope", "home", "friendship", "night")
            ),
            any_word(rng),
        )
    )
    haiku = rng.random() < 0.25
    kind = (
        "haiku"
        if haiku
        else rng.choice(("poem", "poem", "short poem", "rhyme", "little poem", "limerick", "song", "verse"))
    )
    topic = rng.choice((article(thing), article(thing), f"the {thing}", thing))
    if rng.random() < 0.15:
        user, thing = (
            phrase(rng, ("Write a {k}.", "Write me a {k}.", "A {k} please.", "Can you write a {k}?"), k=kind),
            rng.choice(NATURE),
        )
    else:
        user = phrase(
            rng,
            (
                "Write a {k} about {t}.",
                "Write me a {k} about {t}.",
                "Can you write a {k} about {t}?",
                "A {k} about {t} please.",
                "Compose a {k} about {t}.",
            ),
            noise=0.7,
            k=kind,
            t=topic,
        )
    if haiku:
        lines = rng.choice(_HAIKUS)
    else:
        couplets = rng.sample(_COUPLETS, 2 if "short" in user.lower() or rng.random() < 0.6 else rng.randint(3, 5))
        lines = [line for couplet in couplets for line in couplet]
    text = "\n".join(line.format(t=thing, at=article(thing)) for line in lines) + "." * haiku
    return Turn("stories", user, text[0].upper() + text[1:], f"I write a {kind} about the {thing}.", Check("prose", 8))


_TALKS = ("llmk", "plugin", "microkernel", "kv", "batch", "llm", "inference", "token", "think", "toolcalls", "api")
_LINKS = (
    "First, the main idea.",
    "There is more to say.",
    "Here is the next point.",
    "It is worth adding this.",
    "One more thing.",
    "To go on:",
    "Also:",
)


def talk(rng: random.Random) -> Turn:
    """A long explanation of serving with llmk."""
    topics = rng.sample(_TALKS, rng.randint(3, 6))
    user = phrase(
        rng,
        ("Explain in detail how llmk works.", "Write a long text about llmk.", "Tell me everything about llmk.", "Write an essay about llmk.", "Explain LLM serving in detail.",
         "Give me a long explanation of llmk.", "Write several paragraphs about llmk.", "Explain llmk to a beginner in detail.", "Write a blog post about llmk.", "Tell me all you know about llmk and serving."),
    )  # fmt: skip
    paragraphs = [rng.choice(INTENTS["llmk"][2])] + [
        f"{rng.choice(_LINKS)} {rng.choice(INTENTS[topic][2])}" for topic in topics if topic != "llmk"
    ]
    return Turn(
        "stories",
        user,
        "\n\n".join(paragraphs),
        "A longer text. I go through the main ideas one by one.",
        Check("prose", 40),
    )
