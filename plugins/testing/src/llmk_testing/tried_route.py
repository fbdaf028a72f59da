"""A route with its examples, as its suite tries it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args

from llmk.api import AnswerRenderer, ApiRoute, Frame, RouteSpec, TranslatedRequest
from llmk.api.errors import describe
from llmk.api.routes import RouteKind
from llmk.kernel.loader import load_object
from llmk_testing.route_examples import RouteAnswer, RouteExample, RouteExamples, Spoken


@dataclass(frozen=True, slots=True)
class Tried:
    """A route and its examples."""

    spec: RouteSpec
    examples: RouteExamples
    generator: random.Random

    def made(self) -> ApiRoute:
        """A route as another process has it: nothing is left of what was translated."""
        made: ApiRoute = load_object(self.spec.implementation)()
        return made

    @property
    def valid(self) -> Sequence[RouteExample]:
        """The requests that are not refused."""
        return [one for one in self.examples.requests if not one.refused]

    def requests(self) -> Iterator[tuple[RouteExample, TranslatedRequest]]:
        """The requests that are not refused, translated."""
        for example in self.valid:
            yield example, translated(self.made(), example.body, example.headers)

    def generating(self) -> Iterator[tuple[RouteExample, TranslatedRequest]]:
        """Those that generate text."""
        yield from (pair for pair in self.requests() if pair[1].kind in ("chat", "text"))

    def opened(self, made: TranslatedRequest, spoken: Spoken) -> AnswerRenderer:
        """A renderer, by a route that has translated nothing: requests are translated in another process."""
        return self.made().open(spoken.head, sent(made))

    def answered(self, made: TranslatedRequest, spoken: Spoken) -> RouteAnswer:
        """A response, streamed by one renderer, and complete by another."""
        streaming, waiting = (self.opened(made, spoken) for _ in range(2))
        frames: list[Frame] = []
        for delta, usage in spoken.deltas:
            frames += streaming.frames(delta, usage)
            waiting.add(delta, usage)
        frames += streaming.last_frames(spoken.usage)
        whole = waiting.whole(spoken.usage)
        for frame in frames:
            assert isinstance(frame, Frame), f"{frame!r} is not a Frame"
        json.dumps([[frame.data for frame in frames], whole])
        return RouteAnswer(frames, whole)


def sent(made: TranslatedRequest) -> Mapping[str, Any]:
    """Options as another process gets them."""
    options: Mapping[str, Any] = json.loads(json.dumps(made.options))
    return options


def translated(route: ApiRoute, body: Any, headers: Mapping[str, str] | None = None) -> TranslatedRequest:
    """What a request is translated to. Raises ``AssertionError`` where that is not plain data."""
    given = deepcopy(body)
    try:
        made = route.translate(given, headers or {})
    finally:
        assert given == body, "translate() changed the body"
    assert isinstance(made, TranslatedRequest), f"translate() returned {type(made).__name__}"
    assert made.kind in get_args(RouteKind), f"{made.kind!r} is no kind of route"
    assert not {"stream", "stream_options"} & made.body.keys(), "'stream' belongs to the TranslatedRequest"
    try:
        json.dumps([made.body, made.options])
    except (TypeError, ValueError) as error:
        raise AssertionError(f"a request is translated to what is no plain data: {describe(error)}") from error
    return made
