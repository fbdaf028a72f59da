"""The suite of routers: tests their contract on replicas that get busy, come and go."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from llmk.api import ReplicaState, RoutedRequest, Router, RouterContext, RouterSpec
from llmk.kernel.loader import load_object
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.clocks import moving_clocks
from llmk_testing.growth import bytes_kept
from llmk_testing.parsers import counted_lines
from llmk_testing.router_examples import RouterExamples
from llmk_testing.settings import leaving_settings

Make = Callable[[RouterContext], Router]

CONTEXTS = (RouterContext(), RouterContext(max_load=1.0), RouterContext(max_load=3.0))
TENANTS = ("", "a", "b", "a-tenant-with-a-long-name", "\x00é", "\ud83d")
SESSIONS = ("s", "s\x00é", "\ud83d", "\udc00s", "a session of many words " * 20, "0")
"""What clients may name sessions, half of a surrogate pair among it, which JSON can hold."""
BLOCK = 16
LONG = 6000
"""Calls of a history in which sessions are forgotten."""
KEPT = 10_000
"""Bytes that may stay in any case."""
BUSIEST, LEAST_SHARE, MOST_SHARE = 1.5, 0.25, 2.5
"""What the busiest of equal replicas may be given, and what one that is new must and may be, as multiples of the
mean."""


def cases(spec: RouterSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one router."""

    def make(context: RouterContext) -> Router:
        made: Router = load_object(spec.implementation)(context)
        return made

    def case(name: str, run: Callable[..., str | None], *arguments: object) -> Case:
        return Case(spec.id, "router", name, partial(_settled, partial(run, make, *arguments)))

    seeds = range(bench.seed, bench.seed + (40 if bench.thorough else 8))
    yield case("it returns one of the given replicas", check_answers, seeds)
    package = spec.implementation.partition(".")[0]
    yield case("the same history gives the same answers", check_repeatable, seeds)
    yield case("how fast clocks go changes no answer", check_clocks, seeds[:2], package)
    yield case("equal replicas get equal work, no matter what requests have in common", check_even)
    yield case("a replica that is new gets its share, and no more", check_newcomer)
    yield case("what replicas that go leave is shared, and they get their share again", check_gone)
    yield case("what it keeps of sessions, tenants and replicas is bounded", check_bounded)
    yield case("nothing is kept of each request", check_forgets)
    yield case("a call takes time in proportion to the replicas", check_linear)
    yield case("a call takes no more time after many sessions", check_late)
    yield case("its answers are those of its oracle", partial(check_oracle, spec), seeds)


def check_answers(make: Make, seeds: Sequence[int]) -> None:
    """The front end permanently replaces a router that raises or returns another replica."""
    for seed in seeds:
        for context in CONTEXTS:
            for _ in Fleet(make(context), seed).steps(150):
                pass


def check_repeatable(make: Make, seeds: Sequence[int]) -> None:
    """No clock, no hash of an address, no state shared between instances."""
    for seed in seeds:
        first, second = (list(Fleet(make(CONTEXTS[0]), seed).steps(150)) for _ in range(2))
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert one == other, f"call {number} of seed {seed} returned {one}, in a second run {other}"


def check_clocks(make: Make, seeds: Sequence[int], package: str) -> None:
    """Not even by hours between two looks."""
    for seed in seeds:
        usual = list(Fleet(make(CONTEXTS[0]), seed).steps(150))
        with moving_clocks(package, 3600.0):
            moved = list(Fleet(make(CONTEXTS[0]), seed).steps(150))
        for number, (one, other) in enumerate(zip(usual, moved, strict=True)):
            assert one == other, f"call {number} of seed {seed} returned {one}, and {other} where clocks go faster"


