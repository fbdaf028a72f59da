"""Checks the streams of the Responses, Messages and Ollama APIs, and folds them to what the complete response would be.

Each function takes the data of all frames of one stream, and asserts that the sequence is complete: what was opened is
closed once, in order, with the indices and ids with which it was opened, and what ends the stream sums it up.
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

_DONE = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
}
_ENDS = ("response.completed", "response.incomplete", "response.failed")


def events_of(text: str) -> list[Json]:
    """The data of a stream of named events, each of which has its name as its type."""
    assert text.endswith("\n\n"), f"the stream broke off: {text[-200:]!r}"
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}", block
    return found


def lines_of(text: str) -> list[Json]:
    """The objects of a stream of lines."""
    assert text.endswith("\n"), f"the stream broke off: {text[-200:]!r}"
    return [json.loads(line) for line in text.splitlines()]


class _Item:
    """An item of a response that is being streamed."""

    def __init__(self, event: Json) -> None:
        self.added: Json = event["item"]
        self.index: int = event["output_index"]
        self.parts: list[Json] = []
        self.text = ""
        self.logprobs: list[Json] = []
        self.text_done = self.part_done = False
        assert self.added.get("status") == "in_progress", event
        assert all((not self.added.get("content"), not self.added.get("arguments"))), event

    def take(self, event: Json) -> None:
        """Takes an event of the item."""
        kind = event["type"]
        assert all((event["output_index"] == self.index, event["item_id"] == self.added["id"])), event
        assert not self.part_done, f"the part is done: {event}"
        if kind.endswith("content_part.added"):
            assert all((not self.parts, event["content_index"] == 0, event["part"]["text"] == "")), event
            self.parts.append(event["part"])
        elif kind.endswith(".delta"):
            assert self.parts or self.added["type"] == "function_call", f"no part is open: {event}"
            assert all((not self.text_done, event["delta"])), event
            self.text += event["delta"]
            self.logprobs += event.get("logprobs") or []
        elif kind.endswith("content_part.done"):
            assert all((self.text_done, event["part"]["type"] == self.parts[0]["type"])), event
            assert event["part"]["text"] == self.text, event
            assert event["part"].get("logprobs", self.logprobs) == self.logprobs
            self.parts, self.part_done = [event["part"]], True
        else:
            assert all((not self.text_done, event[_DONE[kind.removesuffix(".done")]] == self.text)), event
            assert event.get("logprobs", self.logprobs) == self.logprobs
            self.text_done = True

    def end(self, event: Json) -> Json:
        """Takes the event that ends the item. Returns the item."""
        item: Json = event["item"]
        assert event["output_index"] == self.index, event
        same = ("id", "type") if item["type"] != "function_call" else ("id", "type", "call_id", "name")
        assert [item[name] for name in same] == [self.added[name] for name in same], event
        assert all((item["status"] in ("completed", "incomplete"), self.text_done)), event
        if item["type"] == "function_call":
            assert item["arguments"] == self.text, event
        else:
            assert all((self.part_done, item["content"] == self.parts)), event
        return item


def response_of(events: list[Json]) -> Json:
    """The response whose events these are."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    opening = [event["type"].removeprefix("response.") for event in events[:3]]
    num_opening = 3 if opening[1] == "queued" else 2
    assert opening[:num_opening] == [*(("created", "queued") if num_opening == 3 else ("created",)), "in_progress"]
    open_: dict[str, _Item] = {}
    done: dict[int, Json] = {}
    count = 0
    for event in events[num_opening:-1]:
        kind = event["type"]
        if kind == "response.output_item.added":
            item = _Item(event)
            assert all((item.index == count, item.added["id"] not in open_)), event
            count += 1
            open_[item.added["id"]] = item
        elif kind == "response.output_item.done":
            item = open_.pop(event["item"]["id"])
            done[item.index] = item.end(event)
        else:
            open_[event["item_id"]].take(event)
    assert not open_, f"never done: {[*open_]}"
    end = events[-1]
    whole: Json = end["response"]
    assert all((end["type"] in _ENDS, end["type"] == f"response.{whole['status']}")), end
    items = [done[at] for at in range(count)]
    assert whole["output"] == items
    assert len({item["id"] for item in items}) == count
    for event in events[:num_opening]:
        started = event["response"]
        assert started["output"] == []
        assert started["usage"] is None
        assert started["completed_at"] is None
        assert all(started[name] == whole[name] for name in ("id", "created_at", "model", "tools", "metadata"))
    check_response(whole)
    return whole


