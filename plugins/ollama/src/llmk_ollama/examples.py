"""For the conformance kit: what requests mean, and what clients of Ollama's API get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from llmk.api import Frame, ReasoningDelta, TextDelta, TranslatedRequest
from llmk.api.http.calls import CompleteCall, CompleteCalls
from llmk_testing.route_examples import MESSAGE, RouteAnswer, RouteExample, RouteExamples, Spoken

_MODEL = {"model": "model"}
_UNLIMITED = 2**31 - 1
_HI = {"role": "user", "content": "Hi"}
_CALL = {"function": {"name": "f", "arguments": {"x": 1}}}
_TURN = [_HI, {"role": "assistant", "tool_calls": [_CALL]}, {"role": "tool", "tool_name": "f", "content": "1"}]
_MADE_CALL = {"id": "", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
_MADE_TURN = [
    _HI,
    {"role": "assistant", "content": "", "tool_calls": [_MADE_CALL]},
    {"role": "tool", "content": "1", "name": "f"},
]
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_OPTIONS = {"temperature": 0, "seed": 0, "top_k": 40.0, "top_p": 0.5, "stop": "END", "repeat_penalty": 1.5}
_MADE_OPTIONS = {
    "temperature": 0,
    "seed": 0,
    "top_k": 40,
    "top_p": 0.5,
    "stop": ["END"],
    "repetition_penalty": 1.5,
    "max_tokens": 5,
}
_ERRORS = {status: Frame({"error": MESSAGE}) for status in (400, 404, 429, 500)}


def _made(
    more: dict[str, Any], means: dict[str, Any], kind: Any = "chat", *, stream: bool = True, thinking: Any = None
) -> RouteExample:
    """A request, and what it becomes: it streams, and has no limit."""
    body = {**_MODEL, "max_tokens": _UNLIMITED, **means}
    return RouteExample(
        {**_MODEL, **more}, TranslatedRequest(kind, body, stream, thinking=thinking, fit_max_tokens=True)
    )


def _loaded(reason: str, said: dict[str, Any], **more: Any) -> RouteExample:
    """A request that loads the model."""
    response = {"model": "model", "created_at": ..., **said, "done": True, "done_reason": reason}
    return RouteExample({**_MODEL, **more}, TranslatedRequest("info", _MODEL), results=[({}, response)])


class _Lines:
    """Lines, of which the names of texts and thoughts are the API's."""

    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat

    def __call__(self, body: Any, spoken: Spoken) -> RouteAnswer:
        """A line for each run of one kind in a delta; each call has one."""
        said = [fields for run in self._runs(spoken) for fields in run]
        frames = [Frame(self._line(fields, done=False)) for fields in said]
        end = {"done_reason": "length" if spoken.end[0] == "length" else "stop", **_counts(spoken)}
        frames.append(Frame({**self._line({"content": ""}, done=True), **end}))
        texts = {name: "".join(fields.get(name, "") for fields in said) for name in ("content", "thinking")}
        calls = [call for fields in said for call in fields.get("tool_calls", ())]
        whole = {name: text for name, text in texts.items() if text or name == "content"}
        return RouteAnswer(
            frames, {**self._line({**whole, **({"tool_calls": calls} if calls else {})}, done=True), **end}
        )

    def _runs(self, spoken: Spoken) -> Sequence[Sequence[dict[str, Any]]]:
        """The fields of lines, of each delta."""
        calls, ended, found = CompleteCalls(), 0, []
        for delta, _ in spoken.deltas:
            parts = [part for event in delta.events if (part := calls.of(event))]
            lines: list[dict[str, Any]] = []
            for kind, group in groupby((part for part in parts if _is_said(part)), type):
                run: list[Any] = list(group)
                if kind is CompleteCall:
                    made = [_call(spoken, call, ended + at) for at, call in enumerate(run)]
                    ended += len(made)
                    lines.append({"content": "", "tool_calls": made})
                else:
                    text = "".join(part.text for part in run)
                    lines.append({"content": text} if kind is TextDelta else {"content": "", "thinking": text})
            found.append(lines)
        return found

    def _line(self, fields: Mapping[str, Any], *, done: bool) -> dict[str, Any]:
        line = {"model": "model", "created_at": ..., "done": done}
        if self._is_chat:
            return {**line, "message": {"role": "assistant", **fields}}
        return {**line, **{"response" if name == "content" else name: value for name, value in fields.items()}}


