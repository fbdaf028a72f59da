"""Reads what a checkpoint folder says of itself, without loading a tensor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from llmk.api import Checkpoint, CheckpointError, ModelNotFound


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads the small files of a checkpoint folder in the Hugging Face layout.

    Raises ModelNotFound where there is no such folder, CheckpointError where it has no ``config.json`` or a file is not
    valid JSON.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise _not_found(str(path), folder)
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"{folder} has no config.json, so it is not a checkpoint in the Hugging Face layout",
            hint="name the folder that holds config.json, the tokenizer and the *.safetensors files",
        )
    tokenizer_config = _read_json(folder / "tokenizer_config.json")
    weights = _weight_files(folder)
    return Checkpoint(
        path=folder.resolve(),
        config=_read_json(folder / "config.json"),
        generation_config=_read_json(folder / "generation_config.json"),
        tokenizer_config=tokenizer_config,
        chat_template=_chat_template(folder, tokenizer_config),
        weight_files=weights,
        weight_bytes=sum(file.stat().st_size for file in weights if file.is_file()),
    )


def _not_found(path: str, folder: Path) -> ModelNotFound:
    if folder.is_file():
        return ModelNotFound(f"{path} is a file, not a checkpoint folder", hint=f"name its folder: {folder.parent}")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        hint = f"if it is a hub id, download it first: hf download {path} --local-dir ./{path.partition('/')[2]}"
        return ModelNotFound(f"there is no checkpoint folder {path}", hint=hint)
    return ModelNotFound(f"there is no checkpoint folder {path}", hint="check the path; it must be a folder")


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read as JSON: {error}", hint="download the file again") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} holds a {type(data).__name__}, not a JSON object")
    return data


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        by_name = {entry.get("name"): entry.get("template") for entry in template}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _weight_files(folder: Path) -> tuple[Path, ...]:
    """The files that the index names, whether or not they are there; without an index, those in the folder."""
    index = _read_json(folder / "model.safetensors.index.json")
    if index:
        names = {str(name) for name in dict(index.get("weight_map") or {}).values()}
    else:
        found = sorted(folder.glob("model*.safetensors")) or folder.glob("*.safetensors")
        names = {file.name for file in found}
    return tuple(folder.resolve() / name for name in sorted(names, key=_natural))


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts ``model-10`` behind ``model-2``."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
