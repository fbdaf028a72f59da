"""Every request parameter is honoured, or refused with its name."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import chat as chat_types
from openai.types import completion_create_params as text_params
from openai.types import shared_params
from openai.types.chat import completion_create_params as chat_params
from scripted import ScriptedEngine
from starlette.testclient import TestClient

from llmk.engine.wire.grammar_params import GrammarParams
from llmk.serve.protocol.chat import (
    AllowedChoice,
    AllowedTools,
    ChatRequest,
    Function,
    Message,
    NamedTool,
    TextPart,
    Tool,
    ToolCall,
)
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.protocol.sampling import StreamOptions
from llmk.serve.protocol.structured import JsonSchema, ResponseFormat
from llmk.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def schema(parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


ASSISTANT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "well"}]

SAMPLING: dict[str, tuple[Any, Any]] = {
    "n": (2, lambda call: call.params.n == 2),
    "max_tokens": (7, lambda call: call.params.max_tokens == 7),
    "min_tokens": (3, lambda call: call.params.min_tokens == 3),
    "temperature": (0.3, lambda call: call.params.temperature == 0.3),
    "top_p": (0.4, lambda call: call.params.top_p == 0.4),
    "top_k": (5, lambda call: call.params.top_k == 5),
    "min_p": (0.1, lambda call: call.params.min_p == 0.1),
    "presence_penalty": (0.5, lambda call: call.params.presence_penalty == 0.5),
    "frequency_penalty": (0.6, lambda call: call.params.frequency_penalty == 0.6),
    "repetition_penalty": (1.2, lambda call: call.params.repetition_penalty == 1.2),
    "seed": (11, lambda call: call.params.seed == 11),
    "stop": (["a", "b"], lambda call: call.params.stop == ("a", "b")),
    "include_stop_str_in_output": (True, lambda call: call.params.include_stop),
    "stop_token_ids": ([9], lambda call: call.params.stop_token_ids == (9,)),
    "ignore_eos": (True, lambda call: call.params.ignore_eos),
    "allowed_token_ids": ([65, 66], lambda call: call.params.allowed_token_ids == (65, 66)),
    "bad_words": (["damn"], lambda call: tuple(b"damn") in call.params.bad_word_ids),
    "logits_processors": (
        {"test.ladder": {"step": 2}},
        lambda call: call.params.logits_processors == {"test.ladder": {"step": 2}},
    ),
    "guided_regex": ("a+", lambda call: call.params.structured_outputs == GrammarParams(regex="a+")),
    "guided_choice": (["a", "b"], lambda call: call.params.structured_outputs == GrammarParams(choice=("a", "b"))),
    "guided_grammar": ('start: "a"', lambda call: call.params.structured_outputs == GrammarParams(lark='start: "a"')),
    "structured_outputs": (
        {"choice": ["a", "b"], "regex": None},
        lambda call: call.params.structured_outputs == GrammarParams(choice=("a", "b")),
    ),
    "logit_bias": ({"65": -3}, lambda call: call.params.logit_bias == {65: -3.0}),
    "skip_special_tokens": (False, lambda call: not call.params.skip_special_tokens),
    "priority": (4, lambda call: call.context.priority == 4),
    "cache_salt": ("pepper", lambda call: call.context.cache_salt == "pepper"),
}
CHAT: dict[str, tuple[Any, Any]] = {
    **{name: case for name, case in SAMPLING.items() if name != "stop"},
    "messages": ([{"role": "user", "content": "quux"}], lambda call: "<user>quux" in call.text),
    "max_completion_tokens": (8, lambda call: call.params.max_tokens == 8),
    "tools": (TOOLS, lambda call: "[tool look]" in call.text),
    "chat_template_kwargs": ({"enable_thinking": False}, lambda call: call.text.endswith("<assistant>False")),
    "reasoning_effort": ("none", lambda call: call.text.endswith("<assistant>False")),
    "add_generation_prompt": (False, lambda call: "<assistant>" not in call.text),
}
TEXT: dict[str, tuple[Any, Any]] = {
    **SAMPLING,
    "prompt": ("quux", lambda call: call.text == "quux"),
    "logprobs": (3, lambda call: call.params.logprobs == 3),
    "add_special_tokens": (False, lambda call: call.prompt[0] != 1),
}
ELSEWHERE = {
    "chat": {
        *("model", "stream", "stream_options", "logprobs", "top_logprobs", "tool_choice", "continue_final_message"),
        *("stop", "parallel_tool_calls", "guided_json", "response_format", "unenforceable"),
        *("verbosity", "prediction"),
    },
    "text": {
        *("model", "stream", "stream_options", "echo", "prompt_embeds", "guided_json", "response_format"),
        "unenforceable",
    },
}
"""Fields that change something else than a call of the engine; each has a test of its own."""
NO_EFFECT = {
    "user": "u",
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"mode": "implicit"},
    "service_tier": "flex",
}

ROUTES = {
    "chat": ("/v1/chat/completions", ChatRequest, {"messages": [{"role": "user", "content": "hi"}]}, CHAT),
    "text": ("/v1/completions", CompletionRequest, {"prompt": "hi"}, TEXT),
}


@pytest.mark.parametrize("name", ROUTES)
def test_every_field_has_a_test(name: str) -> None:
    _, model, _, table = ROUTES[name]
    assert set(model.model_fields) == {*table, *ELSEWHERE[name], *NO_EFFECT}


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in ROUTES for field in ROUTES[name][3]])
def test_honoured(client: TestClient, engine: ScriptedEngine, name: str, field: str) -> None:
    path, _, body, table = ROUTES[name]
    assert client.post(path, json=body).status_code == 200
    value, holds = table[field]
    response = client.post(path, json={**body, field: value})
    assert response.status_code == 200, response.text
    before, after = engine.calls
    assert holds(after)
    assert not holds(before)


@pytest.mark.parametrize(("name", "field"), [(name, field) for name in ROUTES for field in ROUTES[name][1].refused])
def test_refused_by_name_unless_neutral(client: TestClient, name: str, field: str) -> None:
    path, model, body, _ = ROUTES[name]
    refusal = model.refused[field]
    for value in (None, *refusal.neutral):
        assert client.post(path, json={**body, field: value}).status_code == 200
    response = client.post(path, json={**body, field: {"unheard": "of"}})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, field, "unsupported_parameter")
    assert field in error["message"]
    assert refusal.why in error["message"]


@pytest.mark.parametrize("name", ROUTES)
def test_null_means_unset(client: TestClient, engine: ScriptedEngine, name: str) -> None:
    path, model, body, _ = ROUTES[name]
    nulls = {field: None for field in model.model_fields if field not in body}
    assert client.post(path, json={**nulls, **body}).status_code == 200
    assert client.post(path, json=body).status_code == 200
    assert engine.calls[0].params == engine.calls[1].params


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize(("field", "value"), NO_EFFECT.items())
def test_fields_without_effect_are_accepted(client: TestClient, name: str, field: str, value: Any) -> None:
    path, _, body, _ = ROUTES[name]
    assert client.post(path, json={**body, field: value}).status_code == 200


def test_the_fields_of_the_official_client_are_all_known() -> None:
    pairs = (
        (ChatRequest, chat_params.CompletionCreateParamsBase),
        (CompletionRequest, text_params.CompletionCreateParamsBase),
    )
    for model, params in pairs:
        assert set(params.__annotations__) <= {*model.model_fields, *model.refused}


PARAMS = {
    chat_types.ChatCompletionAssistantMessageParam: Message,
    chat_types.ChatCompletionDeveloperMessageParam: Message,
    chat_types.ChatCompletionSystemMessageParam: Message,
    chat_types.ChatCompletionToolMessageParam: Message,
    chat_types.ChatCompletionUserMessageParam: Message,
    chat_types.ChatCompletionContentPartTextParam: TextPart,
    chat_types.ChatCompletionMessageFunctionToolCallParam: ToolCall,
    chat_types.ChatCompletionFunctionToolParam: Tool,
    chat_types.ChatCompletionNamedToolChoiceParam: NamedTool,
    chat_types.ChatCompletionAllowedToolChoiceParam: AllowedTools,
    chat_types.ChatCompletionAllowedToolsParam: AllowedChoice,
    chat_types.ChatCompletionStreamOptionsParam: StreamOptions,
    shared_params.FunctionDefinition: Function,
    shared_params.response_format_json_schema.JSONSchema: JsonSchema,
    shared_params.ResponseFormatJSONSchema: ResponseFormat,
    shared_params.ResponseFormatJSONObject: ResponseFormat,
    shared_params.ResponseFormatText: ResponseFormat,
}


@pytest.mark.parametrize("params", PARAMS, ids=lambda params: params.__name__)
def test_the_nested_fields_of_the_official_client_are_all_known(params: Any) -> None:
    model = PARAMS[params]
    names = {field.alias or name for name, field in model.model_fields.items()}
    assert set(params.__annotations__) <= {*names, *model.refused, *model.taken}


TAKEN: list[dict[str, Any]] = [
    {"role": "developer", "content": "x", "name": "boss"},
    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {}, "prompt_cache_breakpoint": {}}]},
    {"role": "assistant", "content": None},
    {"role": "assistant", "content": None, "refusal": "No.", "annotations": [], "audio": None, "function_call": None},
    {"role": "assistant", "content": "x", "tool_calls": [], "thinking_blocks": [], "reasoning_items": []},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "id": "m"},
    {"role": "user", "content": "x", "tool_calls": []},
]


@pytest.mark.parametrize("message", TAKEN)
def test_what_clients_send_back_is_taken(client: TestClient, message: dict[str, Any]) -> None:
    body = {"messages": [message, {"role": "user", "content": "hi"}]}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text


def test_a_hint_for_speed_has_no_effect(client: TestClient) -> None:
    body = {**ROUTES["chat"][2], "prediction": {"type": "content", "content": "x"}, "verbosity": "low"}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


def test_unknown_fields_are_reported_where_they_are_not_refused(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = serve(unknown_fields="warn")
    tools = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}, "odd": 1}
    message = {"role": "user", "content": "hi", "mood": "bad"}
    body = {"messages": [message, message], "topk": 4, "ü,\n": 1, "tools": TOOLS, "tool_choice": tools}
    with caplog.at_level("WARNING"):
        for _ in range(2):
            response = client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            names = response.headers["x-llmk-ignored-fields"].split(", ")
            assert sorted(names) == ["%C3%BC%2C%0A", "mood", "odd", "topk"]
    assert sum("'mood'" in record.message for record in caplog.records) == 1
    many = client.post("/v1/chat/completions", json={**ROUTES["chat"][2], **{f"odd{n}": n for n in range(50)}})
    assert many.headers["x-llmk-ignored-fields"].count(",") == 19
    assert "x-llmk-ignored-fields" not in client.post("/v1/chat/completions", json=ROUTES["chat"][2]).headers
    assert client.post("/v1/chat/completions", json={**body, "temperature": "hot"}).status_code == 400


@pytest.mark.parametrize("name", ROUTES)
def test_unknown_fields_name_the_nearest(client: TestClient, name: str) -> None:
    path, _, body, _ = ROUTES[name]
    error = client.post(path, json={**body, "temperatur": 1}).json()["error"]
    assert (error["param"], error["code"]) == ("temperatur", "unknown_parameter")
    assert "did you mean 'temperature'" in error["message"]


BAD = {
    "temperature": 3000,
    "top_p": -0.5,
    "min_p": 1.5,
    "n": 0,
    "max_tokens": 0,
    "presence_penalty": 3,
    "repetition_penalty": 0,
    "seed": 2**63,
    "stop": "",
    "stop_token_ids": [256],
    "logit_bias": {"256": 1},
    "allowed_token_ids": [256],
    "bad_words": [""],
    "logits_processors": {"test.unheard": {}},
    "min_tokens": -1,
    "structured_outputs": {"regex": "wow!"},
}


@pytest.mark.parametrize(("field", "value"), BAD.items())
def test_bad_values_name_the_field(client: TestClient, field: str, value: Any) -> None:
    for path, _, body, _ in ROUTES.values():
        response = client.post(path, json={**body, field: value})
        assert response.status_code == 400
        assert response.json()["error"]["param"].split("[")[0].split(".")[0] == field


@pytest.mark.parametrize(
    ("value", "param", "message"),
    [
        ({}, "structured_outputs", "takes one of regex, choice, json and lark; none is given"),
        ({"regex": "a", "choice": ["b"]}, "structured_outputs", "regex and choice is given"),
        ({"choice": []}, "structured_outputs", "choice has no entry"),
        ({"choice": ["a", ""]}, "structured_outputs.choice[1]", "at least 1 character"),
        ({"choice": "a"}, "structured_outputs.choice", "valid list"),
        ({"regex": 5}, "structured_outputs.regex", "valid string"),
        ({"ebnf": "root ::= x"}, "structured_outputs.ebnf", "Unexpected keyword argument"),
        ({"json": {"type": "object"}}, "structured_outputs", "can't be a json (there are regex, choice, lark)"),
        ({"regex": "no!"}, "structured_outputs", "the regex can't be used: it has an exclamation mark"),
        (
            {"regex": "a" * 200_000},
            "structured_outputs",
            "has 200000 bytes; the limit is 131072 (limits.grammar_bytes)",
        ),
        ("a+", "structured_outputs", "dictionary or an instance of StructuredOutputs"),
    ],
)
def test_bad_grammars_say_what_is_wrong(client: TestClient, value: Any, param: str, message: str) -> None:
    for path, _, body, _ in ROUTES.values():
        response = client.post(path, json={**body, "structured_outputs": value})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param), response.text
        assert message in error["message"]


def test_a_grammar_can_not_be_combined_with_ignore_eos(client: TestClient) -> None:
    body = {"prompt": "x", "structured_outputs": {"regex": "a"}, "ignore_eos": True}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert (error["param"], error["message"]) == (
        "ignore_eos",
        "ignore_eos can't be combined with structured_outputs: the output ends where its grammar does",
    )


def test_without_a_compiler_grammars_are_refused(client: TestClient, engine: ScriptedEngine) -> None:
    engine.info.grammars = ()
    body = {"prompt": "x", "structured_outputs": {"regex": "a"}}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert error["param"] == "structured_outputs"
    assert "structured_outputs can't be enforced here" in error["message"]


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", "1"), ("n", 1.0), ("stream", 1), ("seed", True), ("stop", 5)]
)
def test_types_are_strict(client: TestClient, field: str, value: Any) -> None:
    for path, _, body, _ in ROUTES.values():
        error = client.post(path, json={**body, field: value}).json()["error"]
        assert (error["param"], error["code"]) == (field, "invalid_type")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, "messages[0].weight"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}]},
            "messages[0].content[1].type",
        ),
        ({"messages": [{"role": "assistant", "content": "x", "function_call": {}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "user", "content": [{"type": "refusal"}]}]}, "messages[0].content[0].text"),
        ({"verbosity": "wordy"}, "verbosity"),
        ({"service_tier": "gold"}, "service_tier"),
        ({"store": True}, "store"),
        ({"prediction": "text"}, "prediction"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "run"}}]}, "tools[0].custom"),
        ({"tools": [{"type": "function", "function": {"name": "bad name!"}}]}, "tools[0].function.name"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"tools": [schema({"type": "nonsense"})]}, "tools[0].function.parameters"),
        ({"tools": [schema({"properties": {"a": {"items": 5}}})]}, "tools[0].function.parameters"),
        ({"tools": [schema({"required": "a"})]}, "tools[0].function.parameters"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": "x", "reasoning": "y"}]}, "messages[0].reasoning"),
        ({"metadata": {str(number): "x" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a" * 65: "x"}}, "metadata." + "a" * 65),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 500}, "max_tokens"),
        ({"max_completion_tokens": 500}, "max_completion_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"include_use": True}}, "stream_options.include_use"),
        ({"chat_template_kwargs": {"enable_thinkin": True}}, "chat_template_kwargs.enable_thinkin"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"reasoning_effort": "highest"}, "reasoning_effort"),
    ],
)
def test_chat_refusals_name_the_place(client: TestClient, change: dict[str, Any], param: str) -> None:
    response = client.post("/v1/chat/completions", json={**ROUTES["chat"][2], **change})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"max_tokens": 512}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_completion_refusals_name_the_place(client: TestClient, change: dict[str, Any], param: str) -> None:
    response = client.post("/v1/completions", json={"prompt": "x", **change})
    assert response.status_code == 400
    assert response.json()["error"]["param"].split("[")[0] == param


def test_generation_config_sets_what_the_request_leaves_open(serve: Any, engine: ScriptedEngine) -> None:
    engine.generation_config = {"temperature": 0.6, "top_k": 20, "eos_token_id": 2}
    serve().post("/v1/completions", json={"prompt": "x", "temperature": 0})
    assert (engine.calls[0].params.temperature, engine.calls[0].params.top_k) == (0.0, 20)


def test_all_models_are_closed() -> None:
    for model in (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest, Message, Tool):
        assert model.model_config["extra"] == "forbid"
        assert model.model_config["strict"]