def _is_said(part: Any) -> bool:
    return isinstance(part, CompleteCall) or (isinstance(part, TextDelta | ReasoningDelta) and bool(part.text))


def _call(spoken: Spoken, call: CompleteCall, number: int) -> dict[str, Any]:
    id = call.id or f"call_{spoken.head.id[:8]}{call.index:04d}"
    return {"id": id, "function": {"index": number, "name": call.name, "arguments": call.arguments}}


def _counts(spoken: Spoken) -> dict[str, Any]:
    times = dict.fromkeys(("total_duration", "prompt_eval_duration", "eval_duration"), ...)
    counts = {"prompt_eval_count": spoken.usage.prompt_tokens, "eval_count": spoken.usage.completion_tokens}
    return {**times, **counts, "load_duration": 0}


_SAID = {"message": {"role": "assistant", "content": ""}}
CHAT = RouteExamples(
    requests=(
        _loaded("load", _SAID),
        _loaded("unload", _SAID, keep_alive=0),
        _made({"messages": [_HI]}, {"messages": [_HI]}),
        _made(
            {"messages": _TURN, "tools": [_TOOL], "think": True, "stream": False},
            {"messages": _MADE_TURN, "tools": [_TOOL]},
            stream=False,
            thinking=True,
        ),
        _made(
            {"messages": [_HI], "think": "max", "options": {**_OPTIONS, "num_predict": 5, "num_ctx": 9}},
            {"messages": [_HI], **_MADE_OPTIONS},
            thinking="high",
        ),
        _made(
            {"messages": [_HI], "think": False, "options": {"seed": -1, "num_predict": -1, "top_k": -1}},
            {"messages": [_HI], "top_k": 0},
            thinking=False,
        ),
        RouteExample({**_MODEL, "messages": [{**_HI, "images": ["x"]}]}, refused="messages.0"),
        RouteExample({**_MODEL, "messages": [{**_HI, "tool_calls": [_CALL]}]}, refused="messages.0.tool_calls"),
        RouteExample({"messages": [_HI]}, refused="model"),
    ),
    oracle=_Lines(is_chat=True),
    errors=_ERRORS,
)
_JSON = {"type": "object"}
_MADE_JSON = {"type": "json_schema", "json_schema": {"name": "output", "schema": _JSON}}
GENERATE = RouteExamples(
    requests=(
        _loaded("load", {"response": ""}),
        _made({"prompt": "Hi", "format": "json"}, {"messages": [_HI], "response_format": {"type": "json_object"}}),
        _made({"prompt": "Hi", "format": _JSON}, {"messages": [_HI], "response_format": _MADE_JSON}),
        _made(
            {"prompt": "Hi", "system": "Be kind."},
            {"messages": [{"role": "system", "content": "Be kind."}, _HI]},
        ),
        _made({"prompt": "Hi", "raw": True, "stream": False}, {"prompt": "Hi"}, "text", stream=False),
        RouteExample({**_MODEL, "prompt": "Hi", "raw": True, "system": "Be kind."}, refused="system"),
    ),
    oracle=_Lines(is_chat=False),
    errors=_ERRORS,
)
_EMBEDDED = {
    "data": [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}],
    "usage": {"prompt_tokens": 7},
}


