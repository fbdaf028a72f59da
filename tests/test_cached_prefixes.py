"""``cache_control`` of Anthropic's API on a server with the demo model: marked prefixes outlast other requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from served import Served

pytestmark = [pytest.mark.slow_file, pytest.mark.hook("llmk_routes")]

HELLO: Any = [{"role": "user", "content": "Hello!"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(
        tmp_path_factory.mktemp("cached") / "log",
        *("--port", "0", "--max-model-len", "256", "--cache.num-blocks", "64", "--cache.tenant-pin-share", "0.3"),
    )
    yield server
    server.close()


@pytest.fixture(scope="module")
def client(served: Served) -> Anthropic:
    return Anthropic(base_url=served.url, api_key="none", max_retries=0, timeout=60)


def flood(served: Served) -> None:
    """Uses every block that is not pinned."""
    for number in range(8):
        body = {"model": served.model, "prompt": [5 + number] * 250, "max_tokens": 1}
        assert served.post("/v1/completions", body)[0] == 200


def usage(client: Any, served: Served, system: str, control: Any, **more: Any) -> Any:
    """The usage of a message, whose tokens add up."""
    block = {"type": "text", "text": system} | ({"cache_control": control} if control else {})
    given = {"model": served.model, "max_tokens": 2, "system": [block], "messages": HELLO, **more}
    found = client.messages.create(**given).usage
    count = client.messages.count_tokens(**{key: given[key] for key in ("model", "system", "messages")}).input_tokens
    assert found.input_tokens + found.cache_read_input_tokens + found.cache_creation_input_tokens == count
    created = found.cache_creation
    assert created.ephemeral_5m_input_tokens + created.ephemeral_1h_input_tokens == found.cache_creation_input_tokens
    return found


def test_a_marked_prefix_stays_and_another_goes(client: Any, served: Served) -> None:
    kind, gone = "You are a kind and patient teacher of children. " * 6, "You are a very strict editor of texts. " * 6
    first = usage(client, served, kind, {"type": "ephemeral", "ttl": "1h"})
    assert first.cache_creation.ephemeral_1h_input_tokens >= 32
    assert first.cache_read_input_tokens < 16
    assert usage(client, served, gone, None).cache_creation_input_tokens == 0
    flood(served)
    again = usage(client, served, kind, {"type": "ephemeral", "ttl": "1h"})
    assert again.cache_creation_input_tokens == 0
    assert again.cache_read_input_tokens >= first.cache_creation_input_tokens
    flood(served)
    assert usage(client, served, gone, None).cache_read_input_tokens < 16


def test_a_client_pins_its_share_alone(client: Any, served: Served) -> None:
    for number in range(12):
        usage(client, served, f"Rule {number}: " + "never say no to a friend. " * 12, {"type": "ephemeral"})
        assert served.metric("llmk_kv_cache_blocks_pinned") <= 0.3 * 64


def test_a_stream_has_the_counts(client: Any, served: Served) -> None:
    block = {
        "type": "text",
        "text": "A quite new prompt for streams only. " * 6,
        "cache_control": {"type": "ephemeral"},
    }
    with client.messages.stream(model=served.model, max_tokens=2, system=[block], messages=HELLO) as stream:
        final = stream.get_final_message()
    assert final.usage.cache_creation_input_tokens >= 32
    assert final.usage.cache_creation.ephemeral_5m_input_tokens == final.usage.cache_creation_input_tokens
