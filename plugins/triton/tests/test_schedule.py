"""Who does what in a decode step: every key of every request is somebody's, once."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged import Step, attention_query

from llmk.api import CacheStep
from llmk_triton.attention.decode_schedule import Rule, Schedule
from llmk_triton.attention.prefill_schedule import schedule_prefill
from llmk_triton.attention.work_list import list_work

TILE = 8


def items(schedule: Schedule) -> list[list[int]]:
    """Row, request, first, end, first seen, part, parts, members."""
    found: list[list[int]] = schedule.items[1 : 1 + int(schedule.items[0, 0])].tolist()
    return found


def check(schedule: Schedule, lengths: list[int], window: int = 0) -> None:
    """Each key of each request is in one item, whose part is its own."""
    seen: Counter[tuple[int, int]] = Counter()
    parts: Counter[tuple[int, int]] = Counter()
    spans = schedule.spans.tolist()
    for _, request, first, end, low, part, count, members in items(schedule):
        assert first % TILE == 0
        for member in range(request, request + members):
            seen.update((member, key) for key in range(max(first, low), end))
            parts[member, part] += 1
            assert part < count
            assert spans[member + 1] - spans[member] == count or members > 1
    starts = [max(0, length - window) if window else 0 for length in lengths]
    expected = [(i, key) for i, length in enumerate(lengths) for key in range(starts[i], length)]
    assert seen == Counter(expected)
    assert parts == Counter((i, part) for i in range(len(spans) - 1) for part in range(spans[i + 1] - spans[i]))
    assert len(items(schedule)) <= schedule.items.shape[0] - 1
    assert spans[-1] <= schedule.parts


def step(lengths: list[int], **options: int) -> CacheStep:
    return Step(attention_query(), [(length, 1) for length in lengths], **options).index


@pytest.mark.parametrize("window", [0, 21])
@pytest.mark.parametrize("slots", [1, 7, 64])
@pytest.mark.parametrize("least", [1, 3])
@pytest.mark.parametrize("lengths", [[1], [200], [70, 1, 9], [5] * 30 + [150]], ids=str)
def test_every_key_is_scheduled_once(lengths: list[int], least: int, slots: int, window: int) -> None:
    rule = Rule(slots=slots, tile=TILE, least=least, team=1, window=window)
    check(rule(step(lengths), 2, mixed=False), lengths, window)


def test_work_is_balanced_for_different_lengths() -> None:
    """The longest item takes no more than its share of all, however few others there are."""
    lengths = [8, 8, 8, 800]
    rule = Rule(slots=8, tile=TILE, least=1, team=1, window=0)
    sizes = [end - first for _, _, first, end, *_ in items(rule(step(lengths), 2, mixed=False))]
    assert max(sizes) <= TILE * -(-sum(lengths) // (TILE * rule.slots))


def test_bounds_and_padding_cost_no_items_with_keys() -> None:
    lengths = [30, 9]
    rule = Rule(slots=64, tile=TILE, least=1, team=1, window=0)
    padded = rule(step(lengths, padding=5, longest=5000), 2, mixed=False)
    with_keys = [item for item in items(padded) if item[3] > item[2]]
    assert with_keys == items(rule(step(lengths), 2, mixed=False))
    assert len(items(padded)) == len(with_keys) + 5


@pytest.mark.parametrize("team", [2, 4])
@pytest.mark.parametrize("shared", [0, 3, 8, 15])
def test_teams_share_whole_leading_tiles(shared: int, team: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmk_triton.attention.decode_schedule._LEAST_SHARED", 16)
    monkeypatch.setattr("llmk_triton.attention.decode_schedule._COLUMNS", 4)
    lengths = [61, 62, 75, 90, 61, 61, 64, 70, 66, 61]
    rule = Rule(slots=16, tile=TILE, least=2, team=team, window=0)
    schedule = rule(step(lengths, shared=shared), 2, mixed=False)
    check(schedule, lengths)
    teams = [item for item in items(schedule) if item[7] > 1]
    tokens = shared * 4 // TILE * TILE
    expected = dict.fromkeys(range(0, len(lengths) - team + 1, team), tokens) if tokens >= 16 else {}
    assert {request: max(e[3] for e in teams if e[1] == request) for _, request, *_ in teams} == expected


def test_a_different_prefix_only_affects_its_own_team(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmk_triton.attention.decode_schedule._LEAST_SHARED", 16)
    index = step([61] * 8, shared=10)
    index.block_table[5] += 1
    schedule = Rule(slots=16, tile=TILE, least=2, team=4, window=0)(index, 2, mixed=False)
    check(schedule, [61] * 8)
    assert {item[1] for item in items(schedule) if item[7] > 1} == {0}


def test_requests_with_several_queries_are_skipped() -> None:
    index = Step(attention_query(), [(20, 1), (30, 4), (9, 1)], padding=1).index
    schedule = Rule(slots=8, tile=TILE, least=1, team=1, window=0)(index, 2, mixed=True)
    assert {(row, request) for row, request, *_ in items(schedule)} == {(0, 0), (5, 2)}
    assert schedule.arrived.eq(torch.zeros(4, 2)).all()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 4000)), min_size=1, max_size=20),
    st.sampled_from([1, 5, 40]),
    st.sampled_from([0, 300]),
    st.booleans(),
)
def test_every_tile_of_prompts_has_programs_and_partial_results_fit(
    requests: list[tuple[int, int]], slots: int, window: int, skip_decode: bool
) -> None:
    """Requests of so many queries behind so many others."""
    lengths = [count for count, _ in requests]
    index = Step(attention_query(), [(4, 1)]).index
    index.query_start = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    index.seq_lens = torch.tensor([sum(request) for request in requests], dtype=torch.int32)
    made = schedule_prefill(index, 2, queries=8, slots=slots, window=window, skip_decode=skip_decode, split=slots > 1)
    lengths = [0 if skip_decode and count == 1 else count for count in lengths]
    tiles = [-(-count // 8) for count in lengths]
    parts = made.parts.tolist()
    assert made.starts.tolist() == [0, *accumulate(n * count for n, count in zip(tiles, parts, strict=True))]
    assert made.arrived.eq(0).all()
    split = [n * count if count > 1 else 0 for n, count in zip(tiles, parts, strict=True)]
    assert made.places.tolist() == [0, *accumulate(split)][:-1]
    assert sum(split) <= made.most
    assert slots > 1 or max(parts) == 1


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 1000)), min_size=1, max_size=70),
    st.sampled_from([1, 5, 40]),
    st.sampled_from([8, 32]),
)
def test_work_of_whole_keys_is_listed_by_its_length(requests: list[tuple[int, int]], slots: int, queries: int) -> None:
    """Requests of so many queries behind so many others; those of one query are the decode kernel's."""
    index = Step(attention_query(), [(4, 1)]).index
    first = [0, *accumulate(count for count, _ in requests)]
    index.query_start = torch.tensor(first, dtype=torch.int32)
    index.seq_lens = torch.tensor([sum(request) for request in requests], dtype=torch.int32)
    index.slot_mapping = torch.zeros(first[-1], dtype=torch.int64)
    made = schedule_prefill(index, 2, queries=8, slots=slots, window=0, skip_decode=True, split=slots > 1)
    expected = []
    for request, (length, context) in enumerate(requests):
        if length > 1 and made.parts[request] == 1:
            for query in range(0, length, queries):
                tiles = -(-(context + min(length, query + queries)) // 64)
                item = (first[request] + query, length - query, context + query, request)
                expected.append((-tiles, request, query, item))
    work = list_work(index, made, queries=queries, keys=64)
    count = int(work.count)
    assert [tuple(item) for item in work.items[:count].tolist()] == [item for *_, item in sorted(expected)]
