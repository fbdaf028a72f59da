"""What the conformance kit tries sources of models on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class SourceExample:
    """``name`` is a model that can be fetched, a checkpoint in the Hugging Face layout; ``absent`` a name of the same
    form that no model has. ``options`` is the section ``[plugin.NAME]`` with which it can be fetched.

    ``models`` are the files of further models, by names that the source has, such as older versions: each must be
    fetched with its own. ``damage`` changes what the source has of ``name``, so that it must not be taken for whole any
    more; without it, damage is not tried.

    ``publish`` makes the source have these files under a name, ``name`` or one of ``models``, from then on, in place of
    others; names of files may have folders, and may be such as lead out of the model, which the source must not follow.
    It raises ValueError for what the source can't have: names of files, or other files of a version that never
    changes. ``forge`` makes the source send these files for a name that says itself what it holds, such as a digest, as
    one that others got into would; they must be refused. It raises ValueError for names that don't. ``away`` takes
    the source away: its server ends, its share is not there.
    """

    name: str
    absent: str
    options: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    damage: Callable[[], None] | None = None
    publish: Callable[[str, Mapping[str, bytes]], None] | None = None
    away: Callable[[], None] | None = None
    forge: Callable[[str, Mapping[str, bytes]], None] | None = None


_PERIOD = bytes(range(251))
"""251 is prime: what is put at a wrong place shows."""

OpenExample = Callable[[Path], AbstractContextManager[SourceExample]]
"""What ``ModelSourceSpec.examples`` names: puts what the example needs (a server, a folder) below an empty folder, for
as long as the context is open. It is opened once per case."""


def altered(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files of the same names and sizes, with other bytes in ``config.json`` and in weights."""
    changed = {"config.json": files["config.json"].replace(b'"toy"', b'"yot"')}
    changed |= {name: data[:-1] + bytes([data[-1] ^ 1]) for name, data in files.items() if name.endswith("tensors")}
    return {**files, **changed}


def toy_checkpoint(elements: int = 3_000_000) -> dict[str, bytes]:
    """The files of a checkpoint that can be read, and not served: ``config.json``, and two float32 tensors, by default
    of 12 MB, so that most sources report within the file."""
    shapes = {"model.embed.weight": [elements], "model.norm.weight": [8]}
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * shape[0]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return {
        "config.json": json.dumps({"architectures": ["ToyForCausalLM"], "model_type": "toy"}).encode(),
        "model.safetensors": len(text).to_bytes(8, "little") + text + (_PERIOD * (end // len(_PERIOD) + 1))[:end],
        "tokenizer_config.json": b"{}",
    }
