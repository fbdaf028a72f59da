"""Bodies that are hard to read or to translate, for the APIs that are not OpenAI's chat: Anthropic's, Ollama's,
Responses, embeddings and scores."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from hostile_cases.bodies import SIZE, filled, listed, nested
from hostile_cases.frame import CHAT, MIB, PATIENCE, Case, post

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
RESPONSES = "/v1/responses"
API_CHAT, GENERATE, EMBED, SHOW = "/api/chat", "/api/generate", "/api/embed", "/api/show"
_CLAUDE = b'{"model": "claude-x", "max_tokens": 1, '
_ASKS = b'"messages": [{"role": "user", "content": "Hi"}]'
_MODEL = "demo"
_TEXT = b'{"type": "text", "text": "a"}'
_REGEXES = {
    "repeat": "((a{1,1000}){1,1000}){1,1000}",
    "nested": "(" * 5000 + "a" + ")" * 5000,
    "backtrack": "(a+)+(a|a)*(a*)*b",
    "classes": "[\\u0000-\\U0010ffff]{1,100000}",
    "choices": "|".join(f"w{at}" for at in range(15_000)),
}
_SCHEMAS = {
    "bomb": {
        "$ref": "#/$defs/d20",
        "$defs": {"d0": {"type": "string"}}
        | {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at - 1}"}] * 10} for at in range(1, 21)},
    },
    "loop": {"$ref": "#"},
    "wide": {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(4000)}},
    "needed": {
        "type": "object",
        "properties": (names := {f"p{at}": {"type": "number"} for at in range(2000)}),
        "required": [*names],
        "additionalProperties": False,
    },
    "lengths": {"type": "array", "items": {"type": "string", "minLength": 100_000}, "minItems": 100_000},
    "pattern": {"type": "string", "pattern": "^(a+)+(a|a)*$"},
    "enum": {"enum": [f"value {at}" for at in range(8000)]},
    "all": {"allOf": [{"type": "object", "properties": {f"p{at}": {}}} for at in range(1000)]},
}
_LARK = "start: " + " ".join(["a"] * 3000) + "\na: b b b\nb: c c c\nc: d d d\nd: /x{1,1000}/\n"


def _claude(name: str, what: str, body: Callable[[], bytes], *expected: int, path: str = MESSAGES) -> Case:
    return post(f"messages-{name}", what, path, lambda: _CLAUDE + body() + b"}", *expected)


def _item(start: bytes, unit: bytes, end: bytes, size: int = SIZE) -> bytes:
    """A Responses request with one item, and a user's message."""
    return filled(
        b'{"max_output_tokens": 1, "input": [' + start, unit, end + b', {"role": "user", "content": "a"}]}', size
    )


def _shaped(name: str, what: str, path: str, make: Callable[[object], object], shape: object) -> Case:
    body = json.dumps(make(shape)).encode()
    return post(name, what, path, lambda: body, 200, 400, patience=PATIENCE)


_MAKERS: dict[str, tuple[str, Callable[[object], object]]] = {
    "chat": (CHAT, lambda schema: {
        "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}}),
    "messages": (MESSAGES, lambda schema: {
        "model": "claude-x", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}}}),
    "responses": (RESPONSES, lambda schema: {
        "input": "Hi", "max_output_tokens": 8, "store": False,
        "text": {"format": {"type": "json_schema", "name": "a", "strict": True, "schema": schema}}}),
    "ollama": (API_CHAT, lambda schema: {
        "model": _MODEL, "messages": [{"role": "user", "content": "Hi"}], "options": {"num_predict": 8},
        "format": schema}),
    "tool": (RESPONSES, lambda schema: {
        "input": "Hi", "max_output_tokens": 8, "store": False, "tool_choice": "required",
        "tools": [{"type": "function", "name": "f", "strict": True,
                   "parameters": {"type": "object", "properties": {"a": schema}, "required": ["a"],
                                  "additionalProperties": False}}]}),
}  # fmt: skip
"""How each API asks for an answer that follows a schema."""


def _structured(kind: str, value: object) -> Callable[[], bytes]:
    body = {"prompt": "Hi", "max_tokens": 8, "structured_outputs": {kind: value}}
    return lambda: json.dumps(body).encode()


_claude_in = partial(listed, b'"messages": [', end=b"]")
_said = partial(listed, b'"messages": [{"role": "user", "content": [', end=b"]}]")
_input = partial(listed, b'{"max_output_tokens": 1, "input": [', end=b"]}")
_loaded = b'{"model": "demo", "options": {"num_predict": 1}, '

