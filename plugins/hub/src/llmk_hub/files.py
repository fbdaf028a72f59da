"""Which files of a repository a model needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from llmk.api import CheckpointError, ModelNotFound

INDEX = "model.safetensors.index.json"
_SMALL = ("*.json", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt")
"""Of the repository's own folder: configuration, tokenizer, templates."""
_MODULES = re.compile(r"\d+_\w+/config\.json")
"""The folders of sentence-transformers' modules."""
_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)")
_MOST_PARTS = 1000
_PICKLED = ("*.bin", "*.pth", "*.pt", "*.ckpt", "*.msgpack", "*.h5")

ReadIndex = Callable[[], Mapping[str, Any]]
"""Reads the repository's index of weights."""


@dataclass(frozen=True, slots=True)
class Needed:
    """``weights`` are safetensors files, or the parts of a GGUF file, in their order."""

    small: tuple[str, ...]
    weights: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All files."""
        return (*self.small, *self.weights)

    @property
    def file(self) -> str:
        """The file that names the model: the first part of a GGUF file; empty for a folder."""
        return self.weights[0] if self.weights and self.weights[0].endswith(".gguf") else ""


def needed(what: str, names: Collection[str], choice: str, read_index: ReadIndex) -> Needed:
    """The files of the model ``what``, of the ``names`` of a repository's files. ``choice``: a GGUF file, or a word of
    its name.

    Raises ModelNotFound if the choice names no file or several, CheckpointError without weights that llmk reads.
    """
    if choice:
        return Needed((), _chosen(what, names, choice))
    if "config.json" in names:
        weights = _safetensors(names, read_index)
        if weights:
            return Needed(tuple(sorted(name for name in names if _is_small(name))), weights)
    if files := gguf_models(names):
        if len(files) > 1:
            raise ModelNotFound(f"{what} has {_listed(files)}", hint=f"choose one: {what}:{_word(next(iter(files)))}")
        return Needed((), next(iter(files.values())))
    raise _unreadable(what, names)


def gguf_models(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """All parts of every GGUF model, by its name without the numbers of parts. Projectors are not models."""
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        if name.lower().endswith(".gguf") and not name.rpartition("/")[2].lower().startswith("mmproj"):
            part = _PART.search(name)
            count = int(part[2]) if part else 1
            every = (_PART.sub(f"-{number:05}-of-{count:05}", name) for number in range(1, count + 1))
            found[_PART.sub("", name)] = tuple(every) if part and count <= _MOST_PARTS else (name,)
    return found


def _chosen(what: str, names: Iterable[str], choice: str) -> tuple[str, ...]:
    files = gguf_models(names)
    exact = [name for name, parts in files.items() if choice in (name, *parts)]
    words = re.compile(rf"(?<![a-z0-9]){re.escape(choice.lower())}(?![a-z0-9_])")
    found = exact or [name for name in files if words.search(name.lower().removesuffix(".gguf"))]
    if len(found) == 1:
        return files[found[0]]
    if found:
        raise ModelNotFound(
            f"{choice!r} is in the names of several files of {what}: {', '.join(found)}",
            hint=f"name the file: {what}:{found[0]}",
        )
    if files:
        raise ModelNotFound(f"{what} has no file {choice!r}; it has {_listed(files)}", hint="choose one of these")
    raise ModelNotFound(f"{what} has no GGUF files to choose {choice!r} from", hint=f"leave it out: {what}")


def _safetensors(names: Collection[str], read_index: ReadIndex) -> tuple[str, ...]:
    """As a checkpoint's folder is read: what the index names, or the files in the folder itself."""
    if INDEX in names:
        files = read_index().get("weight_map")
        named = set(files.values()) if isinstance(files, dict) else set()
        return tuple(sorted(name for name in named if isinstance(name, str)))
    own = [name for name in sorted(names) if "/" not in name and name.endswith(".safetensors")]
    return tuple([name for name in own if name.startswith("model")] or own)


def _is_small(name: str) -> bool:
    if _MODULES.fullmatch(name):
        return True
    return "/" not in name and any(fnmatchcase(name, pattern) for pattern in _SMALL)


def _unreadable(what: str, names: Collection[str]) -> CheckpointError:
    pickled = sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in _PICKLED))
    if "adapter_config.json" in names:
        hint = "serve its base model, and name the adapter's folder under [adapters]"
        return CheckpointError(f"{what} is an adapter, not a model", hint=hint)
    if "config.json" in names and pickled:
        message = f"{what} has no safetensors; its weights are pickled ({_listed(pickled)}), which llmk does not read"
        return CheckpointError(message, hint=f"look for a conversion in its pull requests: {what}@refs/pr/NUMBER")
    lacking = "safetensors files" if "config.json" in names else "config.json, and no GGUF files"
    message = f"{what} has no {lacking}, so it is no model that llmk reads; it has {_listed(sorted(names))}"
    return CheckpointError(message, hint="check the name")


def _word(name: str) -> str:
    """What is enough to choose the GGUF file: its quantization, where the name ends with one."""
    found = re.search(r"[-.](I?Q\d\w*|B?F(?:16|32))\.gguf$", name, re.I)
    return found[1] if found else name


def _listed(names: Iterable[str], most: int = 12) -> str:
    every: Sequence[str] = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return (", ".join(every[:most]) or "no files") + more
