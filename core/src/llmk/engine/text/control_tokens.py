"""Keeps the text of chats from becoming control tokens, no matter what a chat template does with it.

A tokenizer turns the text ``<|im_end|>`` into the token that ends a turn, no matter who wrote it. In a chat, only the
template may write such a token: what clients send is data. So the first character of every control token that their
texts spell out is exchanged, before the template sees it, for a character of Unicode's private use area that stands
nowhere else in the request. It survives trimming, slicing, changes of case, JSON and URL escapes, and comes back as
the character that it stands for when the prompt is tokenized by a *twin* of the tokenizer: there, control tokens go by
secret names, which the rendered prompt has only where the template wrote one.

Texts can also come together to a control token (``<|im_`` of one message and ``end|>`` of the next, or what is left
when a template removes something). So where a text has as much as the first character of one, the prompt is rendered a
second time with all such characters exchanged. If that changes which control tokens the prompt has, it is the one that
counts.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast
from urllib.parse import quote

import tokenizers
from tokenizers import AddedToken

from llmk.api import RequestError

_PRIVATE = [chr(code) for code in range(0xE000, 0xF900)]
_PRIVATE_USED = re.compile(r"[\ue000-\uf8ff]|\\u([ef][0-9a-f]{3})|%(E[EF]%[89AB][0-9A-F]%[89AB][0-9A-F])", re.I)
_TAG_SHAPE = re.compile(r"<[|｜].+[|｜]>")


def texts(value: Any) -> Iterator[str]:
    """All texts in plain data, the keys of tables too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text in it changed, the keys of tables too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {mapped(key, change): mapped(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([mapped(inner, change) for inner in value])
    return value


def unused_characters(count: int, *values: Any) -> list[str]:
    """Characters of the private use area that stand nowhere in ``values``, not in an escape either.

    Raises :class:`~llmk.api.RequestError` where there are too few.
    """
    used: set[str] = set()
    for text in texts(values):
        for found in _PRIVATE_USED.finditer(text):
            code, octets = found.groups()
            used.add(
                chr(int(code, 16)) if code else bytes.fromhex(octets.replace("%", "")).decode() if octets else found[0]
            )
    free = (character for character in _PRIVATE if character not in used)
    chosen = [character for character, _ in zip(free, range(count), strict=False)]
    if len(chosen) < count:
        raise RequestError("the texts use every character of Unicode's private use area", param="messages")
    return chosen


class ControlTokens:
    """The tokens of ``backend`` that the text of a chat must not become: the special ones, and those of the others that
    ``templates`` write or that look like ``<|this|>``. Other added tokens (runs of spaces, ``<table>``) are there
    for text to use.
    """

    def __init__(self, backend: tokenizers.Tokenizer, templates: Iterable[str] = ()) -> None:
        self._backend = backend
        sources = "\n".join(templates)
        tokens = [token for token in backend.get_added_tokens_decoder().values() if _is_control(token, sources)]
        self._tokens = {token.content: token for token in tokens}
        unknown = getattr(backend.model, "unk_token", None)
        self._ids = frozenset(backend.token_to_id(content) for content in self._tokens if content != unknown)
        self._all = _Finder(self._tokens)
        self._special, self._tags = (
            _Finder(content for content, token in self._tokens.items() if token.special is special)
            for special in (True, False)
        )

    def count(self, token_ids: Iterable[int]) -> int:
        """How many of them are among ``token_ids``."""
        return sum(map(self._ids.__contains__, token_ids))

    def found(self, text: str) -> list[str]:
        """Those that ``text`` spells out, in order."""
        return self._all.every(text)

    def disguise(self, *values: Any) -> Disguise | None:
        """What keeps the texts in ``values`` from becoming control tokens; ``None`` where none of them could."""
        if not any(map(self._all.may_start, texts(values))):
            return None
        return Disguise(self._all, self._special, self._tags, values)

    def encode(self, text: str, reveal: Callable[[str], str] = str) -> list[int]:
        """The tokens of ``text``, in which only what it spells out itself are control tokens, not what ``reveal`` makes
        of the text between them."""
        backend, names, ids = self._twin
        parts: list[str] = []
        at = 0
        for match in self._all.matches(text):
            parts += [reveal(text[at : match.start()]), names[match.group()]]
            at = match.end()
        parts.append(reveal(text[at:]))
        tokens = backend.encode("".join(parts), add_special_tokens=False).ids
        return [ids.get(token, token) for token in tokens]

    def encode_as_text(self, text: str) -> list[int]:
        """The tokens of ``text``, none of which is a control token."""
        backend, _, ids = self._twin
        return [ids.get(token, token) for token in backend.encode(text, add_special_tokens=False).ids]

    @cached_property
    def _twin(self) -> tuple[tokenizers.Tokenizer, dict[str, str], dict[int, int]]:
        """A tokenizer for which control tokens have other names, their names, and the ids that stand for others here.

        Made when a text first spells out a control token, as it takes as much memory as the tokenizer itself.
        """
        secret = secrets.token_hex(16)
        names = {content: f"\ue000{secret}:{number}\ue001" for number, content in enumerate(self._tokens)}
        state = json.loads(self._backend.to_str())
        state |= {"added_tokens": [], "post_processor": None, "model": _renamed(state["model"], names)}
        twin = tokenizers.Tokenizer.from_str(json.dumps(state))
        ids: dict[int, int] = {}
        for own, token in sorted(self._backend.get_added_tokens_decoder().items()):
            name = names.get(token.content)
            if name is not None:
                token = AddedToken(name, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False)
            twin.add_tokens([token])
            ids[cast(int, twin.token_to_id(token.content))] = own
        return twin, names, ids


class Disguise:
    """Exchanges first characters of control tokens in the texts of one request, ``values``, and back."""

    def __init__(self, everything: _Finder, special: _Finder, tags: _Finder, values: Sequence[Any]) -> None:
        self._all, self._special, self._tags = everything, special, tags
        self._masks = dict(zip(everything.firsts, unused_characters(len(everything.firsts), values), strict=True))
        self._revealed = [
            (mask_form, form)
            for first, mask in self._masks.items()
            for mask_form, form in ((mask, first), (json.dumps(mask)[1:-1], first), (quote(mask), quote(first)))
        ]
        self.used = False
        """Whether something was exchanged."""
        self.partly = False
        """Whether something was left that a control token could start with."""

    def apply(self, messages: Sequence[Mapping[str, Any]], *others: Any, thorough: bool = False) -> list[Any]:
        """``messages`` and ``others`` in disguise; ``thorough``: every first character, not only of whole tokens.

        In what the assistant said, tokens that are not special stay as they are: templates take the thinking out of it
        by ``<think>`` and ``</think>``, and the model wrote them as tokens once.
        """
        hide, hide_spoken = self._hide(self._all), self._hide(self._special)
        if thorough:
            hide, hide_spoken = self._hide_firsts, self._hide_firsts_outside_tags

        def disguised(message: Mapping[str, Any]) -> dict[str, Any]:
            spoken = "content" if message.get("role") == "assistant" else None
            return {
                mapped(key, hide): mapped(value, hide_spoken if key == spoken else hide)
                for key, value in message.items()
            }

        return [[disguised(message) for message in messages], *(mapped(other, hide) for other in others)]

    def reveal(self, text: str) -> str:
        """``text`` as it would be without a disguise."""
        for mask_form, form in self._revealed:
            text = text.replace(mask_form, form)
        return text

    def _hide(self, finder: _Finder) -> Callable[[str], str]:
        def hide(text: str) -> str:
            if not self._all.may_start(text):
                return text
            hidden, count = finder.pattern.subn(lambda found: self._masks[found[0][0]] + found[0][1:], text)
            self.used |= count > 0
            self.partly |= self._all.may_start(hidden)
            return hidden

        return hide

    def _hide_firsts(self, text: str) -> str:
        for first, mask in self._masks.items():
            text = text.replace(first, mask)
        return text

    def _hide_firsts_outside_tags(self, text: str) -> str:
        parts, at = [], 0
        for tag in self._tags.matches(text):
            parts += [self._hide_firsts(text[at : tag.start()]), tag.group()]
            at = tag.end()
        return "".join([*parts, self._hide_firsts(text[at:])])


class _Finder:
    """Finds words in texts, the longest of those that start at a place, in time linear in the text."""

    def __init__(self, words: Iterable[str]) -> None:
        words = list(words)
        self.firsts = sorted({word[0] for word in words})
        self.pattern = re.compile(_trie_pattern(words) if words else "(?!)")
        self._first = re.compile(f"[{re.escape(''.join(self.firsts))}]" if words else "(?!)")

    def may_start(self, text: str) -> bool:
        """Whether ``text`` has a character that one of the words starts with."""
        return self._first.search(text) is not None

    def matches(self, text: str) -> Iterator[re.Match[str]]:
        """The words in ``text``."""
        return self.pattern.finditer(text)

    def every(self, text: str) -> list[str]:
        """The words in ``text``, in order."""
        return self.pattern.findall(text)


def _trie_pattern(words: Sequence[str]) -> str:
    """An expression for any of ``words``, longer ones first, that looks at no character twice: a plain alternation
    would try hundreds of reserved tokens at every ``<``."""
    branches: dict[str, list[str]] = {}
    for word in words:
        if word:
            branches.setdefault(word[0], []).append(word[1:])
    inner = "|".join(re.escape(first) + _trie_pattern(rest) for first, rest in sorted(branches.items()))
    if len(branches) < 2 and "" not in words:
        return inner
    return f"(?:{inner})?" if inner and "" in words else f"(?:{inner})"


def _is_control(token: AddedToken, templates: str) -> bool:
    text = token.content
    named = text in templates and not text.isspace()
    return bool(text) and (token.special or named or _TAG_SHAPE.fullmatch(text) is not None)


def _renamed(model: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The state of a tokenizer's model whose vocabulary calls some tokens otherwise, so that no text makes them."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        renamed: Any = {names.get(piece, piece): id for piece, id in vocabulary.items()}
    else:
        renamed = [[names.get(piece, piece), score] for piece, score in vocabulary]
    model = {**model, "vocab": renamed}
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not {*pair, "".join(pair)} & names.keys()]
    return model