CASES: tuple[Case, ...] = (
    _claude("entries", "15 MB of messages with an unknown field", lambda: _claude_in(b'{"x": 1}')),
    _claude("roles", "300,000 messages of an unknown role",
            lambda: _claude_in(b'{"role": "nobody", "content": "x"}')),
    _claude("same-role", "400,000 messages of the user", lambda: _claude_in(b'{"role": "user", "content": "Hi"}')),
    _claude("turns", "10,000 turns", lambda: _claude_in(
        b'{"role": "user", "content": "a"}, {"role": "assistant", "content": "a"}', size=730_000)),
    _claude("blocks", "500,000 blocks of one message", lambda: _said(_TEXT)),
    _claude("block-types", "500,000 blocks of no known type", lambda: _said(b'{"type": "poem", "text": "a"}')),
    _claude("block-type-15m", "a block of a type of 15 MB",
            lambda: _said(b'{"type": "' + b"t" * SIZE + b'"}', size=1)),
    _claude("thinking-15m", "earlier thinking of 15 MB", lambda: filled(
        b'"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "thinking", '
        b'"signature": "x", "thinking": "', b"hm ", b'"}]}, {"role": "user", "content": "a"}]'), 200, 400),
    _claude("calls", "50,000 calls, and the result of another one", lambda: listed(
        b'"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [',
        b'{"type": "tool_use", "id": "' + b"i" * 200 + b'", "name": "f", "input": {}}',
        b']}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]', 12 * MIB)),
    _claude("input-deep", "a call's input 500,000 deep", lambda: nested(b'{"a":', b"1", b"}", 500_000).join((
        b'"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": ',
        b'}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]'))),
    _claude("image-15m", "an image of 15 MB", lambda: _said(
        b'{"type": "image", "source": {"type": "base64", "data": "' + b"A" * SIZE + b'"}}', size=1)),
    _claude("document-15m", "a document of 15 MB", lambda: _said(
        b'{"type": "document", "source": {"type": "text", "data": "' + b"word " * 3 * MIB + b'"}}', size=1)),
    _claude("system-15m", "500,000 blocks of a system prompt",
            lambda: _ASKS + b", " + listed(b'"system": [', _TEXT, b"]")),
    _claude("callers", "7 million callers of a tool, none of which is a text", lambda: _ASKS + b', "tools": [' + listed(
        b'{"name": "f", "input_schema": {}, "allowed_callers": [', b"1", b"]}") + b"]"),
    _claude("stops", "a million stop sequences", lambda: _ASKS + b", " + listed(b'"stop_sequences": [', b'"a"', b"]")),
    _claude("metadata", "15 MB of what has no effect", lambda: _ASKS + b', "metadata": {"user_id": "' + b"u" * SIZE
            + b'"}', 200, 400),
    _claude("count", "the tokens of 15 MB", lambda: filled(
        b'"messages": [{"role": "user", "content": "', b"word ", b'"}]'), 200, 400, path=COUNT),
    _claude("count-blocks", "the tokens of 500,000 blocks", lambda: _said(_TEXT), 200, 400, path=COUNT),
    post("responses-entries", "15 MB of items with an unknown field", RESPONSES, lambda: _input(b'{"x": 1}')),
    post("responses-types", "500,000 items of no known type", RESPONSES, lambda: _input(b'{"type": "poem"}')),
    post("responses-messages", "400,000 messages", RESPONSES, lambda: _input(b'{"role": "user", "content": "Hi"}')),
    post("responses-parts", "400,000 parts of a message", RESPONSES, lambda: listed(
        b'{"input": [{"role": "user", "content": [', b'{"type": "input_text", "text": "a"}', b"]}]}")),
    post("responses-references", "500,000 items that are not stored", RESPONSES,
         lambda: _input(b'{"type": "item_reference", "id": "msg_1"}')),
    post("responses-reasoning", "earlier reasoning of 15 MB, which is stored", RESPONSES, lambda: _item(
        b'{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "', b"hm ", b'"}]}'),
        200, 400, clients=8),
    post("responses-reasonings", "200,000 earlier reasonings", RESPONSES, lambda: listed(
        b'{"max_output_tokens": 1, "input": [', b'{"type": "reasoning", "summary": []}',
        b', {"role": "user", "content": "a"}]}', 8 * MIB), 200, 400),
    post("responses-sealed", "encoded reasoning of 15 MB", RESPONSES, lambda: _item(
        b'{"type": "reasoning", "summary": [], "encrypted_content": "llmk1.', b"AAAA", b'"}'), 200, 400),
    post("responses-calls", "100,000 calls and their outputs", RESPONSES, lambda: listed(
        b'{"max_output_tokens": 1, "input": [',
        b'{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}, '
        b'{"type": "function_call_output", "call_id": "a", "output": "x"}',
        b', {"role": "user", "content": "a"}]}', 14 * MIB)),
    post("responses-echo", "15 MB of tools that are not used, and that each event repeats", RESPONSES, lambda: filled(
        b'{"input": "a", "max_output_tokens": 1, "stream": true, "tool_choice": "none", "tools": [{"type": "function", '
        b'"name": "f", "description": "', b"tool ", b'"}]}'), 200, 400, clients=8),
    post("responses-includes", "2 million includes", RESPONSES,
         lambda: listed(b'{"input": "a", "include": [', b'"x"', b"]}")),
    post("responses-instructions", "15 MB of instructions", RESPONSES,
         lambda: filled(b'{"input": "a", "instructions": "', b"word ", b'"}')),
    post("responses-tokens", "the tokens of 15 MB", f"{RESPONSES}/input_tokens",
         lambda: filled(b'{"input": "', b"word ", b'"}'), 200, 400),
    post("conversations-items", "500,000 items of a conversation", "/v1/conversations",
         lambda: listed(b'{"items": [', b'{"role": "user", "content": "a"}', b"]}")),
    post("conversations-15m", "an item of 15 MB", "/v1/conversations",
         lambda: filled(b'{"items": [{"role": "user", "content": "', b"word ", b'"}]}')),
    post("conversations-metadata", "15 MB of metadata", "/v1/conversations",
         lambda: b'{"metadata": {"a": "' + b"m" * SIZE + b'"}}'),
    post("api-chat-entries", "15 MB of messages with an unknown field", API_CHAT,
         lambda: listed(_loaded + b'"messages": [', b'{"x": 1}', b"]}")),
    post("api-chat-messages", "400,000 messages", API_CHAT,
         lambda: listed(_loaded + b'"messages": [', b'{"role": "user", "content": "Hi"}', b"]}")),
    post("api-chat-images", "4 million images", API_CHAT,
         lambda: listed(_loaded + b'"messages": [{"role": "user", "content": "a", "images": [', b'"AA"', b"]}]}")),
    post("api-generate-15m", "a prompt of 15 MB", GENERATE, lambda: filled(_loaded + b'"prompt": "', b"word ", b'"}')),
    post("api-generate-raw", "the same without a template", GENERATE,
         lambda: filled(_loaded + b'"raw": true, "prompt": "', b"word ", b'"}')),
    post("api-generate-context", "a context of 7 million tokens", GENERATE,
         lambda: listed(_loaded + b'"prompt": "a", "context": [', b"5", b"]}")),
    post("api-options", "numbers without end as options", API_CHAT, lambda: b'{"model": "demo", ' + _ASKS
         + b', "options": {"seed": ' + b"9" * 100_000 + b', "num_predict": 1e400, "top_k": -1e300}}'),
    post("api-embed", "4 million texts to embed", EMBED,
         lambda: listed(b'{"model": "demo", "input": [', b'"a"', b"]}")),
    post("api-show-15m", "a model name of 15 MB to show", SHOW, lambda: b'{"model": "' + b"\\u0000" * (SIZE // 6)
         + b'"}', 400, 404),
    post("api-show-path", "a model name that is a path", SHOW, lambda: b'{"model": "../../../../etc/passwd"}', 404),
    *(post(f"{path.strip('/').replace('/', '-')}-inputs", f"4 million texts for {path}", path,
           lambda: listed(b'{"input": [', b'"a"', b"]}")) for path in ("/v1/embeddings", "/pooling", "/v1/classify")),
    post("embeddings-tokens", "7 million tokens to embed", "/v1/embeddings",
         lambda: listed(b'{"input": [', b"5", b"]}")),
    post("embeddings-lists", "4 million prompts of a token to embed", "/v1/embeddings",
         lambda: listed(b'{"input": [', b"[5]", b"]}")),
    post("score-pairs", "1,000 texts against 1,000", "/v1/score",
         lambda: json.dumps({"text_1": ["a"] * 1000, "text_2": ["b"] * 1000}).encode()),
    post("score-15m", "4 million texts to score", "/v1/score",
         lambda: listed(b'{"text_1": "a", "text_2": [', b'"a"', b"]}")),
    post("rerank-15m", "4 million documents", "/v1/rerank",
         lambda: listed(b'{"query": "a", "documents": [', b'"a"', b"]}")),
    post("rerank-objects", "a million documents that are objects", "/v2/rerank",
         lambda: listed(b'{"query": "a", "documents": [', b'{"text":"a"}', b"]}")),
    *(_shaped(f"shape-{api}-{name}", f"a schema ({name}) by {path}", path, make, schema)
      for api, (path, make) in _MAKERS.items() for name, schema in _SCHEMAS.items()),
    *(post(f"regex-{name}", f"a regular expression ({name})", "/v1/completions", _structured("regex", regex), 200, 400,
           patience=PATIENCE) for name, regex in _REGEXES.items()),
    post("choices", "15,000 choices", "/v1/completions",
         _structured("choice", [f"choice {at}" for at in range(7000)]), 200, 400, patience=PATIENCE),
    post("lark", "a grammar whose rules multiply", "/v1/completions", _structured("grammar", _LARK), 200, 400,
         patience=PATIENCE),
    post("tags", "5,000 structural tags", "/v1/completions", _structured("structural_tag", {
        "structures": [{"begin": f"<{at}>", "schema": {"type": "string"}, "end": "</>"} for at in range(2000)],
        "triggers": ["<"]}), 200, 400, patience=PATIENCE),
)  # fmt: skip