def check_even(make: Make) -> None:
    """One prompt for all, one session for all, one tenant for all, or nothing in common."""
    alike: dict[str, Callable[[int], RoutedRequest]] = {
        "with one prompt": lambda number: _request(range(8), session=f"s{number}", tenant=f"t{number}"),
        "of one session": lambda number: _request(range(number, number + 4), session="s"),
        "of one tenant": lambda number: _request(range(number * 8, number * 8 + 8), tenant="t"),
        "with nothing in common": lambda number: _request(range(number * 8, number * 8 + 8)),
    }
    for name, make_request in alike.items():
        for together in (1, 16, 64):
            fleet = Steady(make(RouterContext()), 8, together)
            given = fleet.run([make_request(number) for number in range(960)])
            mean, most = sum(given.values()) / 8, max(given.values())
            what = f"of 960 requests {name}, {together} at a time, one of 8 equal replicas got"
            assert most <= BUSIEST * mean, f"{what} {most / mean:.2f} times its share of tokens to compute"


def check_newcomer(make: Make) -> None:
    """It joins four replicas that have served for a while."""
    fleet = Steady(make(RouterContext()), 4, 16)
    requests = [_request(range(n * 8, n * 8 + 8), session=f"s{n % 50}" if n % 2 else "") for n in range(500)]
    fleet.run(requests[:400])
    fleet.ids.append("new")
    share = fleet.run(requests[400:])["new"] * 5 / sum(fleet.given.values())
    what = f"a replica that joined four others got {share:.2f} times its share of 100 requests"
    assert LEAST_SHARE <= share <= MOST_SHARE, what


def check_gone(make: Make) -> None:
    """One of five goes, and is back later with nothing cached."""
    fleet = Steady(make(RouterContext()), 5, 16)
    requests = [_request(range(n * 8, n * 8 + 8), session=f"s{n % 50}" if n % 2 else "") for n in range(900)]
    fleet.run(requests[:400])
    fleet.leave("r2")
    given = fleet.run(requests[400:600])
    most = max(given.values()) * 4 / sum(given.values())
    assert most <= BUSIEST, f"of 200 requests after one of five replicas went, one got {most:.2f} times its share"
    fleet.ids.insert(2, "r2")
    share = fleet.run(requests[600:700])["r2"] * 5 / sum(fleet.given.values())
    assert LEAST_SHARE <= share <= MOST_SHARE, f"a replica that is back got {share:.2f} times its share of 100 requests"


def check_bounded(make: Make) -> str:
    """Sessions, tenants and replicas come once and never again."""
    router = make(RouterContext())

    def call(number: int) -> None:
        replicas = [ReplicaState(id=f"{number // 100}-{place}") for place in range(2)]
        router.choose(_request((number,), session=f"s{number}", tenant=f"t{number}"), replicas)

    few, many = bytes_kept(call, (24_000, 72_000))
    assert many <= 1.5 * few + KEPT, f"it keeps {few} bytes after 24000 sessions, and {many} after 72000"
    return f"{many} bytes after 72000 sessions"


def check_forgets(make: Make) -> str:
    """The same request, again and again, on the same replicas."""
    router, request = make(RouterContext()), _request((1, 2), session="s", tenant="t")
    replicas = [ReplicaState(id=f"r{place}") for place in range(2)]
    few, many = bytes_kept(lambda number: router.choose(request, replicas), (2000, 6000))
    assert many <= 1.5 * few + KEPT, f"it keeps {few} bytes after 2000 calls with the same request, {many} after 6000"
    return f"{many} bytes after 6000 calls"


def check_late(make: Make) -> None:
    """Lines of Python, for forty requests of new sessions."""
    router = make(RouterContext())
    short = counted_lines(partial(_ask_sessions, router, range(40)))
    _ask_sessions(router, range(40, 3000))
    limit = 6 * short + 2000
    long = counted_lines(partial(_ask_sessions, router, range(3000, 3040)), limit)
    assert long <= limit, f"{short} lines of code for 40 requests become more than {limit} after 3000 sessions"


def check_linear(make: Make) -> None:
    """Four times as many replicas must take about four times the lines of Python."""
    short = counted_lines(partial(_ask, make(RouterContext()), 50))
    limit = 6 * short + 2000
    long = counted_lines(partial(_ask, make(RouterContext()), 200), limit)
    assert long <= limit, f"{short} lines of code for 50 replicas become more than {limit} for 200"


