"""``cache_control``: which prefixes of a conversation stay in the cache, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from llmk.api import RequestError
from llmk_anthropic.messages import Messages

HOUR, SHORT = {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}
TOOL: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
EMPTY = {"role": "user", "content": ""}


def text(words: str, control: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": words, **({"cache_control": control} if control else {})}


def prefixes(**fields: Any) -> list[tuple[Any, float]]:
    given = {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], **fields}
    return [(list(each.messages), each.seconds) for each in Messages().translate(given, {}).prefixes]


def test_nothing_is_pinned_that_is_not_marked() -> None:
    assert prefixes(system=[text("Be kind.")], tools=[TOOL]) == []


def test_each_place_can_be_marked() -> None:
    assert prefixes(tools=[{**TOOL, "cache_control": SHORT}], system="Be kind.") == [([EMPTY], 300.0)]
    system = [text("Be kind.", HOUR), text("Be short.")]
    assert prefixes(system=system) == [([{"role": "system", "content": "Be kind."}, EMPTY], 3600.0)]
    content = [text("A"), text("B", SHORT), text("C")]
    found = prefixes(messages=[{"role": "user", "content": content}])
    assert found == [([{"role": "user", "content": [text("A"), text("B")]}], 300.0)]
    assert prefixes(cache_control=SHORT) == [([{"role": "user", "content": "Hi"}], 300.0)]


def test_results_of_tools_and_their_parts_can_be_marked() -> None:
    call = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
    for place in ("result", "part"):
        result: dict[str, Any] = {"type": "tool_result", "tool_use_id": "a", "content": [text("Seen.")]}
        marked = result if place == "result" else result["content"][0]
        marked["cache_control"] = SHORT
        messages = [
            {"role": "user", "content": "Look!"},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, text("And?")]},
        ]
        ((found, seconds),) = prefixes(messages=messages, tools=[TOOL])
        assert [message["role"] for message in found] == ["user", "assistant", "tool"]
        assert seconds == 300.0


def test_of_each_time_the_longest_prefix_counts() -> None:
    messages = [
        {"role": "user", "content": [text("A", SHORT)]},
        {"role": "assistant", "content": "B"},
        {"role": "user", "content": [text("C", SHORT)]},
    ]
    (hour, short) = prefixes(system=[text("Be kind.", HOUR)], messages=messages)
    assert (hour[1], short[1]) == (3600.0, 300.0)
    assert len(short[0]) == 4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"system": [text(str(at), SHORT) for at in range(5)]}, "at most 4 blocks can have 'cache_control'; 5 have"),
        ({"system": [text("a", SHORT), text("b", HOUR)]}, "ttl '1h' can't come behind one with '5m'"),
        ({"system": [text("a", {"type": "forever"})]}, "cache_control"),
        ({"system": [text("a", {"type": "ephemeral", "ttl": "2h"})]}, "ttl"),
    ],
)
def test_what_the_api_refuses(fields: Any, message: str) -> None:
    with pytest.raises(RequestError, match=r".") as caught:
        prefixes(**fields)
    assert message in str(caught.value)
