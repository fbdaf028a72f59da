"""Prompts, conversations and tools that take long to render and to tokenize."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from hostile_cases.bodies import SIZE, field, filled, listed, nested
from hostile_cases.frame import CHAT, COMPLETIONS, MIB, Case, post

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
_USER = b'{"role": "user", "content": "Hi"}'


def _said(text: str, size: int) -> bytes:
    """A chat whose only message has ``text`` again and again, about ``size`` bytes of it."""
    unit = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    return filled(b'{"max_tokens": 1, "messages": [{"role": "user", "content": "', unit, b'"}]}', size)


def _text(name: str, what: str, text: str, size: int = 4 * MIB) -> Case:
    return post(name, what, CHAT, partial(_said, text, size))


def _tools(count: int, parameters: bytes = b'{"type": "object", "properties": {}}') -> bytes:
    tools = b",".join(
        b'{"type": "function", "function": {"name": "f%d", "parameters": %s}}' % (at, parameters) for at in range(count)
    )
    return field(b"tools", b"[" + tools + b"]")


def _schema(name: str, what: str, parameters: Callable[[], bytes]) -> Case:
    return post(name, what, CHAT, lambda: _tools(1, parameters()), 200, 400)


def _arguments(arguments: str) -> bytes:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    return json.dumps({"messages": messages, "max_tokens": 1}).encode()


def _wide(count: int) -> bytes:
    properties = b",".join(b'"p%d": {"type": "string"}' % at for at in range(count))
    return b'{"type": "object", "properties": {' + properties + b"}}"


def _bomb() -> bytes:
    """Definitions each of which holds the one before it ten times: ten to the twentieth when they are followed."""
    parts = [b'"d0": {"type": "string"}'] + [
        b'"d%d": {"anyOf": [%s]}' % (at, b",".join([b'{"$ref": "#/$defs/d%d"}' % (at - 1)] * 10)) for at in range(1, 21)
    ]
    return b'{"$ref": "#/$defs/d20", "$defs": {' + b",".join(parts) + b"}}"


CASES: tuple[Case, ...] = (
    _text("word-3m", "A1: a word of 3 MB", "a", 3_000_000),
    _text("word-15m", "a word of 15 MB", "a", SIZE),
    _text("words-15m", "15 MB of words", "word ", SIZE),
    _text("blanks-4m", "4 MB of blanks", " "),
    _text("lines-4m", "4 MB of empty lines", "\n"),
    _text("digits-4m", "4 MB of digits", "1234567890"),
    _text("signs-4m", "4 MB of signs", "!?$%&/()="),
    _text("emoji-4m", "4 MB of families", "\U0001f468\u200d\U0001f469\u200d\U0001f467"),
    _text("marks-4m", "4 MB of accents upon each other", "\u0301"),
    _text("han-4m", "4 MB of Chinese", "\u6f22\u5b57"),
    _text("control-4m", "4 MB of control tokens", "<|im_start|>"),
    _text("markers-4m", "4 MB of markers that parsers look for", "<think><tool_call>"),
    _text("jinja-4m", "4 MB of template syntax", "{{ messages }}{% for %}"),
    post("completion-15m", "a prompt of 15 MB of words", COMPLETIONS,
         lambda: filled(b'{"max_tokens": 1, "prompt": "', b"word ", b'"}')),
    post("prompts-60k", "A4: 60,000 prompts", COMPLETIONS, lambda: listed(b'{"prompt": [', b'"a"', b"]}", 240_000)),
    post("prompts-3m", "4 million prompts", COMPLETIONS, lambda: listed(b'{"prompt": [', b'"a"', b"]}")),
    post("prompts-2000", "A9: 2,000 prompts", COMPLETIONS, lambda: listed(b'{"prompt": [', b'"a"', b"]}", 8000)),
    post("prompts-lists", "4 million prompts of a token", COMPLETIONS, lambda: listed(b'{"prompt": [', b"[5]", b"]}")),
    post("prompts-long", "100 prompts of 100 KB", COMPLETIONS,
         lambda: listed(b'{"prompt": [', b'"' + b"word " * 20_000 + b'"', b"]}", 10 * MIB)),
    post("tokens-7m", "a prompt of 7 million tokens", COMPLETIONS, lambda: listed(b'{"prompt": [', b"5", b"]}")),
    post("tokens-beyond", "a million tokens outside the vocabulary", COMPLETIONS,
         lambda: listed(b'{"prompt": [', b"2147483647", b"]}")),
    post("messages-10k", "10,000 messages", CHAT,
         lambda: listed(b'{"max_tokens": 1, "messages": [', _USER, b"]}", 350_000)),
    post("messages-400k", "400,000 messages", CHAT, lambda: listed(b'{"max_tokens": 1, "messages": [', _USER, b"]}")),
    post("messages-parts", "400,000 parts of one message", CHAT,
         lambda: listed(b'{"max_tokens": 1, "messages": [{"role": "user", "content": [',
                        b'{"type": "text", "text": "a"}', b"]}]}")),
    post("reasoning-15m", "reasoning of 15 MB of an earlier answer", CHAT,
         lambda: b'{"max_tokens": 1, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", '
                 b'"reasoning_content": "' + b"a" * SIZE + b'"}, {"role": "user", "content": "a"}]}', 200, 400),
    post("tools-10k", "10,000 tools", CHAT, lambda: _tools(10_000)),
    post("tools-150k", "150,000 tools", CHAT, lambda: _tools(150_000)),
    _schema("schema-deep", "a schema 200 deep", lambda: nested(b'{"items": ', b"{}", b"}", 200)),
    _schema("schema-deeper", "a schema 100,000 deep", lambda: nested(b'{"items": ', b"{}", b"}", 100_000)),
    _schema("schema-wide", "a schema of 400,000 properties", lambda: _wide(400_000)),
    _schema("schema-bomb", "a schema that grows tenfold twenty times", _bomb),
    _schema("schema-loop", "a schema that holds itself", lambda: b'{"$ref": "#"}'),
    _schema("schema-pattern", "a pattern that backtracks",
            lambda: b'{"type": "object", "properties": {"a": {"type": "string", "pattern": "(a+)+(a+)+$"}}}'),
    _schema("schema-enum", "a schema of a million values", lambda: listed(b'{"enum": [', b'"a"', b"]}", 4 * MIB)),
    post("arguments-15m", "arguments of a call, 15 MB", CHAT, lambda: _arguments('{"a": "' + "a" * SIZE + '"}')),
    post("arguments-deep", "arguments of a call, a million deep", CHAT, lambda: _arguments("[" * 1_000_000)),
    post("arguments-digits", "a number of a million digits as arguments", CHAT, lambda: _arguments("9" * 1_000_000)),
    post("kwargs-15m", "15 MB for a template's switch", CHAT,
         lambda: field(b"chat_template_kwargs", listed(b'{"enable_thinking": [', b"{}", b"]}")), 200, 400),
    post("kwargs-names", "a million variables that no template has", CHAT,
         lambda: field(b"chat_template_kwargs", b"{" + b",".join(b'"v%d":1' % at for at in range(1_000_000)) + b"}")),
    post("kwargs-own", "variables that belong to the server", CHAT,
         lambda: field(b"chat_template_kwargs", b'{"messages": 5, "self": 1, "loop": 2, "range": 3, "source": 4}')),
    post("effort-15m", "a reasoning effort of 15 MB", CHAT,
         lambda: field(b"reasoning_effort", b'"' + b"\\u0000" * (SIZE // 6) + b'"')),
    post("echo-15m", "a prompt of 15 MB, echoed", COMPLETIONS,
         lambda: filled(b'{"echo": true, "prompt": "', b"word ", b'"}')),
    post("echo-tokens", "a prompt of 7 million tokens, echoed", COMPLETIONS,
         lambda: listed(b'{"echo": true, "prompt": [', b"5", b"]}")),
    post("tokenize-400k", "A7: the tokens of 400 KB, as texts", TOKENIZE,
         lambda: filled(b'{"return_token_strs": true, "prompt": "', b"word ", b'"}', 400_000), 200, 400),
    post("tokenize-15m", "the tokens of 15 MB, as texts", TOKENIZE,
         lambda: filled(b'{"return_token_strs": true, "prompt": "', b"a b ", b'"}'), 200, 400),
    post("tokenize-messages", "the tokens of 400,000 messages", TOKENIZE,
         lambda: listed(b'{"messages": [', _USER, b"]}"), 200, 400),
    post("detokenize", "the text of 7 million tokens", DETOKENIZE, lambda: listed(b'{"tokens": [', b"5", b"]}"), 200,
         400),
    post("detokenize-beyond", "the text of a million tokens that are not there", DETOKENIZE,
         lambda: listed(b'{"tokens": [', b"2147483647", b"]}")),
    post("salt-15m", "a cache salt of 15 MB", CHAT, lambda: field(b"cache_salt", b'"' + b"s" * SIZE + b'"'), 200, 400),
    post("user-15m", "a user of 15 MB", CHAT, lambda: field(b"user", b'"' + b"u" * SIZE + b'"'), 200, 400),
    post("name-15m", "a speaker's name of 15 MB", CHAT,
         lambda: b'{"max_tokens": 1, "messages": [{"role": "user", "content": "a", "name": "' + b"n" * SIZE + b'"}]}',
         200, 400),
    post("prefill-15m", "an unfinished answer of 15 MB", CHAT,
         lambda: b'{"max_tokens": 1, "continue_final_message": true, "messages": [{"role": "user", "content": "a"}, '
                 b'{"role": "assistant", "content": "' + b"a" * SIZE + b'"}]}'),
)  # fmt: skip
