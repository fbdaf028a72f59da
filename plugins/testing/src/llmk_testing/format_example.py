"""What the conformance kit tries formats of checkpoints on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TensorContent = tuple[str, Sequence[int], bytes]
"""A tensor's dtype (safetensors' name), its shape, and its values as bytes: of little-endian elements, row by row."""


@dataclass(frozen=True, slots=True)
class FormatContent:
    """What a file of the format means: what :class:`~llmk.api.Checkpoint` and its reader must say of it.

    ``tensors`` are by name. Those that the file has in another form have the values that ``decode`` must return.
    """

    config: Mapping[str, Any]
    tensors: Mapping[str, TensorContent]
    tokenizer: str
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None


Write = Callable[[FormatContent], bytes | None]
"""Returns a file of the content; ``None`` for what the format can't hold just as it is, such as a dtype that it does
not know."""


def unsealed(data: bytes) -> bytes:
    """Of a format whose files say neither how long they are nor what bytes they have."""
    return data


@dataclass(frozen=True, slots=True)
class FormatExample:
    """A ``file`` of the format, and its ``content``. ``damaged`` are files that must be refused, by what is wrong with
    them. ``options`` is the section ``[plugin.NAME]`` that files are read with.

    ``write`` are functions that write other content, one for each form that the format has for tensors, such as plain
    and compressed, for each version of the format that is read, also those that writers rarely choose, and for each
    order, such as tensors before the texts and behind all else. They write what they are
    given, also where a shape is not that of the bytes: that must be refused; and texts as they are, where the format
    also has escapes for them.
    ``tools`` are functions that have another program write the content, such as the library that most files of the
    format are from, by its name: it spells dtypes, orders fields and fills what may be left out in its own way, which
    what is written after the reader's own understanding does not show.
    ``seal`` is for formats whose files say how long they are, or have checksums: it makes these right again in a file
    that the kit changed, so that nothing else is wrong with it than what the change means.
    """

    file: bytes
    content: FormatContent
    damaged: Mapping[str, bytes] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    write: Sequence[Write] = ()
    tools: Mapping[str, Write] = field(default_factory=dict)
    seal: Callable[[bytes], bytes] = unsealed
