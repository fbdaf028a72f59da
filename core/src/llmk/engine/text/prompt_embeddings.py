"""Embeddings that prompts have in place of token ids: read from requests and arrays, and checked.

Importing this needs neither torch nor NumPy; NumPy is imported when embeddings are checked.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol, TypeGuard

from llmk.api import RequestError
from llmk.engine.text.input_processor import check_ids, check_length
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.prompt import KEY_BYTES, EmbeddedPrompt, EmbeddingFormat, EmbeddingRun

PARAM = "prompt_embeds"
"""The field of requests."""
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Dtypes, by safetensors' names."""
_BOUNDS: Mapping[str, float] = {"float32": math.inf, "float16": 65520.0, "bfloat16": 3.3961775292304601e38}
"""The least magnitude that is infinite once it is rounded to a dtype."""
_ELEMENTS = {"float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""NumPy's dtypes; it has none for bfloat16."""
_CHUNK = 256
"""Rows that are checked at a time."""


class Array(Protocol):
    """A torch tensor or a NumPy array."""

    @property
    def shape(self) -> Any:
        """Its size in each dimension."""
        ...

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
        ...


Prompt = str | list[int] | Array | tuple[list[int] | Array, ...]
"""A text, token ids, embeddings ``[length, hidden]``, or runs of ids and of embeddings that follow on each other."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """A tensor that was not checked yet: its dtype by torch's name, its shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def from_base64(text: str) -> Embeddings:
    """The tensor of a safetensors file, in base64. Raises :class:`~llmk.api.RequestError` if it is not one, or has
    another number of tensors."""
    from safetensors import SafetensorError, deserialize

    try:
        data = base64.b64decode(text, validate=True)
        tensors: list[tuple[str, dict[str, Any]]] = deserialize(data)  # type: ignore[no-untyped-call]
    except (binascii.Error, ValueError) as error:
        raise _refused(f"is not base64: {error}") from None
    except SafetensorError as error:
        raise _refused(f"is not a safetensors file in base64: {error}") from None
    if len(tensors) != 1:
        raise _refused(f"has {len(tensors)} tensors; each prompt is a safetensors file with one")
    ((_, found),) = tensors
    return Embeddings(_STORED.get(found["dtype"], found["dtype"]), tuple(found["shape"]), bytes(found["data"]))


def is_array(value: object) -> TypeGuard[Array]:
    """Whether it is a torch tensor or a NumPy array."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def from_array(array: Array) -> Embeddings:
    """What a torch tensor, on any device, or a NumPy array contains."""
    found: Any = array
    shape = tuple(found.shape)
    if type(found).__module__ == "numpy":
        return Embeddings(found.dtype.name, shape, found.tobytes())
    import torch

    data = found.detach().to("cpu").contiguous().view(-1).view(torch.uint8)
    return Embeddings(str(found.dtype).removeprefix("torch."), shape, data.numpy().tobytes())


def from_arrays(prompt: Array | tuple[list[int] | Array, ...], info: EngineInfo) -> EmbeddedPrompt:
    """A prompt of embeddings, or of several runs. Raises what :func:`embedded` raises."""
    parts = prompt if isinstance(prompt, tuple) else (prompt,)
    return embedded([part if isinstance(part, list) else from_array(part) for part in parts], info)


def embedded(parts: Sequence[list[int] | Embeddings], info: EngineInfo) -> EmbeddedPrompt:
    """A prompt of runs of token ids and of embeddings.

    Raises:
        ContextLengthExceeded: it leaves no room for a token.
        RequestError: the model takes no embeddings; they have another shape or dtype, or an element that is not finite
            in the model's dtype; or a token id is not the model's.
    """
    check_taken(info.embeddings)
    tokens: list[int] = []
    runs: list[EmbeddingRun] = []
    for part in parts:
        if isinstance(part, list):
            check_ids("prompt", part, info.vocab_size)
            tokens += part
            continue
        _check_shape(part, info.embeddings)
        length = part.shape[0]
        check_length(len(tokens) + length, info.max_model_len)
        _check_finite(part, info.embeddings.dtype)
        runs.append(EmbeddingRun(len(tokens), length, part.dtype, part.data, _keys(part)))
        tokens += [info.vocab_size] * length
    return EmbeddedPrompt(tokens, runs)


def check_taken(wanted: EmbeddingFormat) -> None:
    """Raises :class:`~llmk.api.RequestError` where the model takes no embeddings."""
    if not wanted.size:
        what = f"can't be used: {wanted.model or 'the model'} takes token ids alone"
        raise _refused(what, hint="send the prompt as text or token ids")


def _check_shape(embeddings: Embeddings, wanted: EmbeddingFormat) -> None:
    if embeddings.dtype not in _BOUNDS:
        raise _refused(f"has dtype {embeddings.dtype}; it may be {', '.join(_BOUNDS)}")
    if len(embeddings.shape) != 2 or embeddings.shape[1] != wanted.size or not embeddings.shape[0]:
        found, size = list(embeddings.shape), wanted.size
        raise _refused(f"has shape {found}; the model's embeddings are [length, {size}], with a length of 1 or more")


def _check_finite(embeddings: Embeddings, dtype: str) -> None:
    import numpy as np

    rows, bound = np.frombuffer(embeddings.data, _ELEMENTS[embeddings.dtype]), _BOUNDS[dtype]
    rows = rows.reshape(embeddings.shape)
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        # bfloat16 is the upper half of float32.
        values = (chunk.astype("<u4") << 16).view("<f4") if embeddings.dtype == "bfloat16" else chunk.astype("<f4")
        wrong = ~(np.abs(values) < bound).all(axis=1)
        if wrong.any():
            raise _refused(f"is not finite in the model's {dtype}: row {start + int(wrong.argmax())}")


def _keys(embeddings: Embeddings) -> bytes:
    """Hashes of dtype and content of each row."""
    person, size = embeddings.dtype.encode(), len(embeddings.data) // embeddings.shape[0]
    view = memoryview(embeddings.data)
    parts = (view[start : start + size] for start in range(0, len(view), size))
    return b"".join([blake2b(part, digest_size=KEY_BYTES, person=person).digest() for part in parts])


def _refused(what: str, hint: str = "") -> RequestError:
    return RequestError(f"{PARAM} {what}", param=PARAM, hint=hint)
