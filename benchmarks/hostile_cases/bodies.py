"""Bodies that are hard to read: JSON without end or meaning, and fields that nobody knows."""

from __future__ import annotations

from functools import partial

from hostile_cases.frame import CHAT, COMPLETIONS, MIB, Case, post

SIZE = 15 * MIB
"""A little less than server.max_request_bytes."""
ASKED = b'"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1'


def filled(start: bytes, unit: bytes, end: bytes, size: int = SIZE) -> bytes:
    """``unit`` as often as ``size`` bytes take, between ``start`` and ``end``."""
    return start + unit * max(1, size // len(unit)) + end


def listed(start: bytes, entry: bytes, end: bytes, size: int = SIZE, separator: bytes = b",") -> bytes:
    """The same with separators between the entries."""
    return start + separator.join([entry] * max(1, size // (len(entry) + 1))) + end


def nested(open_: bytes, inner: bytes, close: bytes, depth: int) -> bytes:
    """``inner``, so deep."""
    return open_ * depth + inner + close * depth


def field(name: bytes, value: bytes) -> bytes:
    """A chat that is fine but for one more field."""
    return b"{" + ASKED + b', "' + name + b'": ' + value + b"}"


def _fields(count: int, name: bytes = b"f") -> bytes:
    return b"{" + ASKED + b"".join(b', "%s%d": 1' % (name, at) for at in range(count)) + b"}"


def _distinct(count: int) -> bytes:
    """Messages with a wrong name each."""
    return b'{"messages": [' + b",".join(b'{"contnet%d": 1}' % at for at in range(count)) + b"]}"


_in = partial(listed, b'{"messages": [', end=b"]}")
_prompts = partial(listed, b'{"prompt": [', end=b"]}")

CASES: tuple[Case, ...] = (
    post("entries-1m", "A2: 840 KB of messages with an unknown field", CHAT, lambda: _in(b'{"x": 1}', size=840_000)),
    post("entries-15m", "A2: 15 MB of the same", CHAT, lambda: _in(b'{"x": 1}')),
    post("entries-empty", "5 million messages {}", CHAT, lambda: _in(b"{}")),
    post("entries-null", "3 million messages null", CHAT, lambda: _in(b"null")),
    post("entries-zero", "8 million messages 0", CHAT, lambda: _in(b"0")),
    post("entries-misspelt", "600,000 messages, each with a field spelt wrong", CHAT, lambda: _distinct(600_000)),
    post("roles", "300,000 messages of an unknown role", CHAT, lambda: _in(b'{"role": "nobody", "content": "x"}')),
    post("fields", "600,000 unknown fields", CHAT, lambda: _fields(600_000)),
    post("fields-near", "200,000 fields close to known ones", CHAT, lambda: _fields(200_000, b"max_completion_tokem")),
    post("key-15m", "one unknown field with a name of 15 MB", CHAT, lambda: field(b"k" * SIZE, b"1")),
    post("key-nul", "the same of NUL characters", CHAT, lambda: field(b"\\u0000" * (SIZE // 6), b"1")),
    post("value-15m", "an unsupported value of 15 MB", CHAT, lambda: field(b"service_tier", b'"' + b"v" * SIZE + b'"')),
    post("part-type-15m", "a content part of a type of 15 MB", CHAT,
         lambda: b'{"messages": [{"role": "user", "content": [{"type": "' + b"t" * SIZE + b'"}]}]}'),
    post("role-15m", "a role of 15 MB", CHAT,
         lambda: b'{"messages": [{"role": "' + b"r" * SIZE + b'", "content": "x"}]}'),
    post("model-15m", "a model name of 15 MB", CHAT, lambda: field(b"model", b'"' + b"m" * SIZE + b'"'), 400, 404),
    post("model-nul", "a model name of 2.5 million NULs", CHAT,
         lambda: field(b"model", b'"' + b"\\u0000" * (SIZE // 6) + b'"'), 400, 404),
    post("same-key", "one field a million times", CHAT,
         lambda: b"{" + ASKED + b', "seed": 1' * (SIZE // 11) + b"}", 200, 400),
    post("deep-lists", "7 million nested lists", CHAT, lambda: nested(b"[", b"", b"]", SIZE // 2)),
    post("deep-lists-open", "15 million lists that never end", CHAT, lambda: b"[" * SIZE),
    post("deep-objects", "2 million nested objects", CHAT, lambda: nested(b'{"a":', b"1", b"}", SIZE // 6)),
    post("deep-metadata", "metadata 100,000 deep", CHAT,
         lambda: field(b"metadata", nested(b'{"a":', b"1", b"}", 100_000))),
    post("deep-kwargs", "chat_template_kwargs 900 deep", CHAT,
         lambda: field(b"chat_template_kwargs", b'{"enable_thinking": ' + nested(b"[", b"", b"]", 900) + b"}"), 200,
         400),
    post("number-exponent", "a temperature of 1e999999", CHAT, lambda: field(b"temperature", b"1e999999")),
    post("number-digits", "max_tokens of 100,000 digits", CHAT, lambda: field(b"max_tokens", b"9" * 100_000)),
    post("number-15m", "max_tokens of 15 million digits", CHAT, lambda: field(b"max_tokens", b"9" * SIZE)),
    post("number-fraction", "a temperature of 15 million digits behind the point", CHAT,
         lambda: field(b"temperature", b"0." + b"1" * SIZE), 200, 400),
    post("numbers-4000", "3,700 numbers of 4,000 digits as a prompt", COMPLETIONS, lambda: _prompts(b"7" * 4000)),
    post("number-nan", "NaN, Infinity and -0 as numbers", CHAT,
         lambda: b"{" + ASKED + b', "temperature": NaN, "top_p": Infinity, "min_p": -0}'),
    post("floats", "4 million fractions as a prompt", COMPLETIONS, lambda: _prompts(b"0.5")),
    post("mixed-lists", "a million lists of a number and a text as prompts", COMPLETIONS, lambda: _prompts(b'[1,"a"]')),
    post("strings-as-tokens", "a prompt of 3 million texts in a list", COMPLETIONS,
         lambda: b'{"prompt": [' + _prompts(b'"a"')[11:-1] + b"]}"),
    post("surrogates", "2.5 million lone surrogates", CHAT,
         lambda: filled(b'{"messages": [{"role": "user", "content": "', b"\\ud800", b'"}]}')),
    post("escapes", "2.5 million escaped NULs", CHAT,
         lambda: filled(b'{"messages": [{"role": "user", "content": "', b"\\u0000", b'"}]}')),
    post("nul-bytes", "15 MB of NUL bytes", CHAT, lambda: b"\0" * SIZE),
    post("bom", "a body with a byte order mark", CHAT, lambda: b"\xef\xbb\xbf{" + ASKED + b"}", 200, 400),
    post("utf-16", "a body in UTF-16", CHAT, lambda: (b"{" + ASKED + b"}").decode().encode("utf-16"), 200, 400),
    post("bad-utf-8", "15 MB that are not UTF-8", CHAT,
         lambda: filled(b'{"messages": [{"role": "user", "content": "', b"\xff\xfe", b'"}]}')),
    post("blanks", "15 MB of blanks around a body", CHAT, lambda: b" " * SIZE + b"{" + ASKED + b"}", 200, 400),
    post("no-json", "15 MB of text", CHAT, lambda: b"a" * SIZE),
    post("too-large", "17 MB", CHAT, lambda: b"a" * 17 * MIB, 413, may_cut=True),
    post("form", "15 MB of a form", CHAT, lambda: b"a=b&" * (SIZE // 4), 415, 400,
         headers={"content-type": "application/x-www-form-urlencoded"}),
    post("multipart", "15 MB of parts", CHAT, lambda: b"--x\r\n\r\n" * (SIZE // 7), 415, 400,
         headers={"content-type": "multipart/form-data; boundary=x"}),
    post("gzip", "zeros that say to be compressed", CHAT, lambda: b"\0" * MIB, 400, 415,
         headers={"content-encoding": "gzip"}),
    post("stream-options", "15 MB of stream options", CHAT,
         lambda: field(b"stream_options", listed(b"{", b'"a": 1', b"}"))),
    post("metadata-15m", "15 MB of metadata", CHAT,
         lambda: field(b"metadata", b'{"a": "' + b"m" * SIZE + b'"}'), 200, 400),
    post("get-body", "a GET with 15 MB", "/health", lambda: b"a" * SIZE, 200, 400, 413, method="GET", may_cut=True),
    post("nowhere", "15 MB to a path that is not there", "/v1/nowhere", lambda: b"a" * SIZE, 404, may_cut=True),
    post("pin", "15 MB of messages to an operators' route", "/v1/cache/pins", lambda: _in(b'{"x": 1}'), 400, 403),
    post("io-unknown", "15 MB to an IO processor that is not there", "/v1/io/nobody",
         lambda: listed(b'{"a": [', b"{}", b"]}"), 400, 404),
    post("io-inputs", "5 million texts to embed", "/v1/io/embeddings",
         lambda: listed(b'{"input": [', b'"a"', b"]}"), 400, 404),
    post("io-text", "a text of 15 MB to embed", "/v1/io/embeddings",
         lambda: b'{"input": "' + b"a" * SIZE + b'"}', 400, 404),
    post("io-deep", "a body for embeddings, 2 million deep", "/v1/io/embeddings",
         lambda: b'{"input": ' + nested(b"[", b"", b"]", 2_000_000) + b"}", 400, 404),
)  # fmt: skip
