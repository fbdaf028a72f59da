"""A file's metadata, read by the types of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from llmk.api import CheckpointError, CheckpointFile
from llmk.api.errors import shown

T = TypeVar("T")
_AGAIN = "convert the model again with a present llama.cpp, or download the file again"


class Metadata:
    """Reads a file's metadata. Every method raises :class:`~llmk.api.CheckpointError`, which names the key, for a value
    of another type; ``None`` is returned for a key that the file lacks."""

    def __init__(self, file: CheckpointFile, values: Mapping[str, Any]) -> None:
        self.file = file
        self._values = values

    def keys(self, prefix: str) -> list[str]:
        """The keys that start with ``prefix``."""
        return [key for key in self._values if key.startswith(prefix)]

    def whole(self, key: str) -> int | None:
        """A whole number; a list of equal ones, which some files have for each layer, counts as one."""
        value = self._values.get(key)
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        return self._typed(key, value, int, "a whole number")

    def number(self, key: str) -> float | None:
        """A number."""
        value = self._values.get(key)
        return self._typed(key, float(value) if type(value) is int else value, float, "a number")

    def flag(self, key: str) -> bool | None:
        """A truth value."""
        return self._typed(key, self._values.get(key), bool, "a truth value")

    def text(self, key: str) -> str | None:
        """A text."""
        return self._typed(key, self._values.get(key), str, "a text")

    def texts(self, key: str) -> list[str] | None:
        """A list of texts."""
        return self._list(key, str, "a list of texts")

    def wholes(self, key: str) -> list[int] | None:
        """A list of whole numbers."""
        return self._list(key, int, "a list of whole numbers")

    def numbers(self, key: str) -> list[float] | None:
        """A list of numbers."""
        return self._list(key, float, "a list of numbers")

    def required(self, value: T | None, key: str) -> T:
        """``value``, which one of the other methods returned for ``key``, unless it is ``None``."""
        if value is None:
            raise self.refuse(f"has no {key}")
        return value

    def refuse(self, problem: str, hint: str = _AGAIN) -> CheckpointError:
        """The error for a file that can't be served; to be raised."""
        return CheckpointError(f"{self.file} {problem}", hint=hint)

    def _list(self, key: str, kind: type[T], words: str) -> list[T] | None:
        value = self._values.get(key)
        if isinstance(value, list) and not all(type(each) is kind for each in value):
            raise self.refuse(f"has {key} = {shown(value)}, which is not {words}")
        return self._typed(key, value, list, words)

    def _typed(self, key: str, value: Any, kind: type[T], words: str) -> T | None:
        if value is not None and type(value) is not kind:
            raise self.refuse(f"has {key} = {shown(value)}, which is not {words}")
        return value
