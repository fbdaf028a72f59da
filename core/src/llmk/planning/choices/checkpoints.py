"""Reads the checkpoint that the user names: a folder in the Hugging Face layout, or what a plugin's format claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmk.api import Checkpoint, CheckpointError, CheckpointFile, CheckpointFormatSpec, ModelNotFound, SelectionError
from llmk.api.errors import LlmkError, PluginError, describe
from llmk.api.matching import evaluate
from llmk.api.verdict import Reason
from llmk.kernel.contracts import NotFollowed, check_made
from llmk.kernel.first_party import missing_wheel
from llmk.kernel.loader import load_object, not_followed
from llmk.kernel.registry import Registered, Registry
from llmk.kernel.watchdog import watched
from llmk.planning.checkpoint.fields import check_config, check_generation_config, check_tokenizer_config
from llmk.planning.checkpoint.folder import CONFIG_FILE, read_checkpoint
from llmk.planning.choices.models import find_checkpoint
from llmk.planning.choices.sources import fetch_model, near_names

if TYPE_CHECKING:
    from llmk.config import Config

Format = Registered[CheckpointFormatSpec]

_MOST_FILES = 10_000
"""Files of a folder that formats are asked about."""


def choose_checkpoint(registry: Registry, config: Config, *, outline: bool = False) -> Checkpoint:
    """The checkpoint that ``model.path`` names, downloaded if need be, or the demo model. ``outline``: its weights are
    not needed.

    Raises ModelNotFound, CheckpointError, SelectionError where two sources or formats claim it, and PluginError where a
    plugin fails.
    """
    named = find_checkpoint(registry, config.model.path)
    fetched = fetch_model(registry, config, named, outline=outline)
    if fetched is None:
        try:
            return _read_checkpoint(registry, config, named)
        except ModelNotFound as error:
            near = () if Path(named).exists() else near_names(registry, config, named)
            raise _with_names(error, near) from None
    return replace(_read_checkpoint(registry, config, str(fetched.path)), name=fetched.name)


def _read_checkpoint(registry: Registry, config: Config, named: str) -> Checkpoint:
    path = Path(named).expanduser()
    if path.is_file():
        files = [_named(path)]
    elif path.is_dir() and not CheckpointFile(path.resolve(), CONFIG_FILE).is_there:
        files = _files(path.resolve())
    else:
        return read_checkpoint(named)
    formats = registry.of(CheckpointFormatSpec)
    claimed = {each.spec.id: [file for file in files if _claims(each, file)] for each in formats}
    able = [each for each in formats if claimed[each.spec.id]]
    if not able:
        if path.is_dir():
            return read_checkpoint(named)
        raise _unknown(path, formats)
    if len(able) > 1:
        names = " and ".join(f"{each.spec.id} of {each.plugin.wheel}" for each in able)
        hint = f'leave one out: [plugins] disable = ["{able[-1].plugin.distribution}"]'
        raise SelectionError(f"{names} both claim {path}", hint=hint)
    return _read(able[0], claimed[able[0].spec.id], config)


def _named(path: Path) -> CheckpointFile:
    """The file that the user named, which may be a link to anywhere."""
    file, real = CheckpointFile(path.parent.resolve(), path.name), path.resolve()
    try:
        file.open().close()
    except CheckpointError:
        return CheckpointFile(real.parent, real.name)
    return file


def _files(folder: Path) -> list[CheckpointFile]:
    names = sorted(path.name for path in folder.iterdir() if path.name.isprintable() and not path.name.startswith("."))
    return [file for name in names[:_MOST_FILES] if (file := CheckpointFile(folder, name)).path.is_file()]


def _claims(each: Format, file: CheckpointFile) -> bool:
    with watched(f"the claim of {each.spec.id} ({each.plugin.wheel})", each.plugin.way_out):
        return bool(evaluate(each.spec.claims, file))


def _with_names(error: ModelNotFound, names: Sequence[str]) -> ModelNotFound:
    hint = f"did you mean {' or '.join(names)}?" if names else error.hint
    return ModelNotFound(error.message, hint=hint)


def _unknown(path: Path, formats: Sequence[Format]) -> ModelNotFound:
    """The error for a file that no format claims."""
    hint = f"name a checkpoint's folder: {path.parent}"
    if wheel := missing_wheel(path.suffix.removeprefix(".")):
        hint = f"pip install {wheel}, which reads such files"
    known = ", ".join(each.spec.name for each in formats) or "none"
    return ModelNotFound(f"{path} is a file in no format of checkpoints that is installed ({known})", hint=hint)


def _read(chosen: Format, files: Sequence[CheckpointFile], config: Config) -> Checkpoint:
    spec, plugin = chosen.spec, chosen.plugin
    read = load_object(spec.implementation, plugin=plugin, kind="checkpoint_format", id=spec.id)
    try:
        with watched(f"reading {files[0]} by {spec.id} ({plugin.wheel})", plugin.way_out):
            found = read(files, config.plugin.get(plugin.name, {}))
    except (LlmkError, KeyboardInterrupt):
        raise
    except BaseException as error:
        message = f"{spec.id} of {plugin.wheel} can't read {files[0]}"
        raise PluginError(message, reasons=[Reason("read_raised", found=describe(error))]) from error
    try:
        check_made(getattr(found, "reader", None), "checkpoint_reader")
    except NotFollowed as error:
        raise not_followed(spec.implementation, plugin.wheel, spec.id, error) from error
    checkpoint: Checkpoint = found
    check_config(checkpoint.path, checkpoint.config)
    check_generation_config(checkpoint.path, checkpoint.generation_config, checkpoint.config)
    check_tokenizer_config(checkpoint.path, checkpoint.tokenizer_config)
    return checkpoint
