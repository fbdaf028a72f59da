"""Cases of what routes make of responses."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from llmk.api import AnswerRenderer, Frame, ReasoningDelta, TextDelta, TranslatedRequest
from llmk_testing.case import Skip
from llmk_testing.parsers import counted_lines
from llmk_testing.route_answers import FIXED, Delta, call, calls_of, drawn, places, said
from llmk_testing.route_examples import MODEL, RouteAnswer, Spoken, difference
from llmk_testing.suites.route_many import check_many
from llmk_testing.tried_route import Tried, sent

_ENGINE: dict[str, dict[str, Any]] = {
    "tokenize": {"count": 1, "tokens": [1]},
    "embed": {"data": [], "usage": {"prompt_tokens": 1}},
    "info": {},
}
"""The least that llmk's own routes return, by kind."""
_DRAWN = 40
_PART = re.compile(r"^(?P<stem>.*?)[-_.]?(?P<step>start|delta|end|stop|done)$")


def _check_responses(tried: Tried) -> None:
    """Plain data, from which no text is lost; of many results, each is at its place."""
    for _, made in tried.requests():
        if made.kind not in ("chat", "text"):
            json.dumps(tried.made().result(_ENGINE[made.kind], sent(made), MODEL))
            continue
        for spoken in FIXED:
            answer = tried.answered(made, spoken)
            whole = json.dumps(answer.whole)
            for delta, _ in spoken.deltas:
                for event in (event for event in delta.events if isinstance(event, TextDelta)):
                    text = json.dumps(event.text)[1:-1]
                    assert text in whole, f"of a complete response, the text {event.text!r} is lost: {whole}"
    check_many(tried)


def _check_texts(tried: Tried) -> None:
    """Each text once, in its order, and at its own place, apart from thoughts."""
    texts, thoughts = ("Once. ", "Upon. ", "A time."), ("Hm, ", "well. ")
    deltas = [Delta((ReasoningDelta(text),)) for text in thoughts] + [Delta((TextDelta(text),)) for text in texts]
    spoken = said(*deltas, Delta((), "stop"))
    for _, made in tried.generating():
        answer = tried.answered(made, spoken)
        for way, data in (("streamed", [_placed(frame) for frame in answer.frames]), ("complete", [answer.whole])):
            joined = _joined(data)
            assert any("".join(texts) in text for text in joined.values()), (
                f"a {way} response has no place with the text {''.join(texts)!r}: {dict(joined)}"
            )
            for where, text in joined.items():
                doubled = [each for each in (*texts, *thoughts) if text.count(each) > 1]
                assert not doubled, f"a {way} response has {doubled[0]!r} more than once in {where}"
                mixed = "".join(thoughts) + "".join(texts) in text
                assert not mixed, f"a {way} response has the thoughts as text: {text!r} in {where}"


def _placed(frame: Frame) -> Mapping[str, Any]:
    return {frame.event or "data": frame.data}


def _joined(data: Sequence[Any]) -> dict[str, str]:
    joined: dict[str, str] = defaultdict(str)
    for where, text in (pair for each in data for pair in places(each)):
        joined[where] += text
    return joined


def _check_soon(tried: Tried) -> None:
    """In the frames of its own delta."""
    for _, made in tried.generating():
        renderer = tried.opened(made, FIXED[0])
        for number in range(5):
            text = f"number {number}"
            spoken = said(Delta((TextDelta(text),)))
            frames = [json.dumps(frame.data) for frame in renderer.frames(*spoken.deltas[0])]
            assert any(text in frame for frame in frames), f"the text {text!r} is held back: {frames}"


def _check_ids(tried: Tried) -> None:
    """Two calls of a response, those of two responses, and one that has its own."""
    heads = [spoken.head for spoken in drawn(tried.generator, 2)]
    for _, made in tried.generating():
        ids = []
        for head in heads:
            events = (*call(0), *call(1, "g"), *call(2, "h", "own"))
            whole = tried.answered(made, said(Delta(events, "tool_calls"), head=head)).whole
            found = [one["id"] for one in calls_of(whole, "fgh")]
            if len(found) == 3:
                assert "own" in found, f"a call with the id 'own' has another one: {found}"
                ids += [id for id in found if id != "own"]
        doubled = [id for id, count in Counter(map(str, ids)).items() if count > 1]
        assert not doubled, f"calls without an id have one id together: {doubled[0]!r}"


def _check_order(tried: Tried) -> None:
    """Of what starts, goes on and ends by an ``index``: no piece before its start or behind its end."""
    for _, made in tried.generating():
        for spoken in (*FIXED, *drawn(tried.generator, _DRAWN)):
            opened: set[tuple[str, Any]] = set()
            used: set[tuple[str, Any]] = set()
            frames = tried.answered(made, spoken).frames
            events = [frame.data.get("type") or frame.event for frame in frames]
            stems = _stems(events)
            for name, frame in zip(events, frames, strict=True):
                part = _PART.match(str(name))
                if part is None or part["stem"] not in stems or "index" not in frame.data:
                    continue
                key = part["stem"], frame.data["index"]
                if part["step"] == "start":
                    assert key not in used, f"{name} comes twice with index {key[1]}"
                    used.add(key)
                    opened.add(key)
                    continue
                assert key in opened, f"{name} of index {key[1]} is not between a start and an end: {events}"
                opened -= set() if part["step"] == "delta" else {key}
            assert not opened, f"{sorted(map(str, opened))} of a response started and never ended: {events}"


