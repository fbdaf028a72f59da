"""Bodies of requests (https://github.com/ollama/ollama/blob/main/docs/api.md)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from llmk.api.http.bodies import Entries, Fields, fault

_NO_IMAGES = "images need a vision model"
_NO_LOGPROBS = "log-probabilities are in /v1/chat/completions and /v1/completions"
_LATEST = ":latest"


def _whole(value: Any) -> Any:
    """An integer that is written as ``40.0``, which clients in JavaScript and Go do."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _one(value: float | int) -> float | int:
    if value != 1:
        raise fault("there is no such sampling; leave it out, or use 'top_p' or 'min_p'")
    return value


def _zero(value: int) -> int:
    if value:
        raise fault("there is no such sampling; leave it out, or use 'temperature'")
    return value


Integer = Annotated[int, BeforeValidator(_whole)]
Model = Annotated[str, Field(min_length=1), AfterValidator(lambda name: name.removesuffix(_LATEST))]
"""The name of a model; the tag ``latest`` is no part of it."""


class Options(Fields):
    """``options``: sampling. What concerns how Ollama itself runs a model has no effect."""

    taken: ClassVar = frozenset(
        {
            *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram", "f16_kv"),
            *("logits_all", "vocab_only", "embedding_only", "use_mmap", "use_mlock", "repeat_last_n"),
            *("penalize_newline", "mirostat_tau", "mirostat_eta", "draft_num_predict"),
        }
    )

    num_predict: Integer | None = None
    temperature: float | None = None
    top_k: Integer | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: Integer | None = None
    stop: Annotated[Entries[str], BeforeValidator(_listed)] | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    tfs_z: Annotated[float, AfterValidator(_one)] | None = None
    typical_p: Annotated[float, AfterValidator(_one)] | None = None
    mirostat: Annotated[Integer, AfterValidator(_zero)] | None = None


class LoadedModel(Fields):
    """What all requests for a model have."""

    model: Model
    keep_alive: float | str | None = None
    options: Options = Options()

    @property
    def is_unloaded(self) -> bool:
        """Whether the client wants the model out of memory, which does not happen."""
        return str(self.keep_alive).rstrip("smh") in ("0", "0.0")


class Generation(LoadedModel):
    """What requests to generate have in common."""

    refused: ClassVar = {"logprobs": _NO_LOGPROBS, "top_logprobs": _NO_LOGPROBS}

    stream: bool = True
    format: Literal["", "json"] | dict[str, Any] = ""
    think: bool | Literal["", "low", "medium", "high", "max"] | None = None
    unenforceable: Literal["refuse", "warn"] | None = None
    """llmk's own: what happens to a schema that can't be enforced."""


class Function(Fields):
    """The function of a tool call."""

    taken: ClassVar = frozenset({"index"})

    name: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] = Field(default={})


class ToolCall(Fields):
    """A call that the assistant made."""

    taken: ClassVar = frozenset({"type"})

    id: str = ""
    function: Function


class Message(Fields):
    """A message of the conversation so far."""

    refused: ClassVar = {"images": _NO_IMAGES}

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    tool_calls: Entries[ToolCall] = Field(default=[])
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolFunction(Fields):
    """A function that the model may call."""

    taken: ClassVar = frozenset({"strict"})

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
    description: str = ""
    parameters: dict[str, Any] = Field(default={})


class Tool(Fields):
    """An entry of ``tools``."""

    type: Literal["function"] = "function"
    function: ToolFunction


class ChatRequest(Generation):
    """The body of ``/api/chat``."""

    messages: Entries[Message] = Field(default=[])
    tools: Entries[Tool] = Field(default=[])


class GenerateRequest(Generation):
    """The body of ``/api/generate``."""

    refused: ClassVar = {
        **Generation.refused,
        "images": _NO_IMAGES,
        "suffix": "the model can't fill in the middle of a text",
        "template": "the server's chat template is used; write the prompt with 'raw', or set --model.chat-template",
        "context": "use /api/chat, with the messages so far",
        "width": "the model makes no images",
        "height": "the model makes no images",
        "steps": "the model makes no images",
    }

    prompt: str = ""
    system: str = ""
    raw: bool = False


class EmbedRequest(LoadedModel):
    """The body of ``/api/embed``."""

    input: str | Entries[str] = ""
    truncate: bool = True
    dimensions: Annotated[Integer, Field(ge=1)] | None = None


class EmbeddingsRequest(LoadedModel):
    """The body of ``/api/embeddings``."""

    prompt: str = ""


class NamedRequest(Fields):
    """The body of a request that names a model, and needs no more. ``name`` is the older name of ``model``."""

    model: Model | None = None
    name: Model | None = None


class ShowRequest(NamedRequest):
    """The body of ``/api/show``."""

    taken: ClassVar = frozenset({"verbose", "system", "template", "options"})


class PullRequest(NamedRequest):
    """The body of ``/api/pull``."""

    taken: ClassVar = frozenset({"insecure", "stream", "username", "password"})