def check_response(whole: Json) -> None:
    """Checks what a response says of itself."""
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] <= usage["input_tokens"]
    assert (whole["incomplete_details"] is not None) == (whole["status"] == "incomplete")
    assert (whole["error"] is not None) == (whole["status"] == "failed")
    assert (whole["completed_at"] is not None) == (whole["status"] == "completed")
    for item in whole["output"][:-1]:
        assert item["status"] == "completed" or item["type"] == "function_call", item
    calls = [item["call_id"] for item in whole["output"] if item["type"] == "function_call"]
    assert len({*calls}) == len(calls)
    if whole["status"] == "completed":
        assert whole["output"]


_BLOCKS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "tool_use"}
_TEXTS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def message_of(events: list[Json]) -> Json:
    """The message whose events these are."""
    start, *rest = (event for event in events if event["type"] != "ping")
    assert start["type"] == "message_start", start
    message: Json = start["message"]
    assert all((message["content"] == [], message["stop_reason"] is None)), start
    content: list[Json] = []
    open_: Json | None = None
    text, signed = "", False
    while rest and rest[0]["type"].startswith("content_block"):
        event = rest.pop(0)
        if event["type"] == "content_block_start":
            assert all((open_ is None, event["index"] == len(content))), event
            open_, text, signed = event["content_block"], "", False
            content.append(open_)
            continue
        assert all((open_ is not None, event["index"] == len(content) - 1)), event
        if event["type"] == "content_block_stop":
            assert signed == (open_["type"] == "thinking"), event
            if open_["type"] == "tool_use":
                open_["input"] = json.loads(text or "{}")
                assert isinstance(open_["input"], dict)
            else:
                open_[open_["type"]] = text
            open_ = None
        elif event["delta"]["type"] == "signature_delta":
            assert all((open_["type"] == "thinking", not signed)), event
            open_["signature"], signed = event["delta"]["signature"], True
        else:
            kind = event["delta"]["type"]
            assert all((open_["type"] == _BLOCKS[kind], not signed)), event
            text += event["delta"][_TEXTS[kind]]
    assert open_ is None, f"never stopped: {open_}"
    delta, stop = rest
    assert (delta["type"], stop) == ("message_delta", {"type": "message_stop"}), rest
    first, last = message["usage"], delta["usage"]
    for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
        assert first[name] == last[name], (first, last)
    message |= {"content": content, **delta["delta"], "usage": {**first, **last}}
    check_message(message)
    return message


def check_message(message: Json) -> None:
    """Checks what a message says of itself."""
    calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
    assert len({*calls}) == len(calls)
    assert (message["stop_reason"] == "tool_use") <= bool(calls), message
    assert (message["stop_sequence"] is not None) == (message["stop_reason"] == "stop_sequence"), message
    assert message["stop_reason"] in ("end_turn", "max_tokens", "stop_sequence", "tool_use",
                                      "model_context_window_exceeded")  # fmt: skip
    assert all(block.get("text", "x") for block in message["content"]), "an empty text"


def answer_of(lines: list[Json]) -> Json:
    """The complete answer of Ollama's whose lines these are."""
    *pieces, last = lines
    assert all(piece["done"] is False for piece in pieces)
    assert last["done"] is True
    assert len({line["model"] for line in lines}) == 1
    assert [line["created_at"] for line in lines] == sorted(line["created_at"] for line in lines)
    is_chat = "message" in last
    shown = [line["message"] if is_chat else line for line in lines]
    name = "content" if is_chat else "response"
    folded: Json = {name: "".join(part.get(name, "") for part in shown)}
    if thinking := "".join(part.get("thinking", "") for part in shown):
        folded["thinking"] = thinking
    if calls := [call for part in shown for call in part.get("tool_calls", ())]:
        folded["tool_calls"] = calls
        assert [call["function"]["index"] for call in calls] == list(range(len(calls)))
    assert all("done_reason" not in piece for piece in pieces)
    whole = {**last, "message": {"role": "assistant", **folded}} if is_chat else {**last, **folded}
    check_answer(whole)
    return whole


def check_answer(whole: Json) -> None:
    """Checks what a complete answer says of itself."""
    assert whole["done_reason"] in ("stop", "length")
    assert whole["total_duration"] >= whole["prompt_eval_duration"] + whole["eval_duration"] - 1
    assert whole["eval_count"] >= 0 < whole["prompt_eval_count"]
