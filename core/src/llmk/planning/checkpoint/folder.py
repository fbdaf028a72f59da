"""Reads the metadata of a checkpoint folder, without loading a tensor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from llmk.api import Checkpoint, CheckpointError, ModelNotFound
from llmk.api.checkpoint import LONGEST_TEMPLATE, CheckpointFile, files_in
from llmk.kernel.first_party import how_to_install, missing_wheel
from llmk.planning.checkpoint.fields import check_config, check_generation_config, check_tokenizer_config

CONFIG_FILE = "config.json"
_INDEX = "model.safetensors.index.json"
_INNER = (f"*/{CONFIG_FILE}", f"snapshots/*/{CONFIG_FILE}")
"""Where a checkpoint is below the folder that is named: that of several models, or of the hub's cache."""


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads the small files of a checkpoint folder in the Hugging Face layout.

    Raises ModelNotFound if there is no such folder, CheckpointError if it has no ``config.json``, or if a file is not
    valid JSON, is outside the folder, or has a field of the wrong type that llmk reads.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise _not_found(str(path), folder)
    folder = folder.resolve()
    config_file = CheckpointFile(folder, CONFIG_FILE)
    if not config_file.is_there:
        raise _no_config(folder)
    config = check_config(config_file, config_file.read_json())
    generation, tokenizer = (CheckpointFile(folder, f"{kind}_config.json") for kind in ("generation", "tokenizer"))
    tokenizer_config = check_tokenizer_config(tokenizer, tokenizer.read_json())
    weights = _weight_files(folder)
    return Checkpoint(
        path=folder,
        config=config,
        generation_config=check_generation_config(generation, generation.read_json(), config),
        tokenizer_config=tokenizer_config,
        chat_template=_chat_template(folder, tokenizer_config),
        weight_files=weights,
        weight_bytes=sum(file.size for file in weights if file.is_there),
    )


def _not_found(path: str, folder: Path) -> ModelNotFound:
    if folder.is_file():
        return ModelNotFound(f"{path} is a file, not a checkpoint folder", hint=f"name its folder: {folder.parent}")
    if re.fullmatch(r"\w[\w.-]*/[\w.-]+", path) and folder.suffix != ".gguf":
        hint = f"if it is the name of a model, {how_to_install('hub') or 'enable a source of models: llmk plugins'}"
        return ModelNotFound(f"there is no checkpoint folder {path}", hint=hint)
    hint = "check the path"
    if folder.is_symlink():
        hint = f"it is a link to {folder.readlink()}, which is not there"
    elif re.match(r"\w[\w+]+://", path):
        hint = "a model is a folder or file on this machine, or a name: org/name"
    elif "/" not in path and "\\" not in path and not path.startswith(("~", ".")):
        hint = "check the path; on a hub, a model's name starts with its owner's: org/name"
    return ModelNotFound(f"there is no checkpoint folder {path}", hint=hint)


def _no_config(folder: Path) -> CheckpointError:
    others = [file for file in files_in(folder, "*.*") if missing_wheel(file.path.suffix[1:])]
    if others and not files_in(folder, "*.safetensors"):
        wheel = missing_wheel(others[0].path.suffix[1:])
        return CheckpointError(
            f"{folder} has no config.json, and no installed format of checkpoints reads {others[0].name}",
            hint=f"pip install {wheel}, which reads such files",
        )
    if ggufs := files_in(folder, "*.gguf"):
        hint = f"name a file that is a model, such as {ggufs[0].path}, and see that llmk-gguf is active: llmk plugins"
        return CheckpointError(f"{folder} has no config.json, and no active plugin reads {ggufs[0].name}", hint=hint)
    if (adapter := CheckpointFile(folder, "adapter_config.json")).is_there:
        base = adapter.read_json().get("base_model_name_or_path") or "MODEL"
        hint = f"serve it with the model that it adapts: llmk serve {base} --set adapters.NAME={folder}"
        return CheckpointError(f"{folder} is an adapter (LoRA), which is not a model of its own", hint=hint)
    if (pipeline := CheckpointFile(folder, "model_index.json")).is_there:
        kind = pipeline.read_json().get("_class_name") or "another kind"
        hint = "llmk serves language models: name a folder with config.json, tokenizer and *.safetensors"
        return CheckpointError(f"{folder} is a pipeline of diffusers ({kind}), not a language model", hint=hint)
    inner = next((each.parent for pattern in _INNER for each in sorted(folder.glob(pattern))), None)
    return CheckpointError(
        f"{folder} has no config.json, so it is not a checkpoint in the Hugging Face layout",
        hint=f"{inner} has one"
        if inner
        else "name the folder that holds config.json, the tokenizer and the *.safetensors files",
    )


def _chat_template(folder: Path, tokenizer_config: dict[str, Any]) -> str | None:
    file = CheckpointFile(folder, "chat_template.jinja")
    if file.is_there:
        return file.read_text(LONGEST_TEMPLATE)
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def _weight_files(folder: Path) -> tuple[CheckpointFile, ...]:
    """The files that the index names, whether or not they are there; without an index, those in the folder."""
    file = CheckpointFile(folder, _INDEX)
    if not file.is_there:
        found = files_in(folder, "model*.safetensors") or files_in(folder, "*.safetensors")
        return tuple(sorted(found, key=lambda file: _natural(file.name)))
    names = file.read_json().get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CheckpointError(
            f"{file} has no valid weight_map, which maps each tensor to its file",
            hint="download the file again, or remove it: without it, the safetensors files in the folder are used",
        )
    try:
        return tuple(CheckpointFile(folder, name) for name in sorted(set(names.values()), key=_natural))
    except CheckpointError as error:
        raise CheckpointError(f"the index {file} can't be trusted: {error.message}", hint=error.hint) from error


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key by which ``model-10`` comes after ``model-2``."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name) if part]
