"""Who wins, for every range of token counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmk.api import KernelSpec, SelectionError, Tier, TokenBand
from llmk.config.measurements import Measured
from llmk.config.traffic import load_traffic
from llmk.kernel.discovery import Plugin
from llmk.kernel.registry import Registered
from llmk.planning.ranking import END, Candidate, Ranking


def kernel(name: str, tier: Tier = Tier.NATIVE, *bands: TokenBand, layout: str = "plain", score: int = 0) -> Candidate:
    spec = KernelSpec(
        id=name,
        kind="linear",
        implementation="m:f",
        tier=tier,
        bands=bands or (TokenBand(),),
        layout=layout,
        score=score,
    )
    return Registered(spec, Plugin(name.partition(".")[0], f"{name.partition('.')[0]}-wheel", "1.0"), "linear")


def ranking(
    *, pin: str = "", prefer: tuple[str, ...] = (), measured: dict[int, dict[str, float]] | None = None
) -> Ranking:
    return Ranking(
        "up",
        "[select.linear]",
        pin,
        prefer,
        Measured("2026-11-21", measured or {}),
        lambda candidate: candidate.plugin.name != "stranger",
        one_layout=True,
    )


def laid_out(rules: Ranking, *able: Candidate) -> list[tuple[int, int, str]]:
    return [(slot.start, slot.stop, slot.winner.spec.id) for slot in rules.lay_out(able)]


REFERENCE = kernel("reference.r", Tier.REFERENCE)
NATIVE = kernel("a.n")
VENDOR = kernel("a.v", Tier.VENDOR)
STRANGER = kernel("stranger.s", Tier.VENDOR, score=9)
SLOW = replace(VENDOR, spec=replace(VENDOR.spec, id="a.slow", opt_in="it starts slowly"))
AT_ONE = "at 1 token, 2026-11-21"


@pytest.mark.parametrize(
    ("rules", "able", "winner", "why"),
    [
        (ranking(), [REFERENCE], "reference.r", "only candidate"),
        (ranking(), [REFERENCE, NATIVE, VENDOR], "a.v", "tier vendor"),
        (ranking(), [NATIVE, kernel("b.n", score=1)], "b.n", "best score in tier native"),
        (ranking(), [NATIVE, kernel("b.n", Tier.NATIVE, TokenBand(score=2))], "b.n", "best score in tier native"),
        (
            ranking(measured={1: {"a.n": 0.5, "a.v": 1.0}}),
            [REFERENCE, NATIVE, VENDOR],
            "a.n",
            "measured 0.50x of a.v at 1 token, 2026-11-21",
        ),
        (
            ranking(measured={8: {"stranger.s": 0.5}}),
            [STRANGER, VENDOR],
            "stranger.s",
            "measured alone at 8 tokens, 2026-11-21",
        ),
        (ranking(measured={1: {"z.z": 0.5}}), [NATIVE, VENDOR], "a.v", "tier vendor"),
        (
            ranking(prefer=("z.z", "reference.r"), measured={1: {"a.n": 0.5}}),
            [REFERENCE, NATIVE],
            "reference.r",
            "preferred by [select.linear] prefer",
        ),
        (ranking(pin="a.n", prefer=("a.v",)), [NATIVE, VENDOR], "a.n", "pinned by [select.linear] use"),
        (ranking(), [STRANGER, REFERENCE], "reference.r", "only candidate that the platform vouches for"),
        (ranking(prefer=("stranger.s",)), [STRANGER, VENDOR], "stranger.s", "preferred by [select.linear] prefer"),
        (ranking(), [STRANGER], "stranger.s", "only candidate"),
        (ranking(), [SLOW, NATIVE, REFERENCE], "a.n", "tier native"),
        (ranking(), [SLOW, REFERENCE], "reference.r", "only candidate that is not opt-in"),
        (ranking(), [SLOW], "a.slow", "only candidate"),
        (ranking(prefer=("a.slow",)), [SLOW, NATIVE], "a.slow", "preferred by [select.linear] prefer"),
        (ranking(measured={1: {"a.slow": 1, "a.n": 2}}), [SLOW, NATIVE], "a.slow", f"measured 0.50x of a.n {AT_ONE}"),
    ],
)
def test_winner(rules: Ranking, able: list[Candidate], winner: str, why: str) -> None:
    for order in (able, able[::-1]):
        (slot,) = rules.lay_out(order)
        assert (slot.start, slot.stop, slot.winner.spec.id, slot.why) == (1, END, winner, why)


def test_tie_names_both_wheels_and_the_line_that_settles_it() -> None:
    with pytest.raises(SelectionError) as caught:
        ranking().lay_out([NATIVE, kernel("b.n"), REFERENCE])
    for part in ("a.n of a-wheel 1.0", "b.n of b-wheel 1.0", "'up'", "[select.linear]", 'prefer = ["b.n"]'):
        assert part in str(caught.value)
    ranking(prefer=("b.n",)).lay_out([NATIVE, kernel("b.n"), REFERENCE])


def test_a_better_candidate_hides_a_tie_below_it() -> None:
    assert laid_out(ranking(), VENDOR, NATIVE, kernel("b.n")) == [(1, END, "a.v")]


def test_pieces_follow_the_bands() -> None:
    small = kernel("a.small", Tier.VENDOR, TokenBand(1, 17))
    large = kernel("a.large", Tier.VENDOR, TokenBand(513))
    assert laid_out(ranking(), REFERENCE, small, large) == [
        (1, 17, "a.small"),
        (17, 513, "reference.r"),
        (513, END, "a.large"),
    ]


def test_scores_of_bands_decide_range_by_range_and_equal_neighbours_merge() -> None:
    one = kernel("a.one", Tier.NATIVE, TokenBand(1, 8, score=2), TokenBand(8, 64, score=1), TokenBand(64, score=3))
    two = kernel("a.two", Tier.NATIVE, TokenBand(1, 64, score=0), TokenBand(64, 99, score=5), TokenBand(99, score=0))
    assert laid_out(ranking(), one, two) == [(1, 64, "a.one"), (64, 99, "a.two"), (99, END, "a.one")]


def test_measured_token_counts_make_pieces() -> None:
    times = {
        1: {"a.n": 1.0, "a.v": 2.0},
        4: {"a.n": 1.02, "a.v": 1.0},
        16: {"a.n": 3.0, "a.v": 1.0, "reference.r": 0.9},
        64: {"a.n": 3.0, "a.v": 1.0},
    }
    able = (REFERENCE, NATIVE, VENDOR)
    assert laid_out(ranking(measured=times), *able) == [
        (1, 5, "a.n"),  # at 4, the other is faster by less than noise
        (5, 17, "reference.r"),
        (17, END, "a.v"),  # the highest count stands for all above; what was not measured there doesn't compete
    ]
    small = kernel("a.small", Tier.PORTABLE, TokenBand(1, 9))
    fast = {count: {"a.small": 0.5} | each for count, each in times.items()}
    assert laid_out(ranking(measured=fast), small, *able)[:2] == [(1, 9, "a.small"), (9, 17, "reference.r")]


def test_one_piece_serves_all_token_counts_if_required() -> None:
    one = kernel("a.one", Tier.NATIVE, TokenBand(1, 8, score=2), TokenBand(8, score=1))
    two = kernel("a.two", Tier.NATIVE, TokenBand(1, 64, score=0), TokenBand(64, score=5))
    assert len(ranking().lay_out([one, two])) == 2
    (slot,) = replace(ranking(), one_piece=True).lay_out([one, two])
    assert (slot.start, slot.stop, slot.winner.spec.id) == (1, END, "a.one")
    assert slot.why == "best score in tier native at one token; serves every count, for batch invariance"
    (slot,) = replace(ranking(), one_piece=True).lay_out([NATIVE, VENDOR])
    assert slot.why == "tier vendor"


def test_pieces_share_the_layout_of_the_one_that_serves_one_token() -> None:
    packed = kernel("a.packed", Tier.VENDOR, TokenBand(1, 65), layout="packed")
    packed_slow = kernel("a.slow", Tier.PORTABLE, layout="packed")
    assert laid_out(ranking(), packed, packed_slow, NATIVE) == [(1, 65, "a.packed"), (65, END, "a.slow")]


def test_layout_that_leaves_a_gap_is_excluded() -> None:
    packed = kernel("a.packed", Tier.PORTABLE, TokenBand(1, 65), layout="packed")
    late = kernel("a.late", Tier.PORTABLE, TokenBand(1, 9), TokenBand(17), layout="late")
    gaps = ranking(measured={1: {"a.n": 1.0, "a.packed": 9.0}}).gaps([packed, late, NATIVE])
    assert {id: (reason.code, reason.wanted) for id, reason in gaps.items()} == {
        "a.packed": ("token_gap", "token counts from 65"),
        "a.late": ("token_gap", "token counts from 9 to 16"),
    }
    rest = kernel("b.rest", Tier.PORTABLE, TokenBand(60), layout="packed")
    assert ranking().gaps([packed, rest, NATIVE]) == {}
    assert replace(ranking(), one_layout=False).gaps([packed, late]) == {}
    assert set(replace(ranking(), one_layout=False).gaps([packed])) == {"a.packed"}


PLAIN, PACKED = kernel("a.plain"), kernel("a.packed", layout="packed")
DECODES = kernel("a.decodes", Tier.NATIVE, TokenBand(1, 65), layout="packed")
SLOW_AT_512 = {
    1: {"a.plain": 10.0, "a.packed": 9.0},
    64: {"a.plain": 12.0, "a.packed": 11.0},
    512: {"a.plain": 50.0, "a.packed": 500.0},
}


def test_a_layout_that_wins_at_one_token_and_is_slow_at_512_is_not_chosen() -> None:
    able = (PLAIN, PACKED)
    assert laid_out(ranking(measured=SLOW_AT_512), *able) == [(1, END, "a.plain")]
    decodes = replace(ranking(measured=SLOW_AT_512), traffic=load_traffic({1: 1000, 512: 1}))
    assert laid_out(decodes, *able) == [(1, END, "a.packed")], "where nearly all steps are decodes, it is"
    (slot,) = ranking(measured=SLOW_AT_512).lay_out(able)
    assert slot.why == "measured alone at 1 token, 2026-11-21; layout plain: 0.20x of packed over the traffic"


def test_the_costs_of_layouts_are_those_of_their_fastest_kernel_at_each_count() -> None:
    times = {n: {**each, "a.decodes": each["a.plain"] / 2} for n, each in SLOW_AT_512.items()}
    rules = replace(ranking(measured=times), traffic=load_traffic({1: 3, 512: 1}))
    plain, packed = rules.alternatives([PLAIN, PACKED, DECODES])
    assert (plain.name, plain.microseconds, plain.mean) == ("plain", ((1, 10.0), (512, 50.0)), 20.0)
    assert packed.microseconds == ((1, 5.0), (512, 500.0)), "a.decodes is not offered for 512 tokens"
    assert packed.mean == (3 * 5.0 + 500.0) / 4
    slots = replace(rules, traffic=load_traffic({1: 1})).lay_out([PLAIN, PACKED, DECODES])
    assert [(slot.stop, slot.winner.spec.id) for slot in slots] == [(65, "a.decodes"), (END, "a.packed")]


def test_a_layout_that_was_not_measured_everywhere_comes_after_those_that_were() -> None:
    times = {1: {"a.plain": 10.0, "a.packed": 1.0}, 512: {"a.plain": 50.0}, 2048: {"a.plain": 90.0}}
    assert laid_out(ranking(measured=times), PLAIN, PACKED) == [(1, END, "a.plain")]


def test_a_preference_decides_the_layout_wherever_it_is_offered() -> None:
    late = kernel("a.late", Tier.PORTABLE, TokenBand(64), layout="packed")
    rest = kernel("a.rest", Tier.PORTABLE, layout="packed", score=-1)
    able = (late, rest, VENDOR)
    assert laid_out(ranking(prefer=("a.late",)), *able) == [(1, 64, "a.rest"), (64, END, "a.late")]


def test_one_kernel_for_all_counts_is_chosen_over_all_of_them() -> None:
    both = (PLAIN, kernel("b.plain"))
    times = {1: {"a.plain": 10.0, "b.plain": 9.0}, 512: {"a.plain": 50.0, "b.plain": 500.0}}
    (slot,) = replace(ranking(measured=times), one_piece=True).lay_out(both)
    assert slot.winner.spec.id == "a.plain"
    assert slot.why.startswith("measured 0.11x of b.plain over the traffic, 2026-11-21; serves every count")


def test_pin_decides_the_layout_and_holds_where_it_is_offered() -> None:
    pinned = kernel("a.big", Tier.REFERENCE, TokenBand(64), layout="packed")
    rest = kernel("a.rest", Tier.PORTABLE, layout="packed")
    assert laid_out(ranking(pin="a.big"), pinned, rest, VENDOR) == [(1, 64, "a.rest"), (64, END, "a.big")]


def test_losers_have_a_reason() -> None:
    packed = kernel("a.packed", Tier.NATIVE, layout="packed")
    rules = ranking()
    slots = rules.lay_out([VENDOR, NATIVE, packed, STRANGER])
    codes = [rules.loser(c, slots).code for c in (NATIVE, packed, STRANGER, SLOW)]
    assert codes == ["outranked", "layout", "not_vouched", "opt_in"]
