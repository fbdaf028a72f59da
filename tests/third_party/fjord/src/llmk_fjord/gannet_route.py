"""llama.cpp's own HTTP API (``llama-server``): ``/completion``, ``/embedding`` and ``/props``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import Field

from llmk.api import (
    AnswerDelta,
    AnswerHead,
    AnswerRenderer,
    Frame,
    RequestError,
    ServedModelInfo,
    TextDelta,
    TokenCounts,
    TranslatedRequest,
)
from llmk.api.http.bodies import Entries, Fields, parse
from llmk.api.http.calls import CompleteCalls

_MOST = 2**31 - 1
_LARGEST_BIAS = 100.0
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
TokenId = Annotated[int, Field(ge=0, le=_MOST)]
NOT_HERE = "this server has no such sampler"


class CompletionBody(Fields):
    """A body of ``POST /completion``."""

    taken: ClassVar[frozenset[str]] = frozenset({"cache_prompt", "id_slot", "n_keep", "repeat_last_n", "n_indent"})
    refused: ClassVar[Mapping[str, str]] = {
        "grammar": "use 'json_schema'",
        "mirostat": NOT_HERE,
        "dynatemp_range": NOT_HERE,
        "xtc_probability": NOT_HERE,
        "dry_multiplier": NOT_HERE,
        "n_probs": "use 'logprobs' of /v1/completions",
        "return_tokens": "tokens have no ids in this format",
        "t_max_predict_ms": "use 'n_predict'",
        "samplers": "their order is fixed",
        "lora": "adapters are named by 'model' in /v1/completions",
    }

    prompt: Annotated[str, Field(min_length=1)] | Annotated[Entries[TokenId], Field(min_length=1)]
    n_predict: Annotated[int, Field(ge=-2, le=_MOST)] = -1
    temperature: Annotated[float, Field(le=100)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_MOST)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-6, le=100)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=-1, le=2**32 - 1)] = -1
    stop: Entries[str] = []  # noqa: RUF012
    ignore_eos: bool = False
    logit_bias: Entries[list[Any]] | dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    stream: bool = False

    def completion(self) -> dict[str, Any]:
        """The body of ``/v1/completions``."""
        if self.n_predict == 0:
            raise RequestError("n_predict: 0 generates nothing; it must be at least 1, or -1", param="n_predict")
        values = {
            "prompt": self.prompt,
            "max_tokens": self.n_predict if self.n_predict > 0 else _MOST,
            "temperature": None if self.temperature is None else max(0.0, self.temperature),
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repeat_penalty,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "seed": None if self.seed < 0 else self.seed,
            "stop": [text for text in self.stop if text] or None,
            "ignore_eos": self.ignore_eos or None,
            "logit_bias": _biases(self.logit_bias) or None,
            "structured_outputs": None if self.json_schema is None else {"json": self.json_schema},
        }
        return {name: value for name, value in values.items() if value is not None}


class EmbeddingBody(Fields):
    """A body of ``POST /embedding``."""

    content: str | Annotated[Entries[str], Field(min_length=1)]
    embd_normalize: Annotated[int, Field(ge=2, le=2)] = 2


BodyT = TypeVar("BodyT", CompletionBody, EmbeddingBody)


def _parsed(schema: type[BodyT], body: Any) -> BodyT:
    """``parse``, whose errors about fields that are unknown or refused name them in ``param`` too."""
    try:
        return parse(schema, body)
    except RequestError as error:
        if error.param is None and isinstance(body, dict):
            known = schema.model_fields.keys() | schema.taken
            error.param = next((name for name, value in body.items() if _is_wrong(schema, name, value, known)), None)
        raise


def _is_wrong(schema: type[Fields], name: Any, value: Any, known: Set[str]) -> bool:
    return bool(value) if name in schema.refused else name not in known


def _biases(given: list[list[Any]] | dict[str, Any] | None) -> dict[str, float]:
    """Biases by token id. Of a token that is named twice they are added; ``false``: never."""
    pairs = list(given.items()) if isinstance(given, dict) else given or []
    found: dict[str, float] = {}
    for pair in pairs:
        if len(pair) != 2:
            _bad_bias("entries are pairs of a token id and a bias")
        token, bias = pair
        if isinstance(token, str):
            if not (token.isascii() and token.isdigit() and len(token) <= 10):
                _bad_bias("tokens are named by their ids, not by texts")
        elif not isinstance(token, int) or isinstance(token, bool) or not 0 <= token <= _MOST:
            _bad_bias("token ids are whole numbers from 0 on")
        if bias is False:
            bias = -_LARGEST_BIAS
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -_LARGEST_BIAS <= bias <= _LARGEST_BIAS:
            _bad_bias(f"biases are numbers from -{_LARGEST_BIAS:g} to {_LARGEST_BIAS:g}, or false")
        key = str(int(token))
        found[key] = max(-_LARGEST_BIAS, min(_LARGEST_BIAS, found.get(key, 0.0) + float(bias)))
    return found


def _bad_bias(why: str) -> NoReturn:
    raise RequestError(f"logit_bias: {why}", param="logit_bias")


class _Api:
    """What the routes share."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        raise NotImplementedError

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        raise NotImplementedError

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        raise NotImplementedError

    def error(self, status: int, error: Mapping[str, Any]) -> Frame:
        """``{"error": {"code": 400, "message": ..., "type": ...}}``."""
        kind = _TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
        return Frame({"error": {"code": status, "message": error["message"], "type": kind}})