def _stems(events: Sequence[Any]) -> set[str]:
    """What has a start and an end."""
    steps: dict[str, set[str]] = defaultdict(set)
    for name in events:
        if part := _PART.match(str(name)):
            steps[part["stem"]].add(part["step"])
    return {stem for stem, found in steps.items() if {"start", "end"} <= found or {"start", "stop"} <= found}


def _check_apart(tried: Tried) -> None:
    """Two responses by turns, of one route, one of them streamed, and two that are."""
    generating = [made for _, made in tried.generating()]
    for first, second in zip(generating, [*generating[1:], *generating[:1]], strict=True):
        for streamed in ((True, True), (True, False), (False, False)):
            route = tried.made()
            spoken = [
                said(*(Delta((TextDelta(f"{name}{at} "),)) for at in range(3)), Delta((), "stop")) for name in "ab"
            ]
            renderers = [route.open(one.head, sent(made)) for one, made in zip(spoken, (first, second), strict=True)]
            texts = ["", ""]
            for at in range(4):
                for number, renderer in enumerate(renderers):
                    texts[number] += _rendered(renderer, spoken[number], at, streamed[number])
            for text, other in zip(texts, "ba", strict=True):
                assert f"{other}1 " not in text, f"a response has the text of another one: {text}"


def _rendered(renderer: AnswerRenderer, spoken: Spoken, at: int, streamed: bool) -> str:
    """The frames of a delta; of the last, also the end."""
    delta, usage = spoken.deltas[at]
    last = at == len(spoken.deltas) - 1
    if not streamed:
        renderer.add(delta, usage)
        return json.dumps(renderer.whole(usage)) if last else ""
    frames = [*renderer.frames(delta, usage), *(renderer.last_frames(usage) if last else ())]
    return json.dumps([frame.data for frame in frames])


def _check_reasons(tried: Tried) -> None:
    """A response that was cut off looks unlike one that ended, streamed and complete."""
    for _, made in tried.generating():
        ends = [tried.answered(made, said(Delta((TextDelta("x"),), why))) for why in ("stop", "length")]
        for way in ("frames", "whole"):
            texts = [_steady(getattr(answer, way)) for answer in ends]
            assert texts[0] != texts[1], f"whether the limit of tokens ended a response is not in its {way}: {texts[0]}"


def _steady(data: Any) -> str:
    """Plain data without times, which differ from run to run."""
    plain = [frame.data for frame in data] if isinstance(data, list) else data
    return re.sub(r'\d{4}-\d\d-\d\d[^"]*|\d{7,}|\d+\.\d+', "", json.dumps(plain))


def _check_linear(tried: Tried) -> None:
    """Four times as many deltas must take about four times the lines of Python."""
    for _, made in list(tried.generating())[:1]:
        run = partial(_many, tried, made)
        short = counted_lines(partial(run, 100))
        limit = 6 * short + 2000
        long = counted_lines(partial(run, 400), limit)
        assert long <= limit, f"{short} lines of code for 100 deltas become more than {limit} for 400"


def _many(tried: Tried, made: TranslatedRequest, count: int) -> None:
    events = [(TextDelta("x"), ReasoningDelta("y"))[at % 2] for at in range(count)]
    tried.answered(made, said(*(Delta((event,)) for event in events)))


def _check_oracle(tried: Tried) -> str:
    """Each frame and the whole, of all requests that generate text; and results of those that don't."""
    oracle = tried.examples.oracle
    results = [(one, result) for one in tried.valid for result in one.results]
    for example, (returned, expected) in results:
        (made,) = (made for one, made in tried.requests() if one is example)
        found = tried.made().result(returned, sent(made), MODEL)
        why = difference(found, expected)
        assert not why, f"of the response to {example.body}, {why}"
    generating = list(tried.generating())
    if generating and oracle is None:
        raise Skip("responses are compared with nothing: the examples have no oracle (RouteExamples.oracle)")
    if len(generating) < len(tried.valid) and not results:
        raise Skip("responses are compared with nothing: no example says what is returned (RouteExample.results)")
    answers = 0
    for example, made in generating:
        assert oracle is not None
        for spoken in (*FIXED, *drawn(tried.generator, _DRAWN)):
            _compare(tried.answered(made, spoken), oracle(example.body, spoken), spoken)
            answers += 1
    return f"{answers} responses, {len(results)} results"


def _compare(found: RouteAnswer, expected: RouteAnswer, spoken: Spoken) -> None:
    what = f"where the model says {[(one.events, one.finish_reason, one.stop_reason) for one, _ in spoken.deltas]}"
    frames = [[(frame.event, frame.data) for frame in answer.frames] for answer in (found, expected)]
    for at, (one, other) in enumerate(zip(*frames, strict=False)):
        why = difference(one, other)
        assert not why, f"{what}, in frame {at}, {why}"
    sizes = [len(answer) for answer in frames]
    assert sizes[0] == sizes[1], f"{what}, there are {sizes[0]} frames, expected {sizes[1]}"
    why = difference(found.whole, expected.whole)
    assert not why, f"{what}, of the complete response, {why}"


CHECKS = (
    ("responses are plain data, streamed and complete", _check_responses),
    ("texts come once, in their order, and thoughts apart from them", _check_texts),
    ("text is sent with the delta that it is in", _check_soon),
    ("calls have ids of their own", _check_ids),
    ("what starts ends, with all its pieces between", _check_order),
    ("responses don't depend on each other", _check_apart),
    ("a response says whether its limit ended it", _check_reasons),
    ("a response takes time in proportion to its deltas", _check_linear),
    ("responses are those of the oracle", _check_oracle),
)
