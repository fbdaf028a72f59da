"""What gannet's plugins are tried on. The conformance kit alone imports it."""

from __future__ import annotations

from typing import Any

from llmk.api import Frame, TextDelta, TranslatedRequest
from llmk.api.http.calls import CompleteCalls
from llmk.reference.op_examples import Draw, Facts, OpExamples
from llmk_testing.route_examples import MESSAGE, MODEL, RouteAnswer, RouteExample, RouteExamples, Spoken

_ALL = 2**31 - 1


def _rendered(body: Any, spoken: Spoken) -> RouteAnswer:
    calls, frames, text = CompleteCalls(), [], ""
    for delta, usage in spoken.deltas:
        for event in delta.events:
            part = calls.of(event)
            if isinstance(part, TextDelta) and part.text:
                counts = {"tokens_predicted": usage.completion_tokens, "tokens_evaluated": usage.prompt_tokens}
                frames.append(Frame({"index": 0, "content": part.text, "stop": False, **counts}))
                text += part.text
    why, stopped_by = spoken.end
    word = stopped_by if why != "length" and isinstance(stopped_by, str) else ""
    end = {
        "index": 0,
        "stop": True,
        "model": spoken.head.model,
        "tokens_predicted": spoken.usage.completion_tokens,
        "tokens_evaluated": spoken.usage.prompt_tokens,
        "tokens_cached": spoken.usage.cached_tokens,
        "has_new_line": "\n" in text,
        "truncated": False,
        "stop_type": "limit" if why == "length" else "word" if isinstance(stopped_by, str) else "eos",
        "stopping_word": word,
    }
    return RouteAnswer([*frames, Frame({**end, "content": ""})], {**end, "content": text})


def _means(fit: bool, stream: bool = False, **body: Any) -> TranslatedRequest:
    return TranslatedRequest("text", {"prompt": "Why?", "max_tokens": _ALL, **body}, stream=stream, fit_max_tokens=fit)


def _ask(fields: dict[str, Any], **body: Any) -> RouteExample:
    return RouteExample({"prompt": "Why?", **fields}, _means("max_tokens" not in body, **body))


def _refuse(field: str, value: Any, param: str = "") -> RouteExample:
    return RouteExample({"prompt": "Why?", field: value}, refused=param or field)


_ERRORS = {
    status: Frame({"error": {"code": status, "message": MESSAGE, "type": kind}})
    for status, kind in (
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "invalid_request_error"),
        (429, "invalid_request_error"),
        (500, "server_error"),
        (503, "unavailable_error"),
        (504, "server_error"),
    )
}

COMPLETION = RouteExamples(
    requests=(
        _ask({}),
        _ask({"stream": True}, stream=True),
        _ask({"n_predict": 1, "seed": 0, "stop": []}, max_tokens=1, seed=0),
        _ask({"n_predict": -2, "seed": -1, "temperature": -1.0, "top_k": 0}, temperature=0.0, top_k=0),
        _ask({"temperature": 0, "top_p": 0, "min_p": 0}, temperature=0, top_p=0, min_p=0),
        _ask({"repeat_penalty": 1.1, "presence_penalty": -1, "frequency_penalty": 0}, repetition_penalty=1.1,
             presence_penalty=-1, frequency_penalty=0),
        _ask({"stop": ["", "\n\n", "END"], "ignore_eos": True}, stop=["\n\n", "END"], ignore_eos=True),
        _ask({"logit_bias": [[0, 1], ["7", False], [0, 0.5]]}, logit_bias={"0": 1.5, "7": -100.0}),
        _ask({"logit_bias": {"12": -1.5}}, logit_bias={"12": -1.5}),
        _ask({"json_schema": {}}, structured_outputs={"json": {}}),
        _ask({"cache_prompt": False, "id_slot": 3, "mirostat": 0, "grammar": "", "seed": None}),
        RouteExample(
            {"prompt": [0, 5, 6]},
            TranslatedRequest("text", {"prompt": [0, 5, 6], "max_tokens": _ALL}, fit_max_tokens=True),
        ),
        RouteExample({"prompt": ""}, refused="prompt"),
        RouteExample({}, refused="prompt"),
        RouteExample({"prompt": []}, refused="prompt"),
        RouteExample({"prompt": [1, -1]}, refused="prompt.1"),
        _refuse("n_predict", 0),
        _refuse("n_predict", "5"),
        _refuse("top_p", 1.5),
        _refuse("seed", -2),
        _refuse("stop", ["a", 1], "stop.1"),
        _refuse("logit_bias", [[1]]),
        _refuse("logit_bias", [["word", 1]]),
        _refuse("logit_bias", [[1, 1000]]),
        _refuse("mirostat", 2),
        _refuse("n_probs", 5),
        _refuse("typo", 1),
    ),
    oracle=_rendered,
    errors=_ERRORS,
)  # fmt: skip

_VECTORS = {
    "object": "list",
    "model": "org/model",
    "data": [
        {"object": "embedding", "index": 0, "embedding": [0.6, 0.8]},
        {"object": "embedding", "index": 1, "embedding": [1.0, 0.0]},
    ],
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}
EMBEDDING = RouteExamples(
    requests=(
        RouteExample(
            {"content": ["a", "b"], "embd_normalize": 2},
            TranslatedRequest("embed", {"input": ["a", "b"]}),
            results=((_VECTORS, [{"index": 0, "embedding": [[0.6, 0.8]]}, {"index": 1, "embedding": [[1.0, 0.0]]}]),),
        ),
        RouteExample({"content": "a"}, TranslatedRequest("embed", {"input": "a"})),
        RouteExample({"content": []}, refused="content"),
        RouteExample({"content": "a", "embd_normalize": -1}, refused="embd_normalize"),
        RouteExample({}, refused="content"),
    ),
    errors=_ERRORS,
)

PROPS = RouteExamples(
    requests=(
        RouteExample(
            None,
            TranslatedRequest("info", {}),
            results=(
                (
                    {},
                    {
                        "default_generation_settings": {"n_ctx": MODEL.max_model_len},
                        "model_alias": MODEL.name,
                        "model_path": MODEL.name,
                        "chat_template": MODEL.chat_template,
                        "modalities": {"vision": False, "audio": False},
                        "build_info": f"llmk-{MODEL.version}",
                    },
                ),
            ),
        ),
    ),
    errors=_ERRORS,
)


def _arguments(draw: Draw, facts: Facts, rows: int) -> tuple[Any, ...]:
    size, groups = facts["size"], facts["groups"]
    weights = draw.reals(groups), draw.floats(size), draw.floats(size)
    return draw.floats(rows, size), draw.floats(rows, size), *weights


def _keywords(draw: Draw, facts: Facts) -> dict[str, Any]:
    return {"multiplier": facts["multiplier"]} if "multiplier" in facts else {}


ADD_DYNAMIC_TANH = OpExamples(
    (
        {"size": 64, "groups": 1},
        {"size": 64, "groups": 4, "multiplier": 0.22},
        {"size": 33, "groups": 3},
        {"size": 1, "groups": 1},
        {"size": 4096, "groups": 32},
    ),
    _arguments,
    by_row=("residual", "x"),
    wide=("x",),
    leading=("residual", "x"),
    strided=("residual", "x", "alpha", "weight", "bias"),
    float32=("residual", "x", "weight", "bias"),
    optional=("bias",),
    keywords=_keywords,
)
