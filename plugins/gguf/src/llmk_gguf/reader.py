"""Reads GGUF files as checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, ConfigError, StoredTensor
from llmk.api.checkpoint import LONGEST_TEMPLATE
from llmk_gguf.config import architecture_of, read_config
from llmk_gguf.header import Header, StoredBlocks, read_header
from llmk_gguf.metadata import Metadata
from llmk_gguf.packed import Format, formats_of, packed_tensors
from llmk_gguf.specs import METHOD, Options
from llmk_gguf.tensors import Named, named_tensors, plain_tensor
from llmk_gguf.tokenizer import chat_templates, end_tokens, named_tokens, tokenizer_json

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_MOST_PARTS = 1000


def read_gguf(files: Sequence[CheckpointFile], options: Mapping[str, Any]) -> Checkpoint:
    """Implements :class:`llmk.api.ReadCheckpoint`."""
    reader = GgufReader(_parts(files), _options(options).weights == "packed")
    metadata, tensors = reader.read()
    architecture = architecture_of(metadata)
    config = read_config(metadata, architecture, tensors)
    if formats := reader.formats(named_tensors(list(tensors.values()), architecture, config["head_dim"])):
        modules = {module: format.name for module, format in formats.items()}
        config["quantization_config"] = {"quant_method": METHOD, "modules": modules}
    templates = chat_templates(metadata)
    _check_templates(metadata, templates)
    tokenizer_config: dict[str, Any] = dict(named_tokens(metadata))
    if templates is not None:
        tokenizer_config["chat_template"] = templates
    by_name = (
        {"default": templates} if isinstance(templates, str) else {t["name"]: t["template"] for t in templates or ()}
    )
    ends = [token for token in end_tokens(metadata) if 0 <= token < config["vocab_size"]]
    first = reader.files[0]
    return Checkpoint(
        path=first.path,
        config=config,
        generation_config={"eos_token_id": ends} if ends else {},
        tokenizer_config=tokenizer_config,
        chat_template=by_name.get("default"),
        weight_bytes=sum(tensor.stop - tensor.start for tensor in tensors.values()),
        reader=reader,
    )


def _options(given: Mapping[str, Any]) -> Options:
    try:
        return Options.model_validate(dict(given))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        known = ", ".join(Options.model_fields)
        raise ConfigError(f"[plugin.gguf] has {wrong}", hint=f"its options are {known}") from error


@dataclass(frozen=True, slots=True)
class GgufReader:
    """Implements :class:`llmk.api.CheckpointReader`: the parts of one model, of which the first has the metadata;
    ``packed``, whether quantized weights stay so in memory."""

    files: tuple[CheckpointFile, ...]
    packed: bool = False

    def read(self) -> tuple[Metadata, dict[str, StoredBlocks]]:
        """The metadata, and all tensors by their names in the files. Raises CheckpointError."""
        headers = [read_header(file) for file in self.files]
        metadata = Metadata(self.files[0], headers[0].metadata)
        _check_parts(metadata, headers)
        tensors: dict[str, StoredBlocks] = {}
        for header in headers:
            for tensor in header.tensors:
                if tensor.name in tensors:
                    raise metadata.refuse(f"and {tensor.file.name} both have the tensor {tensor.name!r}")
                tensors[tensor.name] = tensor
        return metadata, tensors

    def tensors(self) -> Sequence[StoredTensor]:
        """As the protocol says."""
        metadata, tensors = self.read()
        architecture = architecture_of(metadata)
        head_dim = read_config(metadata, architecture, tensors)["head_dim"]
        named = list(named_tensors(list(tensors.values()), architecture, head_dim))
        formats, found = self.formats(named), list[StoredTensor]()
        for one in named:
            if one.name.endswith(".weight") and one.module in formats:
                found += packed_tensors(one, formats[one.module])
            else:
                found.append(plain_tensor(one, architecture.norm_offset))
        return found

    def formats(self, named: Iterable[Named]) -> dict[str, Format]:
        """The formats of modules whose weights stay packed, by their names."""
        return formats_of(list(named)) if self.packed else {}

    def tokenizer(self) -> str:
        """As the protocol says."""
        return tokenizer_json(Metadata(self.files[0], read_header(self.files[0]).metadata))


def _parts(files: Sequence[CheckpointFile]) -> tuple[CheckpointFile, ...]:
    """All parts of the model that ``files`` are of, in order."""
    first = files[0]
    match = _PART.fullmatch(first.name)
    stems = {found[1] if (found := _PART.fullmatch(file.name)) else file.name for file in files}
    if len(stems) > 1:
        raise CheckpointError(
            f"{first.folder} holds several models as GGUF: {', '.join(sorted(file.name for file in files))}",
            hint=f"name one of the files: {first}",
        )
    if match is None:
        return (first,)
    count = int(match[3])
    if not 0 < count <= _MOST_PARTS:
        raise CheckpointError(f"{first} is one of {count} parts, not of 1 to {_MOST_PARTS}", hint="rename it")
    names = [f"{match[1]}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
    parts = tuple(CheckpointFile(first.folder, name) for name in names)
    if missing := [file.name for file in parts if not file.is_there]:
        raise CheckpointError(
            f"{first.folder} lacks {len(missing)} of the {count} parts of the model: {', '.join(missing[:5])}",
            hint="download the missing parts into that folder",
        )
    return parts


def _check_parts(metadata: Metadata, headers: Sequence[Header]) -> None:
    count = metadata.whole("split.count") or 1
    if count != len(headers):
        raise metadata.refuse(
            f"says that its model has {count} parts, and there are {len(headers)}",
            hint="parts are named NAME-00001-of-0000N.gguf, in one folder",
        )


def _check_templates(metadata: Metadata, templates: str | list[dict[str, str]] | None) -> None:
    texts = [templates] if isinstance(templates, str) else [entry["template"] for entry in templates or ()]
    for text in texts:
        if len(text.encode()) > LONGEST_TEMPLATE:
            raise metadata.refuse(f"has a chat template of more than {LONGEST_TEMPLATE:,} bytes")
