"""Cases of a config's options, one at a time: switches say which tensors there are, and an activation must be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from llmk.api import LlmkError, ModelSpec
from llmk.nn.tensor_file import read_headers, weight_files
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.tree import weight_map
from llmk_testing.case import Skip
from llmk_testing.describing import facts_of, program_of
from llmk_testing.model_example import ModelExample

_OF_NO_WEIGHT = {
    *("use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits", "is_decoder"),
    *("is_encoder_decoder", "add_cross_attention", "torchscript", "tie_encoder_decoder", "chunk_size_feed_forward"),
    "rescale_prenorm_residual",
}
"""Switches of how a program runs, which all configs have, and of how weights are drawn before training."""
_NO_ACTIVATION = "no_such_activation"


def check_switches(spec: ModelSpec, example: ModelExample, folder: Callable[[], Path]) -> str:
    """Raises AssertionError unless a checkpoint that is written with a switch turned, and no other, is refused or has
    the tensors that the tree says."""
    if example.vary is None or example.filled is None or not spec.tree:
        raise Skip("the example can't be written with another config (ModelExample.vary), or the family has no tree")
    before, config = _stored(folder()), read_checkpoint(folder()).config
    tried, wrong = 0, []
    for key, value in switches(example.filled(config)):
        with TemporaryDirectory(prefix="llmk-") as target:
            written = False
            with suppress(Exception):  # where the oracle has no such model
                example.vary(Path(target), **{key: not value})
                written = True
            complaint = _complaint(spec, Path(target), before) if written else None
            tried += complaint is not None
            if complaint and _runs(example, Path(target)):
                wrong.append(f"with {key} = {not value}, {complaint}")
    assert not wrong, "; ".join(wrong)
    return f"{tried} switches"


def check_activations(spec: ModelSpec, folder: Callable[[], Path]) -> str:
    """Raises AssertionError unless an activation that there is not is refused by the key's name."""
    if not spec.tree:
        raise Skip("the family has no tree, and is described without its code")
    checkpoint = read_checkpoint(folder())
    keys = [key for key, value in checkpoint.config.items() if isinstance(value, str) and is_activation(key)]
    for key in keys:
        changed = replace(checkpoint, config={**checkpoint.config, key: _NO_ACTIVATION})
        try:
            facts_of(spec, changed)
            refusal = ""
        except LlmkError as error:
            refusal = str(error)
        assert key in refusal, (
            f"{key} = {_NO_ACTIVATION!r} is {f'refused without its name: {refusal}' if refusal else 'taken'}"
        )
    return f"{len(keys)} keys"


def _runs(example: ModelExample, folder: Path) -> bool:
    """Whether the oracle computes anything with a checkpoint."""
    try:
        example.logits(folder, [3, 4, 5], torch.float32)
    except Exception:
        return False
    return True


def is_activation(key: str) -> bool:
    """Whether a key of configs names an activation."""
    return key.endswith(("act", "activation", "act_fn", "activation_function"))


def switches(config: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The keys of a config that are on or off, but for those that change no number."""
    for key, value in sorted(config.items()):
        if isinstance(value, bool) and key not in _OF_NO_WEIGHT:
            yield key, value


def _stored(folder: Path) -> dict[str, list[int]]:
    """The shapes of a checkpoint's tensors, without dimensions of one element."""
    found = read_headers(weight_files(read_checkpoint(folder)))
    return {tensor.name: [size for size in tensor.shape if size != 1] for tensor in found}


def _complaint(spec: ModelSpec, folder: Path, before: Mapping[str, list[int]]) -> str | None:
    """What is wrong with the tree of a checkpoint, of which others of the kind have the tensors ``before``; ``None``
    where it is refused."""
    try:
        program = program_of(spec, read_checkpoint(folder))
    except LlmkError:
        return None
    stated = {name: [size for size in shape if size != 1] for name, shape in weight_map(program).items()}
    others = {tensor.name for leaf in program.leaves() if getattr(leaf, "aliases", ()) for tensor in leaf.tensors()}
    stored = _stored(folder)
    missing = [name for name, shape in stated.items() if stored.get(name, shape if name in others else None) != shape]
    unknown = [name for name in stored.keys() - before.keys() if name not in stated]
    if missing:
        return f"the tree has {missing[0]} {stated[missing[0]]}, which the checkpoint has not"
    return f"the checkpoint has {unknown[0]}, which the tree has not" if unknown else ""