def check_oracle(spec: RouterSpec, make: Make, seeds: Sequence[int]) -> str:
    """The same replica for every request."""
    if not spec.examples:
        raise Skip("the spec names no examples: an oracle")
    own = load_object(spec.examples)
    assert isinstance(own, RouterExamples), f"{spec.examples} is {own!r}, expected a {RouterExamples.__qualname__}"
    pairs: list[tuple[Iterator[str], Iterator[str], str]] = []
    for seed in seeds:
        for context in CONTEXTS:
            found, right = (Fleet(router, seed).steps(250) for router in (make(context), own.oracle(context)))
            pairs.append((found, right, f"seed {seed}, max_load {context.max_load:g}"))
    pairs.append((_long(make(CONTEXTS[0])), _long(own.oracle(CONTEXTS[0])), f"of {LONG} calls of many sessions"))
    calls = 0
    for found, right, where in pairs:
        for number, (one, other) in enumerate(zip(found, right, strict=True)):
            assert one == other, f"{where}, call {number}: {one}, expected {other}"
            calls += 1
    return f"{calls} calls"


def _long(router: Router) -> Iterator[str]:
    """Most sessions and tenants come once, more of them than are remembered; a few come again and again."""
    draw = random.Random(LONG)
    for number in range(LONG):
        name = draw.randrange(60) if draw.random() < 0.1 else 1000 + number
        replicas = [ReplicaState(id=f"r{place}", load=draw.choice((0, 100, 3000))) for place in range(4)]
        yield router.choose(_request((name, number % 3), session=f"s{name}", tenant=f"t{name}"), replicas).id


def _ask(router: Router, count: int) -> None:
    fleet = Steady(router, count, count)
    fleet.run([_request(range(n, n + 4), session=f"s{n % 7}") for n in range(40)])


def _ask_sessions(router: Router, numbers: Sequence[int]) -> None:
    replicas = [ReplicaState(id=f"r{place}") for place in range(3)]
    for number in numbers:
        router.choose(_request((number,), session=f"s{number}", tenant=f"t{number}"), replicas)


def _settled(check: Callable[[], str | None]) -> str | None:
    with leaving_settings():
        return check()


def _request(numbers: Sequence[int], session: str = "", tenant: str = "") -> RoutedRequest:
    """Blocks by number: those of two requests with equal first numbers are the same."""
    blocks = tuple(hash((numbers[0], number)) for number in numbers)
    tokens = BLOCK * len(blocks) + 5
    return RoutedRequest(
        tenant=tenant, session=session, blocks=blocks, block_size=BLOCK, num_prompt_tokens=tokens, expected_tokens=20
    )


class Held:
    """Blocks, of which a router can ask whether one is there, and no more."""

    def __init__(self, hashes: set[int]) -> None:
        self._hashes = hashes

    def __contains__(self, hash: object) -> bool:
        return hash in self._hashes


class Steady:
    """Replicas of which each holds all blocks it was given, and so many requests at a time; the oldest end first."""

    def __init__(self, router: Router, count: int, together: int) -> None:
        self.ids = [f"r{number}" for number in range(count)]
        self.given: Counter[str] = Counter()
        self._router, self._together = router, together
        self._blocks: dict[str, set[int]] = {}
        self._running: list[tuple[str, int, str]] = []

    def run(self, requests: Sequence[RoutedRequest]) -> Counter[str]:
        """How many tokens each replica was given to compute."""
        self.given = Counter()
        for request in requests:
            states = [self._state(id) for id in self.ids]
            chosen = self._router.choose(request, states)
            tokens = chosen.new_tokens(request)
            self.given[chosen.id] += tokens
            self._blocks[chosen.id].update(request.blocks)
            self._running.append((chosen.id, tokens, request.tenant))
            del self._running[: -self._together]
        return self.given

    def leave(self, id: str) -> None:
        """A replica goes, with what it had."""
        self.ids.remove(id)
        self._blocks.pop(id, None)
        self._running = [one for one in self._running if one[0] != id]

    def _state(self, id: str) -> ReplicaState:
        own = [(tokens, tenant) for place, tokens, tenant in self._running if place == id]
        return ReplicaState(
            id=id,
            running=len(own),
            load=sum(tokens for tokens, _ in own),
            blocks=Held(self._blocks.setdefault(id, set())),
            tenants=dict(Counter(tenant for _, tenant in own)),
        )


