"""What is sent: conversations of random words or token ids, with shared prefixes, or from a ShareGPT file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from llmk.api import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LEAST_ID = 100
"""Below it, vocabularies have their special tokens, or none of any use."""
_LIST = """
the of and to in is was for on that with as by at from it an be this which or are not have has had were but one
all their they there been more when who will no if out so said what up its about into than them can only other
new some could time these two may then do first any my now such like our over man me even most made after also
did many before must through years where much your way well down should because each just those people how too
little state good very make world still own see men work long get here between both life being under never day
same another know while last might us great old year off come since against go came right used take three
"""
WORDS = _LIST.split()
"""One token each, in nearly all vocabularies."""
KINDS = ("random", "shared-prefix", "sharegpt")


class Turn(msgspec.Struct, frozen=True):
    """What a user says, as text or token ids, and tokens of the answer."""

    prompt: str | list[int]
    new: int


class Conversation(msgspec.Struct, frozen=True):
    """Turns, of which each is sent when the one before was answered. ``special``: the long one among the others."""

    turns: list[Turn]
    special: bool = False


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """Where conversations come from.

    Attributes:

    kind: one of ``KINDS``. prompt, new: tokens of a prompt and of an answer. spread: lengths differ by up to this
    fraction of them. turns: of a conversation. prefixes, prefix_tokens: number and length of the prefixes of
    ``shared-prefix``. vocabulary: prompts are lists of ids below it; 0: text. tokenizer: a file by which the
    lengths of text are exact; else a word counts as a token. file: of ``sharegpt``. alongside: tokens of one more
    prompt, which is sent after a tenth of the others; 0: none.
    """

    kind: str = "random"
    prompt: int = 512
    new: int = 128
    spread: float = 0.0
    turns: int = 1
    prefixes: int = 4
    prefix_tokens: int = 1024
    vocabulary: int = 0
    tokenizer: str = ""
    file: str = ""
    alongside: int = 0
    seed: int = 1

    def conversations(self, count: int) -> list[Conversation]:
        """So many of them, the same for the same seed. Raises ConfigError for a file that can't be read."""
        random = Random(f"prompts {self.seed}")
        source = _Source(self, random)
        made = source.from_file(count) if self.kind == "sharegpt" else [source.conversation() for _ in range(count)]
        if self.alongside:
            long = Conversation([Turn(source.text(self.alongside), self.new)], special=True)
            made.insert(min(len(made), max(1, count // 10)), long)
        return made


class _Source:
    def __init__(self, prompts: Prompts, random: Random) -> None:
        self._prompts = prompts
        self._random = random
        self._tokenizer = _load_tokenizer(prompts.tokenizer) if prompts.tokenizer else None
        shared = prompts.prefixes if prompts.kind == "shared-prefix" else 0
        self._prefixes = [self.text(prompts.prefix_tokens) for _ in range(shared)]

    def conversation(self) -> Conversation:
        prompts, turns = self._prompts, list[Turn]()
        for number in range(prompts.turns):
            text = self.text(self._length(prompts.prompt))
            if self._prefixes and not number:
                text = _joined(self._random.choice(self._prefixes), text)
            turns.append(Turn(text, self._length(prompts.new)))
        return Conversation(turns)

    def text(self, tokens: int) -> str | list[int]:
        """A random prompt of so many tokens."""
        if self._prompts.vocabulary:
            return [self._random.randrange(LEAST_ID, self._prompts.vocabulary) for _ in range(tokens)]
        words = " ".join(self._random.choices(WORDS, k=tokens))
        if self._tokenizer is None:
            return words
        offsets = self._tokenizer.encode(words, add_special_tokens=False).offsets
        return words[: offsets[tokens - 1][1]] if len(offsets) > tokens else words

    def from_file(self, count: int) -> list[Conversation]:
        """Draws conversations from the file, again where it has too few."""
        found = [talk for talk in map(self._talk, _entries(self._prompts.file)) if talk is not None]
        if not found:
            raise ConfigError(
                f"{self._prompts.file} has no conversation with a question and an answer",
                hint='an entry is {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", "value": ...}]}',
            )
        self._random.shuffle(found)
        return [found[number % len(found)] for number in range(count)]

    def _talk(self, entry: Any) -> Conversation | None:
        said: Any = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        texts = [(str(one.get("from", "")), str(one.get("value", ""))) for one in said or () if isinstance(one, dict)]
        while texts and texts[0][0] not in ("human", "user"):
            texts.pop(0)
        pairs = list(zip(texts[::2], texts[1::2], strict=False))[: self._prompts.turns]
        turns = [Turn(asked, self._count(answer)) for (_, asked), (_, answer) in pairs if asked and answer]
        return Conversation(turns) if turns else None

    def _count(self, text: str) -> int:
        if self._tokenizer is not None:
            return max(1, len(self._tokenizer.encode(text, add_special_tokens=False).ids))
        return max(1, len(text.split()))

    def _length(self, mean: int) -> int:
        spread = int(mean * self._prompts.spread)
        return max(1, self._random.randint(mean - spread, mean + spread))


def _joined(prefix: str | list[int], rest: str | list[int]) -> str | list[int]:
    if isinstance(prefix, str):
        return f"{prefix} {rest}"
    assert isinstance(rest, list)
    return prefix + rest


def _load_tokenizer(name: str) -> Tokenizer:
    from tokenizers import Tokenizer

    path = Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"{file} can't be read as a tokenizer: {error}", hint="--tokenizer tokenizer.json") from error


def _entries(name: str) -> Iterator[Any]:
    """Entries of a JSON list, or of a line of JSON each. Raises ConfigError."""
    if not name:
        raise ConfigError("--data sharegpt needs --file", hint="a JSON list of conversations, or a line of JSON each")
    try:
        text = Path(name).read_text()
        yield from json.loads(text) if text.lstrip().startswith("[") else map(json.loads, text.splitlines())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} can't be read: {error}") from error
