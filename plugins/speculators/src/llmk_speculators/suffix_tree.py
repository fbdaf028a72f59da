"""A suffix tree of a request's tokens: drafts what followed the longest suffix that occurred before.

Ukkonen, "On-line construction of suffix trees" (1995). The active point of his algorithm is the longest suffix of the
text that occurs elsewhere in it, so a match costs nothing beyond building the tree. How many drafts follow from the
length of a match: Oliaro et al., "SuffixDecoding" (2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llmk.api import Speculator, SpeculatorContext
from llmk_speculators.copying import CATCH_UP, continuation


class SuffixTreeSpeculator(Speculator):
    """Keeps a suffix tree of each request: amortised O(1) per token, O(drafts) per proposal.

    On one core of a server: 1 microsecond and 200 bytes per token of the prompt; a proposal, with the tokens that came
    since, takes 2 microseconds without a match and up to 7 with one.
    """

    def __init__(self, context: SpeculatorContext) -> None:
        self._vocab_size = context.vocab_size
        self._min_match = context.options["min_match"]
        self._factor = context.options["max_spec_factor"]
        self._trees: dict[str, SuffixTree] = {}

    def propose(self, request: str, tokens: Sequence[int], most: int) -> Sequence[int]:
        """At most ``most`` tokens, and no more than the match's length allows."""
        tree = self._trees.get(request)
        if tree is None:
            tree = self._trees[request] = SuffixTree()
        known = len(tree.tokens)
        tree.extend(tokens[known : known + CATCH_UP])
        if len(tree.tokens) < len(tokens) or tree.match < self._min_match:
            return ()
        most = min(most, max(1, int(tree.match * self._factor)))
        return continuation(tree.tokens, tree.followed(), most, self._vocab_size)

    def leave(self, request: str) -> None:
        """Drops the tree of a request."""
        self._trees.pop(request, None)


class SuffixTree:
    """The suffix tree of ``tokens``, to which :meth:`extend` appends.

    Node 0 is the root. An edge leads to an inner node or, as a negative number, to a leaf, whose label goes on to the
    text's end; labels are ranges of the text. ``match`` is the length of the longest suffix that occurs elsewhere.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.match = 0
        self._edges: list[dict[int, int]] = [{}]
        """By inner node: its edges by their first token."""
        self._starts, self._ends, self._links, self._latest = [0], [0], [0], [0]
        """By inner node: its edge's label, its suffix link, and the token after it that is known since last."""
        self._node = self._edge = self._length = 0
        """The active point: ``length`` tokens down the edge of ``node`` that starts with token number ``edge``."""

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        for token in tokens:
            self._append(token)

    def followed(self) -> int:
        """The number of the token that followed an earlier occurrence of the match; it is one of the latest. The match
        must not be empty."""
        self._descend()
        if not self._length:
            return self._latest[self._node]
        return self._start(self._child()) + self._length

    def _append(self, token: int) -> None:
        tokens, new, inner = self.tokens, len(self.tokens), 0
        tokens.append(token)
        self.match += 1
        while self.match:
            if not self._length:
                self._edge = new
            self._descend()
            if not self._length:
                at, edges = self._node, self._edges[self._node]
                if inner:
                    self._links[inner], inner = at, 0
                self._latest[at] = new
                if token in edges:
                    self._edge, self._length = new, 1
                    return
                edges[token] = ~new
            else:
                child = self._child()
                start = self._start(child)
                if tokens[start + self._length] == token:
                    if inner:
                        self._links[inner] = self._node
                    self._length += 1
                    return
                at = self._split(child, start, new)
                if inner:
                    self._links[inner] = at
                inner = at
            self.match -= 1
            if self._node:
                self._node = self._links[self._node]
            elif self._length:
                self._length -= 1
                self._edge = new - self.match + 1

    def _descend(self) -> None:
        """Moves the active point over edges that it is at the end of, whose labels become the text's latest."""
        while self._length:
            child = self._child()
            if child < 0:
                return
            size = self._ends[child] - self._starts[child]
            if self._length < size:
                return
            self._starts[child], self._ends[child] = self._edge, self._edge + size
            self._node, self._edge, self._length = child, self._edge + size, self._length - size

    def _child(self) -> int:
        return self._edges[self._node][self.tokens[self._edge]]

    def _start(self, child: int) -> int:
        return self._starts[child] if child >= 0 else ~child

    def _split(self, child: int, start: int, new: int) -> int:
        """A new inner node at the active point, with a leaf for token number ``new``."""
        middle, at = start + self._length, len(self._edges)
        if child >= 0:
            self._starts[child] = middle
        self._edges.append({self.tokens[middle]: child if child >= 0 else ~middle, self.tokens[new]: ~new})
        self._edges[self._node][self.tokens[start]] = at
        self._starts.append(self._edge)
        self._ends.append(self._edge + self._length)
        self._links.append(0)
        self._latest.append(new)
        return at
