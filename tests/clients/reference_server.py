"""A server that streams the scripts as OpenAI's and Anthropic's APIs do. It has no code in common with llmk."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from agent_scripts import turn_of
from scripted_model import Turn

Wire = dict[str, Any]
IDS = itertools.count()


@contextmanager
def reference_server() -> Iterator[str]:
    """The URL of such a server, which runs in threads."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Reference)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class _Reference(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answers a conversation."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert body["stream"]
        render, items = APIS[self.path.partition("?")[0]], body.get("messages") or body["input"]
        text = json.dumps(items)
        (conversation,) = set(re.findall(r"conversation (\d)", text))
        results = len(re.findall(r'"role": "tool"|"type": "(?:function_call_output|tool_result)"', text))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in render(turn_of(int(conversation), results)):
            name = f"event: {event['type']}\n" if "type" in event else ""
            self.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if render is _chat:
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps quiet."""


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+", text)


def _pieces(arguments: Wire) -> list[str]:
    return re.findall(r"(?s).{1,5}", json.dumps(arguments))


def _chat(turn: Turn) -> Iterator[Wire]:
    """``/v1/chat/completions``."""

    def chunk(reason: str | None = None, **delta: Any) -> Wire:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "demo", "choices": [choice]}

    yield chunk(role="assistant", content="")
    for word in _words(turn.text):
        yield chunk(content=word)
    for index, (name, arguments) in enumerate(turn.calls):
        call: Wire = {"index": index, "id": f"call_{next(IDS)}", "type": "function"}
        yield chunk(tool_calls=[{**call, "function": {"name": name, "arguments": ""}}])
        for piece in _pieces(arguments):
            yield chunk(tool_calls=[{"index": index, "function": {"arguments": piece}}])
    yield chunk("tool_calls" if turn.calls else "stop")


def _responses(turn: Turn) -> Iterator[Wire]:
    """``/v1/responses``."""
    for number, event in enumerate(_response_events(turn)):
        yield {"sequence_number": number, **event}


def _response_events(turn: Turn) -> Iterator[Wire]:
    output: list[Wire] = []
    head = {"id": f"resp_{next(IDS)}", "object": "response", "created_at": 1, "model": "demo", "error": None}
    head |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "incomplete_details": None}
    yield {"type": "response.created", "response": {**head, "status": "in_progress", "output": []}}
    if turn.text:
        item: Wire = {"id": f"msg_{next(IDS)}", "type": "message", "role": "assistant", "status": "completed"}
        part: Wire = {"type": "output_text", "text": turn.text, "annotations": []}
        where: Wire = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        opened = {**item, "status": "in_progress", "content": []}
        yield {"type": "response.output_item.added", "output_index": 0, "item": opened}
        yield {"type": "response.content_part.added", **where, "part": {**part, "text": ""}}
        for word in _words(turn.text):
            yield {"type": "response.output_text.delta", **where, "delta": word, "logprobs": []}
        yield {"type": "response.output_text.done", **where, "text": turn.text, "logprobs": []}
        yield {"type": "response.content_part.done", **where, "part": part}
        output.append({**item, "content": [part]})
        yield {"type": "response.output_item.done", "output_index": 0, "item": output[-1]}
    for name, arguments in turn.calls:
        at, id = len(output), next(IDS)
        item = {"id": f"fc_{id}", "type": "function_call", "call_id": f"call_{id}", "name": name}
        where = {"item_id": item["id"], "output_index": at}
        opened = {**item, "status": "in_progress", "arguments": ""}
        yield {"type": "response.output_item.added", "output_index": at, "item": opened}
        for piece in _pieces(arguments):
            yield {"type": "response.function_call_arguments.delta", **where, "delta": piece}
        whole = json.dumps(arguments)
        yield {"type": "response.function_call_arguments.done", **where, "name": name, "arguments": whole}
        output.append({**item, "status": "completed", "arguments": whole})
        yield {"type": "response.output_item.done", "output_index": at, "item": output[-1]}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    done = {**head, "status": "completed", "output": output, "usage": usage}
    yield {"type": "response.completed", "response": done}


def _messages(turn: Turn) -> Iterator[Wire]:
    """``/v1/messages``."""
    head: Wire = {"id": f"msg_{next(IDS)}", "type": "message", "role": "assistant", "model": "demo", "content": []}
    head |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    yield {"type": "message_start", "message": head}
    blocks: list[tuple[Wire, list[Wire]]] = []
    if turn.text:
        deltas: list[Wire] = [{"type": "text_delta", "text": word} for word in _words(turn.text)]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for name, arguments in turn.calls:
        block = {"type": "tool_use", "id": f"toolu_{next(IDS)}", "name": name, "input": {}}
        blocks.append((block, [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(arguments)]))
    for index, (block, deltas) in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"stop_reason": "tool_use" if turn.calls else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": end, "usage": {"output_tokens": 2}}
    yield {"type": "message_stop"}


APIS = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}