class Fleet:
    """Replicas that get random requests of sessions, and come and go; checks every answer."""

    def __init__(self, router: Router, seed: int) -> None:
        self._router, self._seed = router, seed
        self._random = random.Random(seed)
        self._next = 0
        self._running: dict[str, list[tuple[int, str]]] = {}
        """Of each replica, tokens and tenants of what it has not done."""
        self._blocks: dict[str, set[int]] = {}
        self._sessions: dict[int, int] = {}
        """Turns that each session had."""
        for _ in range(self._random.choice((1, 2, 3, 4, 5, 6, 24))):
            self._come()

    def steps(self, count: int) -> Iterator[str]:
        """The id of the replica that is chosen for each of ``count`` requests."""
        for _ in range(count):
            if self._random.random() < 0.03:
                self._come()
            if self._random.random() < 0.03 and len(self._running) > 1:
                self._running.pop(self._random.choice(list(self._running)))
            if self._random.random() < 0.01:
                self._restart(self._random.choice(list(self._running)))
            yield self._place(self._turn())
            self._compute()

    def _come(self) -> None:
        id = f"r{self._next}"
        self._next += 1
        self._running[id], self._blocks[id] = [], set()

    def _restart(self, id: str) -> None:
        """It stops, and comes back with its name and nothing else, in its old place."""
        self._running[id], self._blocks[id] = [], set()

    def _turn(self) -> RoutedRequest:
        """The next turn of a session, whose prompt has those before it."""
        number = self._random.randrange(20)
        turn = self._sessions[number] = self._sessions.get(number, 0) + 1
        request = _request(range(number // 4, number // 4 + 2))  # four sessions have a start in common
        blocks = (*request.blocks, *(hash((number, place)) for place in range(turn % 12)))
        return RoutedRequest(
            tenant=TENANTS[number % len(TENANTS)],
            session=SESSIONS[number % len(SESSIONS)] if number % 5 else "",  # tenants have sessions of one name
            blocks=blocks if number % 7 else (),
            block_size=BLOCK,
            num_prompt_tokens=BLOCK * len(blocks) + self._random.randint(0 if blocks else 1, BLOCK - 1),
            expected_tokens=self._random.choice((1, 20, 400, 100_000)),
        )

    def _place(self, request: RoutedRequest) -> str:
        states = [self._state(id) for id in self._running]
        before, tenants = list(states), [dict(one.tenants) for one in states]
        chosen = self._router.choose(request, states)
        names = [one.id for one in before]
        what = f"seed {self._seed}: choose() returned {getattr(chosen, 'id', chosen)!r} for {names}"
        assert any(chosen is one for one in before), what
        same = states == before and [one.tenants for one in before] == tenants
        assert same, f"seed {self._seed}: choose() changed the replicas that it was given"
        self._running[chosen.id].append((chosen.new_tokens(request), request.tenant))
        self._blocks[chosen.id].update(request.blocks)
        return chosen.id

    def _state(self, id: str) -> ReplicaState:
        own = self._running[id]
        return ReplicaState(
            id=id,
            running=min(4, len(own)),
            waiting=max(0, len(own) - 4),
            load=sum(tokens for tokens, _ in own),
            slowness={"3": 3.0, "5": 0.5}.get(id[-1], 1.0),
            blocks=Held(self._blocks[id]),
            tenants=dict(Counter(tenant for _, tenant in own)),
        )

    def _compute(self) -> None:
        for id, own in self._running.items():
            if own and self._random.random() < 0.6:
                own.pop(0)
            if self._random.random() < 0.02:
                self._blocks[id].clear()
            for block in sorted(self._blocks[id]) if self._random.random() < 0.05 else ():
                if self._random.random() < 0.3:
                    self._blocks[id].discard(block)
