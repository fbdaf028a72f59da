"""Much of what is cheap by itself: odd methods, paths and ids, and more valid requests than the server can carry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from hostile_cases.bodies import listed
from hostile_cases.frame import CHAT, COMPLETIONS, PATIENCE, PAUSE, Attack, Case
from hostile_cases.sampling import LONG
from hostile_cases.wire import Outcome, Target, exchange, head, request

Make = Callable[[Attack, Target], bytes]


def _many(
    name: str,
    what: str,
    make: Make,
    *expected: int,
    clients: int = 4,
    pause: float = PAUSE,
    patience: float = 0.0,
) -> Case:
    """Sends what ``make`` makes, another one each time."""
    statuses = frozenset(expected or (200, 400))

    def act(attack: Attack) -> Iterator[Outcome]:
        yield exchange(attack.target, [make(attack, attack.target)], statuses, may_cut=True, patience=patience)
        attack.pause(pause)

    return Case(name, what, lambda target: act, clients)


def _get(path: Callable[[Attack], str], method: Callable[[Attack], str] = lambda attack: "GET") -> Make:
    return lambda attack, target: head(target, method(attack), path(attack), {"content-length": 0})


def _id(attack: Attack) -> str:
    return f"{attack.rng.getrandbits(64):x}"


def _ask(
    fields: Callable[[Attack], dict[str, Any]], path: str = COMPLETIONS, **headers: Callable[[Attack], str]
) -> Make:
    def make(attack: Attack, target: Target) -> bytes:
        body = {"prompt": "One day", "max_tokens": 4} if path == COMPLETIONS else {}
        body |= fields(attack)
        named = {name.replace("_", "-"): value(attack) for name, value in headers.items()}
        return request(target, "POST", path, json.dumps(body).encode(), named)

    return make


def _load(name: str, what: str, fields: Callable[[Attack], dict[str, Any]], clients: int) -> Case:
    """Valid work."""
    return _many(
        name,
        what,
        _ask(lambda attack: {"ignore_eos": True, **fields(attack)}),
        200,
        400,
        clients=clients,
        patience=PATIENCE,
    )


def _small(name: str, what: str, start: bytes, entry: bytes, end: bytes) -> Case:
    """Bodies that are small, and slow to check."""
    body = listed(start, entry, end, 16_000)
    return _many(name, what, lambda a, t: request(t, "POST", CHAT, body), 200, 400, clients=8, pause=0.0)


def _conversation(attack: Attack) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    text = f"{attack.rng.random()} " + "Tell me more. " * 100
    return {"messages": [{"role": "user", "content": text}], "tools": [tool], "max_tokens": 40, "stream": True}


CASES: tuple[Case, ...] = (
    _many("methods", "A5: a method of 50 kB, another one each time",
          _get(lambda a: "/health", lambda a: "X" + _id(a) + "Y" * 50_000), 400, 405, 401),
    _many("methods-short", "a short method, another one each time",
          _get(lambda a: "/health", lambda a: "X" + _id(a)), 400, 405, 401),
    _many("paths", "a path of 50 kB, another one each time",
          _get(lambda a: "/" + _id(a) + "a" * 50_000), 400, 404, 414),
    _many("paths-model", "a model of 50 kB, another one each time",
          _get(lambda a: "/v1/models/" + _id(a) + "%00" * 15_000), 400, 404, 414),
    _many("paths-odd", "paths that lead elsewhere",
          _get(lambda a: a.rng.choice(["/../../etc/passwd", "//health", "/%2e%2e/x", "/health/", "/health%00", "/%ff",
                                       "*", "/v1//models", "/docs/../x", "/health;a=b", "/\\x"])),
          200, 301, 307, 308, 400, 404),
    _many("queries", "a query of 50 kB", _get(lambda a: "/health?" + f"{_id(a)}=b&" * 2500), 200, 400, 414),
    _many("ids", "a request id of 60 kB, another one each time",
          _ask(lambda a: {}, x_request_id=lambda a: _id(a) * 3700), 200, 400),
    _many("ids-short", "another request id each time", _ask(lambda a: {}, x_request_id=_id), 200),
    _many("keys", "another API key each time", _ask(lambda a: {}, authorization=lambda a: f"Bearer {_id(a)}"), 200,
         401),
    _many("admin-keys", "guesses at an operator's key",
          _ask(lambda a: {"id": "a", "prompt": "a"}, "/v1/cache/pins", x_admin_key=_id), 403),
    _many("salts", "another cache salt each time", _ask(lambda a: {"cache_salt": _id(a)}), 200),
    _many("users", "another user each time",
          _ask(lambda a: {"user": _id(a), "metadata": {"a": _id(a)}, "prompt_cache_key": _id(a)}), 200),
    _many("origins", "requests before requests of browsers", lambda a, t: head(
        t, "OPTIONS", CHAT, {"origin": f"http://{_id(a)}", "access-control-request-method": "POST"}), 200, 400, 405),
    _many("metrics", "/metrics without a pause", _get(lambda a: "/metrics"), 200, pause=0.0),
    _many("plan", "/v1/plan without a pause", _get(lambda a: "/v1/plan"), 200, pause=0.0),
    _many("openapi", "/openapi.json without a pause", _get(lambda a: "/openapi.json"), 200, 404, pause=0.0),
    _many("models", "/v1/models without a pause", _get(lambda a: "/v1/models"), 200, pause=0.0),
    _many("health", "/health without a pause", _get(lambda a: "/health"), 200, pause=0.0),
    _many("bad-json", "a bad body without a pause", lambda a, t: request(t, "POST", CHAT, b"{"), 400, pause=0.0),
    _small("small-entries", "8 clients with 1,300 misspelt messages in 16 KB",
           b'{"messages": [', b'{"contnet":1}', b"]}"),
    _small("small-messages", "8 clients with 500 messages in 16 KB",
           b'{"max_tokens": 1, "messages": [', b'{"role":"user","content":""}', b"]}"),
    _small("small-tools", "8 clients with 300 tools in 16 KB",
           b'{"messages": [{"role": "user", "content": "a"}], "tools": [',
           b'{"type":"function","function":{"name":"f"}}', b"]}"),
    _load("prompts-new", "8 clients with a long prompt, another one each time",
          lambda a: {"prompt": f"{_id(a)} {LONG}", "max_tokens": 1}, 8),
    _load("prompts-same", "8 clients with the same long prompt", lambda a: {"prompt": LONG, "max_tokens": 1}, 8),
    _load("lengths", "16 clients with prompts of any length",
          lambda a: {"prompt": [a.rng.randrange(300) for _ in range(a.rng.randrange(1, 600))], "max_tokens": 4}, 16),
    _load("answers-long", "16 clients with long answers", lambda a: {"max_tokens": 512, "stream": True}, 16),
    _load("answers-200", "200 clients with short answers", lambda a: {"max_tokens": 16, "stream": True}, 200),
    _load("random", "32 clients who sample", lambda a: {"max_tokens": 64, "temperature": 1.2, "top_p": 0.9,
         "stream": True},
          32),
    _load("cache", "24 clients who fill the cache",
          lambda a: {"prompt": f"{_id(a)} {LONG}", "max_tokens": 900, "n": 4, "stream": True}, 24),
    _load("priorities", "16 clients who say to be urgent",
          lambda a: {"max_tokens": 256, "priority": -(2**31), "stream": True}, 16),
    _many("tools", "16 clients with tools, streamed", _ask(_conversation, CHAT), 200, 400, clients=16,
          patience=PATIENCE),
    _many("batches", "batches of 64 prompts", _ask(lambda a: {"prompt": [f"{_id(a)} {at}" for at in range(64)]}), 200,
         400),
    _many("embeddings", "batches of 32 long texts to embed",
          _ask(lambda a: {"input": [f"{_id(a)} {LONG}"] * 32}, "/v1/io/embeddings"), 200, 400, 404, patience=PATIENCE),
    _many("tokenize", "8 clients who count tokens", _ask(lambda a: {"prompt": LONG * 20}, "/tokenize"), 200, 400,
         clients=8),
)  # fmt: skip
