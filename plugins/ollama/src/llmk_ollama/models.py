"""Routes about what is served: ``/api/tags``, ``/api/show``, ``/api/pull``, ``/api/ps``, ``/api/version`` and ``/``."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from llmk.api import AnswerHead, AnswerRenderer, RequestError, ServedModelInfo, TranslatedRequest
from llmk.api.http.bodies import parse
from llmk_ollama.schema import NamedRequest, PullRequest, ShowRequest
from llmk_ollama.translation import Route, Wire, timestamp

API_VERSION = "0.12.6"
"""The version of Ollama whose API this is. Clients refuse servers that are older than what they need."""
_NEVER = "9999-12-31T00:00:00Z"
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_SIZES = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_FIELDS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "vocab_size": "vocab_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
}
"""Names that Ollama has for fields of ``config.json``."""


class _Described(Route):
    """A route that describes the served model."""

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A request that needs no engine."""
        return TranslatedRequest("info", {})

    def open(self, head: AnswerHead, options: Mapping[str, Any]) -> AnswerRenderer:
        """Not used: nothing is generated."""
        raise NotImplementedError

    @abstractmethod
    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The description."""


class Tags(_Described):
    """The served model and its adapters."""

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """A list of models."""
        return {"models": [_entry(name, model) for name in (model.name, *model.adapters)]}


class Processes(_Described):
    """The models in memory: those that are served, until the server stops."""

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """A list of models."""
        more = {"expires_at": _NEVER, "size_vram": model.num_bytes, "context_length": model.max_model_len}
        entries = [_entry(name, model) for name in (model.name, *model.adapters)]
        return {"models": [{**entry, **more} for entry in entries]}


class Version(_Described):
    """The version of the API, and of the server."""

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """Two versions."""
        return {"version": API_VERSION, "llmk_version": model.version}


class Root(_Described):
    """Shows clients that a server listens here."""

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The text that clients expect."""
        return "Ollama is running"


class _Named(_Described):
    """A route whose requests name the served model."""

    BODY: ClassVar[type[NamedRequest]]

    def translate(self, body: Any, headers: Mapping[str, str]) -> TranslatedRequest:
        """A request that needs no engine. Raises :class:`~llmk.api.RequestError`."""
        request = parse(self.BODY, body)
        if (name := request.model or request.name) is None:
            raise RequestError("model: Field required", param="model")
        return TranslatedRequest("info", {"model": name})


class Pull(_Named):
    """Clients pull a model before they use it. The served one is here; there is no other."""

    BODY = PullRequest

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """What ends a stream of progress."""
        return {"status": "success"}


class Show(_Named):
    """Details of the served model."""

    BODY = ShowRequest

    def result(self, result: Mapping[str, Any], options: Mapping[str, Any], model: ServedModelInfo) -> Any:
        """The details. ``model_info`` has the names that GGUF files have."""
        family, config = _family(model), model.config
        info: Wire = {"general.architecture": family, f"{family}.context_length": model.max_model_len}
        if model.num_parameters:
            info["general.parameter_count"] = model.num_parameters
        info |= {f"{family}.{name}": config[field] for name, field in _FIELDS.items() if field in config}
        return {
            "modelfile": f"FROM {model.name}\n",
            "parameters": "",
            "template": model.chat_template,
            "details": _details(model),
            "model_info": info,
            "capabilities": list(model.capabilities),
            "modified_at": timestamp(model.created),
        }


def _entry(name: str, model: ServedModelInfo) -> Wire:
    tagged = name if ":" in name else f"{name}:latest"
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": timestamp(model.created),
        "size": model.num_bytes,
        "digest": hashlib.sha256(f"{name} {model.created}".encode()).hexdigest(),
        "details": _details(model),
    }


def _details(model: ServedModelInfo) -> Wire:
    quantization = model.config.get("quantization_config")
    if isinstance(quantization, Mapping):
        level = str(quantization.get("quant_method", "")).upper()
    else:
        dtype = str(model.config.get("dtype") or model.config.get("torch_dtype") or "")
        level = _DTYPES.get(dtype, dtype.upper())
    return {
        "parent_model": "",
        "format": "safetensors",
        "family": _family(model),
        "families": [_family(model)],
        "parameter_size": _size(model.num_parameters),
        "quantization_level": level,
    }


def _family(model: ServedModelInfo) -> str:
    return str(model.config.get("model_type", ""))


def _size(count: int) -> str:
    return next((f"{count / unit:.1f}{letter}" for unit, letter in _SIZES if count >= unit), str(count or ""))
