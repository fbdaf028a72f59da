"""A route that answers with what the model said, and ways to get one wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from defects import Defect
from llmk.api import (
    AnswerDelta,
    Frame,
    ReasoningDelta,
    RequestError,
    TextDelta,
    TokenCounts,
    TranslatedRequest,
)
from llmk.api.http.calls import CompleteCall, CompleteCalls
from llmk_testing.route_examples import MESSAGE, RouteAnswer, RouteExample, RouteExamples, Spoken

REFUSALS = "what can't be served is refused with RequestError"
TRANSLATIONS = "requests are translated to plain data, alike each time"
RESPONSES = "responses are plain data, streamed and complete"
ERRORS = "every error is put in the API's format"
MEANINGS = "requests mean what the examples say"
ORACLE = "responses are those of the oracle"
ONCE = "texts come once, in their order, and thoughts apart from them"


def rendered(body: Any, spoken: Spoken) -> RouteAnswer:
    parts: list[dict[str, Any]] = []
    for part in spoken.parts:
        if isinstance(part, CompleteCall):
            parts.append({"id": part.id or f"{spoken.head.id}-{part.index}", "name": part.name})
        else:
            parts.append({"said" if isinstance(part, TextDelta) else "thought": part.text})
    whole = {
        "said": "".join(part.get("said", "") for part in parts),
        "calls": [part for part in parts if "name" in part],
        "end": spoken.end[0],
    }
    return RouteAnswer([*map(Frame, parts), Frame({"end": spoken.end[0]})], whole)


def means(say: str, stream: bool = False, **more: Any) -> TranslatedRequest:
    return TranslatedRequest("text", {"prompt": say, **more}, stream)


EXAMPLES = RouteExamples(
    requests=(
        RouteExample({"say": "a"}, means("a")),
        RouteExample({"say": "b", "stream": True, "seed": 0}, means("b", True, seed=0)),
        RouteExample({"say": "c", "model": "m", "stop": ["x"]}, means("c", model="m", stop=["x"])),
        RouteExample({"say": 1}, refused="say"),
        RouteExample(
            {"say": "d", "texts": ["x", "y"]},
            TranslatedRequest("embed", {"input": ["x", "y"]}),
            results=[({"data": [{"index": 0, "embedding": [1.0]}]}, {"vectors": [[1.0]]})],
        ),
    ),
    oracle=rendered,
    errors={404: Frame({"oops": MESSAGE, "code": "c"})},
)
BODIES = [{"say": "a", "seed": 3}, {"say": "b", "stream": True}]


class Said:
    """The texts and calls of a response."""

    def __init__(self, id: str) -> None:
        self.id = id
        self.end = ""
        self.said: list[dict[str, Any]] = []
        self.calls = CompleteCalls()

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Any]:
        for event in delta.events:
            part = self.calls.of(event)
            if isinstance(part, CompleteCall):
                yield Frame({"id": self.named(part), "name": part.name})
            elif isinstance(part, TextDelta | ReasoningDelta) and part.text:
                yield from self.texts(part)
        self.end = delta.finish_reason or ""

    def named(self, call: CompleteCall) -> str:
        return call.id or f"{self.id}-{call.index}"

    def texts(self, part: TextDelta | ReasoningDelta) -> Iterator[Frame]:
        yield Frame({"said" if isinstance(part, TextDelta) else "thought": part.text})

    def last_frames(self, usage: TokenCounts) -> Iterator[Any]:
        yield Frame({"end": self.end})

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        self.said += [dict(frame.data) for frame in self.frames(delta, usage)]

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        texts = "".join(part.get("said", "") for part in self.said)
        return {"said": texts, "calls": [part for part in self.said if "name" in part], "end": self.end}


class Ask:
    """A good route."""

    renderer: type[Said] = Said

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        if not isinstance(body, dict):
            raise RequestError("the body must be an object")
        return self.checked(body)

    def checked(self, body: dict[str, Any]) -> TranslatedRequest:
        if not isinstance(body.get("say"), str):
            raise RequestError("say: it must be a text", param="say")
        for name, kind in (("model", str), ("stop", list), ("texts", list)):
            if not isinstance(body.get(name, kind()), kind):
                raise RequestError(f"{name}: it must be another value", param=name)
        for name in ("stop", "texts"):
            if not all(isinstance(each, str) for each in body.get(name, ())):
                raise RequestError(f"{name}: it must have texts", param=name)
        if body.get("texts") == []:
            raise RequestError("texts: it must have a text", param="texts")
        if type(body.get("seed", 0)) is not int or not 0 <= body.get("seed", 0) < 1000:
            raise RequestError("seed: it must be a number from 0 to 999", param="seed")
        return self.request(body)

    def request(self, body: Any) -> TranslatedRequest:
        if "texts" in body:
            return TranslatedRequest("embed", {"input": list(body["texts"])})
        more = {name: body[name] for name in ("seed", "model", "stop") if name in body}
        return TranslatedRequest("text", {"prompt": body["say"], **more}, body.get("stream") is True)

    def open(self, head: Any, options: Mapping[str, Any]) -> Any:
        return self.renderer(head.id)

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: Any) -> Any:
        return {"vectors": [each["embedding"] for each in result["data"]]}

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        return Frame({"oops": error["message"], "code": error["code"]})


def answers(renderer: type[Said]) -> type[Ask]:
    """A route whose responses are of another kind; specs name it as one of this module."""
    made = type(f"Answers{renderer.__name__}", (Ask,), {"renderer": renderer})
    globals()[made.__name__] = made
    return made


class Last(Said):
    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        self.said = [dict(frame.data) for frame in self.frames(delta, usage)] or self.said


class Deep(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        with suppress(ValueError):
            json.loads(body["say"])
        return super().request(body)


class Trusts(Ask):
    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        return self.request(body)


class OneModel(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return super().request({name: value for name, value in body.items() if name != "model"})


class Objects(Ask):
    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        return self.checked(body)


class Searches(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        seen: list[str] = []
        for text in body.get("stop", ()):
            for other in [*seen, ""]:
                if other is text:
                    break
            seen.append(f"{text} {len(seen)}")
        return super().request(body)


class Changes(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return TranslatedRequest("text", {"prompt": body.pop("say")})


class KeepsStream(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return TranslatedRequest("text", {"prompt": body["say"], "stream": True})


class Invents(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        kind: Any = "speech"
        return TranslatedRequest(kind, {"prompt": body["say"]})


class Hides(Ask):
    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        return Frame({"oops": status})


class Strict(Said):
    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Any]:
        assert all(isinstance(event, TextDelta) for event in delta.events)
        return super().frames(delta, usage)


class Raw(Said):
    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        return {"said": str(super().whole(usage)).encode()}


class Doubles(Said):
    def texts(self, part: TextDelta | ReasoningDelta) -> Iterator[Frame]:
        yield from super().texts(part)
        yield from super().texts(part)


class SaysThoughts(Said):
    def texts(self, part: TextDelta | ReasoningDelta) -> Iterator[Frame]:
        yield Frame({"said": part.text})


class Holds(Said):
    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.held: list[Frame] = []

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Any]:
        yield from self.held
        self.held = list(super().frames(delta, usage))

    def last_frames(self, usage: TokenCounts) -> Iterator[Any]:
        yield from self.held
        yield from super().last_frames(usage)


class OneId(Said):
    def named(self, call: CompleteCall) -> str:
        return call.id or "call"


class OwnIds(Said):
    def named(self, call: CompleteCall) -> str:
        return f"{self.id}-{call.index}"


class Blocks(Said):
    """Each text is a block."""

    at = 0

    def texts(self, part: TextDelta | ReasoningDelta) -> Iterator[Frame]:
        for step in ("start", "delta", "end"):
            yield Frame({"type": f"block-{step}", "index": self.at, **({"said": part.text} if step == "delta" else {})})


class Unended(Blocks):
    def texts(self, part: TextDelta | ReasoningDelta) -> Iterator[Frame]:
        self.at += 1
        frames = list(super().texts(part))
        yield from frames if self.at == 1 else frames[:2]


class Unstarted(Blocks):
    def texts(self, part: TextDelta | ReasoningDelta) -> Iterator[Frame]:
        self.at += 1
        frames = list(super().texts(part))
        yield from frames if self.at == 1 else frames[1:]


class Shares(Said):
    everything: list[dict[str, Any]] = []  # noqa: RUF012

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        self.said = self.everything
        super().add(delta, usage)


class NoReason(Said):
    def last_frames(self, usage: TokenCounts) -> Iterator[Any]:
        yield Frame({"end": True})


class Rescans(Said):
    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterator[Any]:
        for frame in super().frames(delta, usage):
            self.said.append(dict(frame.data))
            for one in self.said:
                one.get("said")
            yield frame


class LastCall(Said):
    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        whole = dict(super().whole(usage))
        return {**whole, "calls": whole["calls"][:2]}


class NoZero(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return super().request(body if body.get("seed") else {**body, "seed": 1})


class NoStream(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return TranslatedRequest("text", super().request(body).body)


class Remembers(Ask):
    seed: int | None = None

    def request(self, body: Any) -> TranslatedRequest:
        self.seed = body.get("seed", self.seed)
        return super().request(body if self.seed is None else {**body, "seed": self.seed})


class Misnames(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        made = super().request(body)
        return TranslatedRequest("text", {**made.body, "maximum": 1}, made.stream)


class NoSeed(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return super().request({name: value for name, value in body.items() if name != "seed"})


class OtherField(Ask):
    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        try:
            return super().translate(body, headers)
        except RequestError as error:
            raise RequestError(str(error), param="prompt") from None


class NoCode(Ask):
    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        return Frame({"oops": error["message"], "code": str(status)})


class NeedsBody(Ask):
    """What it translated last says how it answers, which another process does not know."""

    def request(self, body: Any) -> TranslatedRequest:
        self.say = body["say"]
        return super().request(body)

    def open(self, head: Any, options: Mapping[str, Any]) -> Any:
        assert self.say
        return super().open(head, options)


class ByText(Ask):
    """Number 10 comes before number 2."""

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: Any) -> Any:
        data = sorted(result["data"], key=lambda each: str(each["index"]))
        return super().result({**result, "data": data}, options, model)


class FirstTexts(Ask):
    def request(self, body: Any) -> TranslatedRequest:
        return super().request({**body, **({"texts": body["texts"][:32]} if "texts" in body else {})})


class ByName(Said):
    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        whole = super().whole(usage)
        return {**whole, "calls": sorted(whole["calls"], key=lambda each: str(each["id"]))}


DEFECTS = [
    Defect("forgets", "complete responses have the last text alone", answers(Last), RESPONSES),
    Defect("deep", "deeply nested JSON in a text raises RecursionError", Deep, REFUSALS),
    Defect("trusts", "it trusts bodies", Trusts, REFUSALS),
    Defect("objects", "it takes each body for an object", Objects, REFUSALS),
    Defect("one_model", "requests to an adapter are the model's", OneModel, "the model that a request names"),
    Defect("searches", "each entry of a list takes time for all before it", Searches, "in proportion to its length"),
    Defect("changes", "it changes the body", Changes, TRANSLATIONS),
    Defect("stream", "it leaves stream in the body", KeepsStream, TRANSLATIONS),
    Defect("kind", "it invents a kind", Invents, TRANSLATIONS),
    Defect("hides", "it hides why", Hides, ERRORS),
    Defect("text_only", "it knows only text", answers(Strict), RESPONSES),
    Defect("bytes", "it answers bytes", answers(Raw), RESPONSES),
    Defect("doubles", "each text comes twice", answers(Doubles), ONCE),
    Defect("says_thoughts", "thoughts are texts", answers(SaysThoughts), ONCE),
    Defect("holds", "what is sent is that of the delta before", answers(Holds), "text is sent with the delta"),
    Defect("one_id", "calls have one id", answers(OneId), "calls have ids of their own"),
    Defect("own_ids", "calls lose their ids", answers(OwnIds), "calls have ids of their own"),
    Defect("one_block", "all blocks have one number", answers(Blocks), "what starts ends"),
    Defect("unended", "blocks don't end", answers(Unended), "what starts ends"),
    Defect("unstarted", "blocks don't start", answers(Unstarted), "what starts ends"),
    Defect("shares", "responses share their texts", answers(Shares), "responses don't depend on each other"),
    Defect("no_reason", "a stream does not say why it ended", answers(NoReason), "says whether its limit ended it"),
    Defect("rescans", "each delta takes time for all before it", answers(Rescans), "in proportion to its deltas"),
    Defect("two_calls", "complete responses have two calls at most", answers(LastCall), ORACLE),
    Defect("no_zero", "a seed of 0 becomes 1", NoZero, "numbers that are 0"),
    Defect("no_stream", "it never streams", NoStream, "streamed where the request says so"),
    Defect("remembers", "it remembers the last request's seed", Remembers, TRANSLATIONS),
    Defect("misnames", "it invents a field", Misnames, TRANSLATIONS),
    Defect("no_seed", "it ignores the seed", NoSeed, MEANINGS),
    Defect("other_field", "errors name llmk's fields", OtherField, REFUSALS),
    Defect("no_code", "errors lose their code", NoCode, ERRORS),
    Defect("by_text", "vectors are in the order of their numbers as texts", ByText, RESPONSES),
    Defect("first_texts", "of many texts the first are embedded", FirstTexts, RESPONSES),
    Defect("by_name", "complete responses have calls in the order of their names", answers(ByName), ORACLE),
    Defect("needs_body", "it needs what it translated last", NeedsBody, RESPONSES),
]