class Completion(_Api):
    """``POST /completion``."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        given = _parsed(CompletionBody, body)
        return TranslatedRequest("text", given.completion(), stream=given.stream, fit_max_tokens=given.n_predict < 0)

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        return _Renderer(head)


class _Renderer:
    """Renders one response. A frame has one text; the last has none, and why it ended."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._calls = CompleteCalls()
        self._texts: list[str] = []
        self._has_new_line = False
        self._end: tuple[str, str] = ("none", "")

    def _read(self, delta: AnswerDelta) -> Iterator[str]:
        """The texts of a delta, none of them empty."""
        for event in delta.events:
            part = self._calls.of(event)
            if isinstance(part, TextDelta) and part.text:
                self._has_new_line = self._has_new_line or "\n" in part.text
                yield part.text
        if delta.finish_reason is not None:
            self._end = _why(delta)

    def frames(self, delta: AnswerDelta, usage: TokenCounts) -> Iterable[Frame]:
        counts = {"tokens_predicted": usage.completion_tokens, "tokens_evaluated": usage.prompt_tokens}
        return [Frame({"index": 0, "content": text, "stop": False, **counts}) for text in self._read(delta)]

    def last_frames(self, usage: TokenCounts) -> Iterable[Frame]:
        return [Frame(self._final("", usage))]

    def add(self, delta: AnswerDelta, usage: TokenCounts) -> None:
        self._texts += self._read(delta)

    def whole(self, usage: TokenCounts) -> Mapping[str, Any]:
        return self._final("".join(self._texts), usage)

    def _final(self, content: str, usage: TokenCounts) -> dict[str, Any]:
        stop_type, word = self._end
        return {
            "index": 0,
            "content": content,
            "stop": True,
            "model": self._head.model,
            "tokens_predicted": usage.completion_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "has_new_line": self._has_new_line,
            "truncated": False,
            "stop_type": stop_type,
            "stopping_word": word,
        }


def _why(delta: AnswerDelta) -> tuple[str, str]:
    """``stop_type`` and ``stopping_word``."""
    if delta.finish_reason == "length":
        return "limit", ""
    return ("word", delta.stop_reason) if isinstance(delta.stop_reason, str) else ("eos", "")


class Embedding(_Api):
    """``POST /embedding``."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        given = _parsed(EmbeddingBody, body)
        return TranslatedRequest("embed", {"input": given.content})

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """A list in the order of the texts; with pooling, each has one vector."""
        entries = sorted(result["data"], key=lambda entry: entry["index"])
        return [{"index": entry["index"], "embedding": [entry["embedding"]]} for entry in entries]


class Props(_Api):
    """``GET /props``."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        return TranslatedRequest("info", {})

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        return {
            "default_generation_settings": {"n_ctx": model.max_model_len},
            "model_alias": model.name,
            "model_path": model.name,
            "chat_template": model.chat_template,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"llmk-{model.version}",
        }
