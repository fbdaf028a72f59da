"""What the conformance kit tries the plugins of ``skua`` on."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext, SpeculatorContext
from llmk_testing.router_examples import RouterExamples
from llmk_testing.speculator_examples import Draft, SpeculatorExamples


class PlainRendezvous(Router):
    """The rule of the router by the plainest code: every replica is ranked, and all sessions are in a list."""

    def __init__(self, context: RouterContext) -> None:
        self._most = max(1.0, context.max_load)
        self._given: dict[str, float] = {}
        self._sessions: list[tuple[tuple[str, str], str]] = []

    def choose(self, request: RoutedRequest, replicas: Sequence[ReplicaState]) -> ReplicaState:
        """Ranks the free ones, and takes the first."""
        here = [one.id for one in replicas]
        known = [self._given[name] for name in here if name in self._given]
        new = sum(known) / len(known) if known else 0.0
        self._given = {name: self._given.get(name, new) for name in here}
        work = [self._work(one) for one in replicas]
        mean = sum(work) / len(work)
        if any(busy * self._most < mean for busy in work):
            free = [one for one in replicas if self._work(one) * self._most < mean]
        elif any(busy <= self._most * mean for busy in work):
            free = [one for one in replicas if self._work(one) <= self._most * mean]
        else:
            free = list(replicas)
        chosen = self._rank(request, free)[0]
        self._given[chosen.id] += chosen.slowness * chosen.new_tokens(request)
        if sum(self._given.values()) > 2**20 * len(here):
            self._given = {name: tokens / 2 for name, tokens in self._given.items()}
        if request.session:
            name = (request.tenant, request.session)
            self._sessions = [*[one for one in self._sessions if one[0] != name][-2047:], (name, chosen.id)]
        return chosen

    def _rank(self, request: RoutedRequest, free: Sequence[ReplicaState]) -> list[ReplicaState]:
        if request.session:
            name = (request.tenant, request.session)
            home = dict(self._sessions).get(name)
            key = _hashed(b"session", _bytes(request.tenant), _bytes(request.session))
            return sorted(free, key=lambda one: (one.id == home, _hashed(key, _bytes(one.id))), reverse=True)
        if request.blocks:
            key = _hashed(b"opening", str(request.blocks[:4][-1]).encode())
            return sorted(free, key=lambda one: _hashed(key, _bytes(one.id)), reverse=True)
        return sorted(free, key=lambda one: (self._work(one), one.tenants.get(request.tenant, 0)))

    def _work(self, one: ReplicaState) -> float:
        return one.slowness * one.load + self._given[one.id]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _hashed(*parts: bytes) -> bytes:
    return blake2b(b"".join(len(part).to_bytes(8, "big") + part for part in parts), digest_size=8).digest()


ROUTER = RouterExamples(oracle=PlainRendezvous)


def _majority(context: SpeculatorContext) -> Draft:
    """The rule of ``Majority`` without a table: for every draft, each context is looked for in the whole text."""
    options = context.options
    longest = max(options["order"], options["min_order"])

    def followers(tokens: Sequence[int], end: Sequence[int]) -> list[int]:
        places = range(len(end), len(tokens))
        found = [tokens[at] for at in places if list(tokens[at - len(end) : at]) == list(end)]
        return [token for token in found if token < context.vocab_size]

    def next_of(tokens: Sequence[int], last: Sequence[int]) -> int | None:
        for order in range(len(last), options["min_order"] - 1, -1):
            if found := followers(tokens, last[-order:]):
                most = max(map(found.count, found))
                best = [token for token in found if found.count(token) == most][-1]
                return best if most >= options["min_share"] * len(found) else None
        return None

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        given = [at for at, token in enumerate(tokens) if token >= context.vocab_size]
        last, drafts = list(tokens[given[-1] + 1 if given else 0 :])[-longest:], list[int]()
        while len(drafts) < most and (token := next_of(tokens, last)) is not None:
            drafts.append(token)
            last = [*last, token][-longest:]
        return drafts

    return draft


def _period(context: SpeculatorContext) -> Draft:
    """The rule of ``Period``, one earlier place after the other."""
    options = context.options
    longest: int = max(options["match"], options["min_match"])

    def length(tokens: Sequence[int], place: int) -> int:
        for back in range(min(longest, place + 1)):
            if tokens[-1 - back] >= context.vocab_size or tokens[place - back] != tokens[-1 - back]:
                return back
        return min(longest, place + 1)

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        score, place = max(((length(tokens, at), at) for at in range(len(tokens) - 1)), default=(0, 0))
        if score < options["min_match"]:
            return []
        period = tokens[place + 1 :]
        drafts = [period[at % len(period)] for at in range(most)]
        stops = [at for at, token in enumerate(drafts) if token >= context.vocab_size]
        return drafts[: stops[0]] if stops else drafts

    return draft


SPECULATOR = SpeculatorExamples(
    options=(
        {"order": 5, "min_order": 2, "min_share": 0.5},
        {"order": 3, "min_order": 1, "min_share": 0.0},
        {"order": 8, "min_order": 3, "min_share": 1.0},
    ),
    oracle=_majority,
)

DEVICE_SPECULATOR = SpeculatorExamples(
    options=(
        {"match": 8, "min_match": 2},
        {"match": 4, "min_match": 1},
        {"match": 16, "min_match": 3},
    ),
    oracle=_period,
)


def _regex(text: str, matches: Sequence[str], fails: Sequence[str]) -> dict[str, object]:
    return {"kind": "regex", "text": text, "matches": tuple(matches), "fails": tuple(fails)}


GRAMMARS = (
    _regex("[0-9]{3}-[0-9]{4}", ["555-1234", "000-0000"], ["", "555-123", "5551234", "555-12345", "55a-1234"]),
    _regex("a*b|c+", ["b", "ab", "aaab", "c", "ccc"], ["", "a", "abc", "ac", "cb"]),
    _regex("^(?:yes|no)( [a-z]+?)*$", ["yes", "no thanks", "yes i do"], ["", "ye", "yesno", "yes ", "no  x", "maybe"]),
    _regex("x{2}|y{2,}|z{,2}", ["xx", "yy", "yyyy", "", "z", "zz"], ["x", "xxx", "y", "zzz", "xy"]),
    _regex("[^a-y\\n]{1,2}", ["z", "zé", "😀", "]-"], ["", "a", "\n", "zzz", "zq"]),
    _regex("[à-ÿ€-₿😀-😎]+", ["é", "ÿ€", "😎😀"], ["", "e", "ß", "₠₟", "😏", "é "]),
    _regex("\\w+\\s\\d{2}", ["añ_1 42", "語\u30004٣"], ["", "a-b 42", "a42", "a 4", "a 4x"]),
    _regex("\\$\\{[\\w.\\-]*\\}\\x41\\u00e9", ["${}Aé", "${a-b.c}Aé"], ["", "${}", "{}Aé", "${ }Aé"]),
    _regex("(a|ab)(c|bcd)?.", ["ax", "abcx", "abcdx", "acé"], ["", "a", "abcdxx", "b", "ab\n"]),
    {
        "kind": "choice",
        "text": '["red", "reddish", "green", "bleu clair"]',
        "matches": ("red", "reddish", "green"),
        "fails": ("", "re", "redd", "reddishred", "blue", "Red"),
    },
    {
        "kind": "choice",
        "text": '["caf\\u00e9", "\\ud83d\\ude00", "a\\nb"]',
        "matches": ("café", "😀", "a\nb"),
        "fails": ("cafe", "", "a", "😁"),
    },
    {"kind": "choice", "text": '["", "x"]', "matches": ("", "x"), "fails": ("xx", "y")},
)
