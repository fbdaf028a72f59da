"""Examples for the conformance kit: what requests mean, and what clients get."""

from __future__ import annotations

from typing import Any

from llmk.api import Frame, ReasoningDelta, TextDelta, TranslatedRequest
from llmk_testing.route_examples import MESSAGE, RouteAnswer, RouteExample, RouteExamples, Spoken

WHY = {"messages": [{"role": "user", "content": "Why?"}]}


def rendered(body: Any, spoken: Spoken) -> RouteAnswer:
    """The response once more, by the plainest code: from all that was said, at once."""
    end = {"id": spoken.head.id, "cut": spoken.end[0] == "length", "tokens": spoken.usage.completion_tokens}
    frames, answer = [], ""
    for part in spoken.parts:
        if isinstance(part, TextDelta):
            frames.append(Frame({"answer": part.text}, "piece"))
            answer += part.text
        elif isinstance(part, ReasoningDelta):
            frames.append(Frame({"thought": part.text}, "piece"))
    return RouteAnswer([*frames, Frame(end, "end")], {**end, "answer": answer})


ASK = RouteExamples(
    requests=(
        RouteExample({"question": "Why?"}, TranslatedRequest("chat", WHY)),
        RouteExample(
            {"question": "Why?", "seed": 0, "max_tokens": 5, "stream": True},
            TranslatedRequest("chat", {**WHY, "seed": 0, "max_tokens": 5}, stream=True),
        ),
        RouteExample({"question": ""}, refused="question"),
        RouteExample({"question": "Why?", "max_tokens": 0}, refused="max_tokens"),
    ),
    oracle=rendered,
    errors={status: Frame({"error": MESSAGE}, "error") for status in (400, 404, 500)},
)
