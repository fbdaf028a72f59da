"""Stop strings, ends and log-probabilities of one sequence."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmk.engine.text.output_processor import GenerationDelta, SequenceOutput
from llmk.engine.text.stop_strings import StopStrings
from llmk.engine.wire.request import TokenLogprobs, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams


class Letters:
    """A detokenizer for which a token is a character."""

    def push(self, token_ids):
        return "".join(map(chr, token_ids))

    def finish(self):
        return ""


def run(text: str, *, finish: str | None = "length", engine_stop: int | None = None, **params):
    sequence = SequenceOutput(SamplingParams(**params), Letters())
    deltas = []
    for i, char in enumerate(text):
        last = i == len(text) - 1
        output = TokenOutput(
            id="a",
            token_ids=[ord(char)],
            logprobs=[TokenLogprobs(ord(char), -1.0, 1)],
            finish_reason=finish if last else None,
            stop_token_id=engine_stop if last else None,
        )
        deltas.append(sequence.take(output, float(i)))
        if deltas[-1].finish_reason:
            break
    return deltas


def expected(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The plain definition: the stop string that is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=400)
@given(
    chunks=st.lists(st.text("ab", max_size=5), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    include=st.booleans(),
)
def test_stop_strings_for_any_chunking(chunks, stops, include):
    finder = StopStrings(tuple(stops), include=include)
    text, stop = "", None
    for chunk in chunks:
        certain, stop = finder.push(chunk)
        text += certain
        if stop:
            break
    else:
        text += finder.finish()
    assert (text, stop) == expected("".join(chunks), stops, include)


@given(text=st.text("ab", max_size=20), stops=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_no_more_is_held_back_than_could_become_a_stop_string(text, stops):
    finder = StopStrings(tuple(stops))
    out, stop = finder.push(text)
    if stop is None:
        held = text[len(out) :]
        assert held == "" or any(s.startswith(held) and s != held for s in stops)


def test_stop_strings_take_linear_time():
    finder = StopStrings(("a" * 5000 + "b",))
    start = time.perf_counter()
    for _ in range(2000):
        finder.push("a" * 10)
    assert time.perf_counter() - start < 1.0


def test_a_stop_string_ends_text_and_tokens():
    deltas = run("hello END more", stop=("END",))
    assert "".join(d.text for d in deltas) == "hello "
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].stop_reason == "END"
    assert sum(len(d.token_ids) for d in deltas) == len("hello END")
    assert all(len(d.token_ids) == len(d.logprobs) for d in deltas)


def test_several_tokens_at_once_end_at_the_stop_string():
    sequence = SequenceOutput(SamplingParams(stop=("b",)), Letters())
    delta = sequence.take(TokenOutput(id="a", token_ids=[97, 98, 99, 100], finish_reason="length"), 0.0)
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("a", [97, 98], "stop")


def test_a_stop_string_can_be_kept():
    assert "".join(d.text for d in run("hi.there", stop=(".",), include_stop=True)) == "hi."


def test_what_was_held_back_comes_at_the_end():
    deltas = run("hello EN", stop=("END",))
    assert "".join(d.text for d in deltas) == "hello EN"
    assert deltas[-1].text == "EN"
    assert deltas[-1].finish_reason == "length"


def test_stop_strings_wait_for_min_tokens():
    assert "".join(d.text for d in run("a.b.c", stop=(".",), min_tokens=3)) == "a.b"


@pytest.mark.parametrize(("keep", "text"), [(False, "ab"), (True, "abc")])
def test_the_token_that_ends_the_text_is_not_part_of_it(keep, text):
    deltas = run("abc", finish="stop", engine_stop=99, include_stop=keep)
    assert "".join(d.text for d in deltas) == text
    assert deltas[-1].stop_reason == 99
    assert deltas[-1].token_ids == [99]


def test_a_stop_string_may_start_before_min_tokens():
    deltas = run("a.b.c", stop=("b.",), min_tokens=3)
    assert ("".join(d.text for d in deltas), deltas[-1].stop_reason) == ("a.", "b.")
    deltas = run("ababc", stop=("ab",), min_tokens=3)
    assert ("".join(d.text for d in deltas), deltas[-1].stop_reason) == ("ab", "ab")


@given(text=st.text("ab", max_size=12), stop=st.text("ab", min_size=1, max_size=4), least=st.integers(0, 12))
def test_min_tokens_count_where_a_stop_string_ends(text, stop, least):
    least = min(least, len(text))
    ends = [end for end in range(max(least, len(stop)), len(text) + 1) if text[:end].endswith(stop)]
    said = "".join(d.text for d in run(text, stop=(stop,), min_tokens=least))
    assert said == (text[: ends[0] - len(stop)] if ends else text)


def test_what_waits_is_joined_with_its_parts() -> None:
    first = GenerationDelta(0, "ab", [1])
    for text, tokens in (("", [2]), ("cde", [3, 4])):
        later = GenerationDelta(0, text, tokens)
        assert first.joins(later)
        first.join(later)
    assert (first.text, first.token_ids, first.parts) == ("abcde", [1, 2, 3, 4], [(2, 1), (0, 1), (3, 2)])
    assert [*GenerationDelta(0, "a", [1]).split()] == [GenerationDelta(0, "a", [1])]


def test_what_was_joined_is_split_again() -> None:
    def scored(text: str, *ids: int, **more: Any) -> GenerationDelta:
        return GenerationDelta(0, text, list(ids), tuple(TokenLogprobs(id, -0.5, 1, []) for id in ids), **more)

    deltas = [
        scored("a", 1, num_prompt_tokens=5, num_cached_tokens=2),
        scored("", 2),
        scored("bcd", 3, 4, finish_reason="stop", stop_reason="x"),
    ]
    first = replace(deltas[0])
    for later in deltas[1:]:
        first.join(later)
    assert [*first.split()] == deltas
