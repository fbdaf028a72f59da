"""The contract of grammars: which tokens a request's output may continue with.

A grammar is compiled from its text, as the request gives it, for the tokens of a model. What was compiled is started
once for each output that must match it. That runs on the host, while the device computes the step whose logits it
constrains.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

GrammarKind = Literal["regex", "choice", "json", "lark"]
"""What the text of a grammar is: ``"regex"``, a regular expression that the whole output matches, in which ``\\d``,
``\\w`` and ``\\s`` are of ASCII, or of Unicode; ``"choice"``, a JSON array of the texts that the output may be;
``"json"``, a JSON schema, of which the output is an instance;
``"lark"``, a context-free grammar in llguidance's variant of Lark (https://github.com/guidance-ai/llguidance,
docs/syntax.md), which has ``%json`` for JSON schemas, ``[lazy]`` rules and ``<[id]>`` for special tokens."""


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """The most that one grammar may cost: ``symbols`` of its rules once it is compiled, and ``states`` of the automata
    that its matching makes as it goes."""

    symbols: int = 200_000
    states: int = 20_000


@dataclass(frozen=True, slots=True)
class GrammarContext:
    """The constructor argument of a grammar compiler.

    ``tokens`` are the bytes of each token of the model's vocabulary, inside a longer text: empty for ids without text.
    Those of ``special_token_ids`` are control tokens, which stand for no text of an output. ``encode`` returns the
    tokens of a text as the model's tokenizer writes it. ``options`` is the plugin's section of the configuration,
    ``[plugin.NAME]``.

    A compiler is also made with the 256 bytes as its tokens, none of them special, in processes without the model's, to
    check requests.
    """

    tokens: Sequence[bytes]
    special_token_ids: frozenset[int]
    encode: Callable[[str], list[int]]
    limits: GrammarLimits = GrammarLimits()
    options: Mapping[str, Any] = field(default_factory=dict)


class Grammar(Protocol):
    """What one output must match, and how far it has come.

    An exception of any method fails the request, and no other.
    """

    @abstractmethod
    def fill(self, bits: memoryview) -> None:
        """Writes which tokens may come next.

        ``bits`` are ``ceil(vocab_size / 32)`` int32 words, all 0 at first (format ``"i"``, contiguous, writable): token
        ``t`` is allowed where bit ``t % 32`` of word ``t // 32`` is 1. Where the output may end here, the tokens that
        end it must be allowed too. A row that allows nothing fails the request. Bits of the last word that stand for no
        token of the vocabulary are ignored.

        Behind a token that ended the output, exactly those that end it are allowed: drafts may go on behind an end, and
        such a row must not be empty. They may be accepted there, too, and are taken back by :meth:`rollback`. ``bits``
        may be a part of a larger buffer.
        """
        ...

    @staticmethod
    def fill_all(rows: Sequence[tuple[Any, memoryview]]) -> None:
        """:meth:`fill` for several outputs, all of this class; a class may do that faster, such as by several threads.

        It must not hang for one of them: a call that does not return is not any request's fault. Where it raises, or a
        row allows nothing, the rows are filled one by one, so that only the output that fails ends.
        """
        for grammar, bits in rows:
            grammar.fill(bits)

    @abstractmethod
    def accept(self, tokens: Sequence[int]) -> None:
        """Advances over tokens that were added to the output, each of which was allowed; one at a time or several. The
        last of them may be one that ends the output. The sequence is the caller's."""
        ...

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Takes back the last ``num_tokens`` accepted tokens: any number, up to all. Masks of drafted tokens are filled
        by accepting drafts one by one, which are then taken back."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that must come next, in order, as far as that is known; empty where there is a choice. Each is the
        only one that :meth:`fill` allows behind those before it: of several tokens that spell the same text, none is
        forced. They are verified as drafts where the host drafts, so a wrong one costs time, not correctness. It is
        called after each :meth:`accept` of sampled tokens, must not change what is accepted, and may be left out."""
        return ()


class CompiledGrammar(Protocol):
    """A grammar that outputs can be matched with."""

    @abstractmethod
    def start(self, end_token_ids: frozenset[int]) -> Grammar:
        """A new output, with nothing accepted yet. It may be ended by ``end_token_ids``, which are in the vocabulary:
        each is allowed where the output may end, and where the grammar allows it as a part of the text. Other outputs
        of the same grammar may be ended by others."""
        ...


class GrammarCompiler(Protocol):
    """Compiles the grammars of requests for one vocabulary.

    It is made, and called, in threads other than the engine loop's, from one thread at a time: to check a request in a
    process that prepares requests, and again in the engine's process. What it compiled is used from another thread.
    """

    def __init__(self, context: GrammarContext) -> None: ...

    @abstractmethod
    def compile(self, kind: GrammarKind, text: str) -> CompiledGrammar:
        """The compiled grammar of a request. ``kind`` is one of :attr:`~llmk.api.GrammarSpec.kinds`.

        Must take time and memory that ``limits`` and the length of ``text`` bound.

        Raises:
            RequestError: if ``text`` is invalid, matches nothing, has a part that can't be enforced, or exceeds
                ``limits``. ``param`` may be left out.
        """
        ...