def _embed(more: dict[str, Any], returned: dict[str, Any], vectors: list[Any]) -> RouteExample:
    means = {"model": "model", **more, "encoding_format": "float"}
    count = returned["usage"]["prompt_tokens"] if returned else 0
    counts = {"total_duration": ..., "load_duration": 0, "prompt_eval_count": count}
    response = {"model": "model", "embeddings": vectors, **counts}
    return RouteExample({**_MODEL, **more}, TranslatedRequest("embed", means), results=[(returned, response)])


_NOTHING = {"model": "model", "embeddings": [], "total_duration": ..., "load_duration": 0, "prompt_eval_count": 0}
EMBED = RouteExamples(
    requests=(
        RouteExample(_MODEL, TranslatedRequest("info", _MODEL), results=[({}, _NOTHING)]),
        _embed({"input": "a"}, {**_EMBEDDED, "data": _EMBEDDED["data"][1:]}, [[1.0]]),  # type: ignore[index]
        _embed({"input": ["a", "b"], "dimensions": 2}, _EMBEDDED, [[1.0], [2.0]]),
        RouteExample({**_MODEL, "input": "a", "dimensions": 0}, refused="dimensions"),
    ),
    errors=_ERRORS,
)
EMBEDDINGS = RouteExamples(
    requests=(
        RouteExample(_MODEL, TranslatedRequest("info", _MODEL), results=[({}, {"embedding": []})]),
        RouteExample(
            {**_MODEL, "prompt": "a"},
            TranslatedRequest("embed", {"model": "model", "input": "a", "encoding_format": "float"}),
            results=[(_EMBEDDED, {"embedding": [1.0]})],
        ),
    ),
    errors=_ERRORS,
)


def _described(*results: Any, body: Any = None, **means: Any) -> RouteExample:
    return RouteExample(body, TranslatedRequest("info", means), results=[({}, one) for one in results])


_DETAILS = {
    "parent_model": "",
    "format": "safetensors",
    "family": "toy",
    "families": ["toy"],
    "parameter_size": "7.3B",
    "quantization_level": "BF16",
}
_CREATED = "2023-11-14T22:13:20.000000Z"
_ENTRIES = [
    {
        "name": f"{name}:latest",
        "model": f"{name}:latest",
        "modified_at": _CREATED,
        "size": 14_600_000_000,
        "digest": ...,
        "details": _DETAILS,
    }
    for name in ("org/model", "adapter")
]
_LOADED = {"expires_at": "9999-12-31T00:00:00Z", "size_vram": 14_600_000_000, "context_length": 4096}
_SHOWN = {
    "modelfile": "FROM org/model\n",
    "parameters": "",
    "template": "{{ messages }}",
    "details": _DETAILS,
    "model_info": {
        "general.architecture": "toy",
        "general.parameter_count": 7_300_000_000,
        "toy.context_length": 4096,
        "toy.embedding_length": 64,
    },
    "capabilities": ["completion", "tools"],
    "modified_at": _CREATED,
}
_DONE = {"status": "success"}
_NO_NAME = RouteExample({}, refused="model")
SHOW = RouteExamples(
    requests=(
        _described(_SHOWN, body=_MODEL, model="model"),
        _described(_SHOWN, body={"name": "model:latest"}, model="model"),
        _NO_NAME,
    ),
    errors=_ERRORS,
)
PULL = RouteExamples(
    requests=(
        _described(_DONE, body=_MODEL, model="model"),
        _described(_DONE, body={"name": "model", "stream": False}, model="model"),
        _NO_NAME,
    ),
    errors=_ERRORS,
)
TAGS = RouteExamples(requests=(_described({"models": _ENTRIES}),), errors=_ERRORS)
PS = RouteExamples(requests=(_described({"models": [{**each, **_LOADED} for each in _ENTRIES]}),), errors=_ERRORS)
VERSION = RouteExamples(requests=(_described({"version": ..., "llmk_version": "1.0"}),), errors=_ERRORS)
ROOT = RouteExamples(requests=(_described("Ollama is running"),), errors=_ERRORS)
