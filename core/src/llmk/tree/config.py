"""``config.json``, read by the types of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from llmk.api import Checkpoint, CheckpointError, UnsupportedOption
from llmk.api.errors import shown

T = TypeVar("T")
_LARGEST = (1 << 31) - 1
_LARGEST_NUMBER = 1e30
"""Of those that are not sizes, such as the base of RoPE: 1e11 in Falcon-H1."""
MOST_LAYERS = 10_000
MOST_EXPERTS = 100_000
"""More than any model has. Code loops over layers and experts, so an absurd number would never end."""
_DTYPES = ("float32", "bfloat16", "float16")
_PUBLISHED = "compare it with the config.json that the model's authors publish"
_TRANSFORMERS = "serve it through transformers: --select.model.use models.transformers"
_REQUIRED: Any = object()
_ROPE_NUMBERS = (
    "rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "low_freq_factor",
    "high_freq_factor", "attention_factor", "mscale", "mscale_all_dim", "partial_rotary_factor",
)  # fmt: skip


class Config:
    """Reads a checkpoint's ``config.json``. Every method raises :class:`~llmk.api.CheckpointError`, which names the
    key, for a value of another type or out of range.

    ``null`` means that the key is not set, except where a method says otherwise. A method without a default raises
    CheckpointError for a key that is not set.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.values = checkpoint.config

    @property
    def architecture(self) -> str:
        """The first of ``architectures``."""
        return self.checkpoint.architecture

    @property
    def dtype(self) -> str:
        """The dtype that the config states, under its new or its old name; ``"float32"`` where it states none."""
        dtype = str(self.values.get("dtype") or self.values.get("torch_dtype") or "float32").removeprefix("torch.")
        return dtype if dtype in _DTYPES else "float32"

    @property
    def state_dtype(self) -> str:
        """The dtype of recurrent states, under the names that configs of hybrid models have; empty where the config
        states none."""
        stated = str(self.values.get("mamba_ssm_dtype") or self.values.get("mamba_ssm_cache_dtype") or "")
        return stated if stated in _DTYPES else ""

    @overload
    def size(self, key: str, default: int = _REQUIRED, *, most: int = _LARGEST) -> int: ...
    @overload
    def size(self, key: str, default: None, *, most: int = _LARGEST) -> int | None: ...
    def size(self, key: str, default: int | None = _REQUIRED, *, most: int = _LARGEST) -> int | None:
        """A whole number from 1 to ``most``."""
        found: int | None = self._read(key, default, _is_whole(1, most), f"a whole number from 1 to {most}", int)
        return found

    @overload
    def count(self, key: str, default: int = _REQUIRED, *, most: int = _LARGEST) -> int: ...
    @overload
    def count(self, key: str, default: None, *, most: int = _LARGEST) -> int | None: ...
    def count(self, key: str, default: int | None = _REQUIRED, *, most: int = _LARGEST) -> int | None:
        """A whole number from 0 to ``most``."""
        found: int | None = self._read(key, default, _is_whole(0, most), f"a whole number from 0 to {most}", int)
        return found

    def first(self, *keys: str) -> str:
        """The first of ``keys`` that is set. Raises CheckpointError if none is."""
        for key in keys:
            if self.values.get(key) is not None:
                return key
        raise self._missing(*keys)

    def num_layers(self, *keys: str) -> int:
        """The value of the first of ``keys`` that is set: a whole number from 1 to 10,000."""
        return self.size(self.first(*keys), most=MOST_LAYERS)

    @overload
    def number(self, key: str, default: float = _REQUIRED) -> float: ...
    @overload
    def number(self, key: str, default: None) -> float | None: ...
    def number(self, key: str, default: float | None = _REQUIRED) -> float | None:
        """A finite number."""
        found: float | None = self._read(key, default, _is_number, "a number", None)
        return found

    @overload
    def positive(self, key: str, default: float = _REQUIRED) -> float: ...
    @overload
    def positive(self, key: str, default: None) -> float | None: ...
    def positive(self, key: str, default: float | None = _REQUIRED) -> float | None:
        """A number above 0."""
        found: float | None = self._read(key, default, _is_positive, "a number above 0", None)
        return found

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """``true`` or ``false``; 0 and 1 are accepted."""
        return bool(self._read(key, default, _is_flag, "true or false", bool))

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """A text."""
        found: str = self._read(key, default, _is_text, "a text", None)
        return found

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty if the key is not set."""
        found: tuple[str, ...] = self._read(key, (), _is_list(_is_text), "a list of texts", tuple)
        return found

    def counts(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers; empty if the key is not set."""
        wanted, words = _is_list(_is_whole(0, _LARGEST)), "a list of whole numbers"
        found: tuple[int, ...] = self._read(key, (), wanted, words, lambda values: tuple(map(int, values)))
        return found

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of finite numbers; empty if the key is not set."""
        found: tuple[float, ...] = self._read(key, (), _is_list(_is_number), "a list of numbers", tuple)
        return found

    def limits(self, key: str, default: tuple[float, float]) -> tuple[float, float]:
        """A list of two numbers, which may be infinite. transformers 5 writes numbers that JSON can't represent as
        ``{"__float__": "Infinity"}``."""
        found: tuple[float, float] = self._read(
            key, default, _are_limits, "a list of two numbers", lambda values: tuple(map(_limit, values))
        )
        return found

    def choice(self, key: str, *served: Any, hint: str = "") -> Any:
        """One of the values ``served``, the default first: those with which the implementation can serve the model."""
        value = self.values.get(key)
        value = served[0] if value is None else value
        if value not in served:
            named = " and ".join(str(each) for each in served)
            raise self.unsupported(f"{key} = {shown(value)}: the native implementation supports {named} only", hint)
        return value

    def rope(self, key: str) -> Mapping[str, Any]:
        """An object of RoPE settings, or an object with one for each kind of layer; empty if the key is not set."""
        found: Mapping[str, Any] = self._read(
            key, {}, _is_rope, "an object of RoPE settings with positive numbers", None
        )
        return found

    def nullable(self, read: Callable[..., T], key: str, default: T | None) -> T | None:
        """As ``read(key, default)``, for a method ``read`` of this config; but ``null`` is a value, ``None``."""
        return None if key in self.values and self.values[key] is None else read(key, default)

    def refuse(self, problem: str, hint: str = _PUBLISHED) -> CheckpointError:
        """The error for a config that contradicts itself; to be raised."""
        return CheckpointError(f"{self.architecture} with {problem}", hint=hint)

    def unsupported(self, problem: str, hint: str = "") -> UnsupportedOption:
        """The error for a config that this implementation can't serve, but another might; to be raised."""
        return UnsupportedOption(f"{self.architecture} with {problem}", hint=hint or _TRANSFORMERS)

    def _missing(self, *keys: str) -> CheckpointError:
        return CheckpointError(
            f"{self.checkpoint.path / 'config.json'} has no {' or '.join(map(repr, keys))},"
            f" which {self.architecture or 'a decoder'} needs",
            hint="download the checkpoint again, or complete its config.json",
        )

    def _read(
        self, key: str, default: Any, is_right: Callable[[Any], bool], words: str, convert: Callable[[Any], Any] | None
    ) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _REQUIRED:
                raise self._missing(key)
            return default
        if not is_right(value):
            raise CheckpointError(
                f"{self.checkpoint.path / 'config.json'} has {key} = {shown(value)}, which is not {words}",
                hint=_PUBLISHED,
            )
        return convert(value) if convert else value


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= _LARGEST_NUMBER  # which "not a number" is not


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_whole(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: _is_number(value) and low <= value <= high and value == int(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool) or value in (0, 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(of: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(of(each) for each in value)


def _limit(value: Any) -> float:
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def _is_limit(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = value.get("__float__")
        value = float("inf") if value == "Infinity" else value
    return isinstance(value, (int, float)) and value == value


def _are_limits(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_limit, value))


def _is_rope(value: Any) -> bool:
    """RoPE settings, or a mapping from kinds of layer to RoPE settings."""
    if not isinstance(value, Mapping):
        return False
    own = (each for each in value.values() if isinstance(each, Mapping))
    return all(map(_is_rope, own)) and all(_is_rope_entry(key, each) for key, each in value.items())


def _is_rope_entry(key: str, value: Any) -> bool:
    if value is None or isinstance(value, Mapping):
        return True
    if key in ("short_factor", "long_factor"):
        return _is_list(_is_positive)(value)
    if key in ("rope_type", "type"):
        return _is_text(value)
    return _is_positive(value) if key in _ROPE_NUMBERS else True
