"""Reads a checkpoint by the names and shapes that a tree states. Needs neither torch nor JAX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any

import ml_dtypes  # noqa: F401 -- teaches numpy bfloat16, in which safetensors returns tensors
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from llmk.api import Checkpoint, CheckpointError
from llmk.api.checkpoint import CheckpointFile
from llmk.tree import CausalLM, Embedding, Experts, Linear, Spec, lower, weight_map

Array = npt.NDArray[Any]
_PUBLISHED = "compare config.json with the one that the model's authors publish"
_LISTED = 5


def read_weights(model: CausalLM, checkpoint: Checkpoint) -> dict[str, Array]:
    """The tensors of a checkpoint under the names of the tree's weight map, in the stored dtypes. Tensors that are
    stored packed or under another name, which the tree states too, are taken apart and renamed.

    Raises:
        CheckpointError: a file is damaged or missing, the weights are quantized, or tensors are missing, unknown or of
            other shapes.
    """
    if checkpoint.quantization:
        raise CheckpointError(
            f"{checkpoint.path} has quantized weights, which the JAX runtime does not read",
            hint="use a checkpoint in float32 or 16 bits",
        )
    stored = {name: tensor for file in checkpoint.weight_files for name, tensor in _tensors(file)}
    program = lower(model, fuse=False)
    for leaf in program.leaves():
        for name, others in _other_names(leaf, stored):
            _rename(name, others, stored)
    ignored = re.compile("|".join(f"(?:{pattern})" for pattern in model.ignored))
    wanted = weight_map(program)
    if unknown := [name for name in stored if name not in wanted and not (model.ignored and ignored.fullmatch(name))]:
        raise CheckpointError(
            f"{checkpoint.path} has {len(unknown)} tensors that the model does not: {_listed(unknown)}", hint=_PUBLISHED
        )
    check_weights(model, stored)
    return {name: stored[name] for name in wanted}


def check_weights(model: CausalLM, weights: Mapping[str, Any]) -> None:
    """Checks that ``weights`` (arrays, by name) have all of a tree's tensors, in their shapes. Raises
    CheckpointError."""
    wanted = weight_map(lower(model, fuse=False))
    if missing := [name for name in wanted if name not in weights]:
        raise CheckpointError(
            f"the weights lack {len(missing)} of the model's {len(wanted)} tensors: {_listed(missing)}", hint=_PUBLISHED
        )
    for name, shape in wanted.items():
        if (found := tuple(weights[name].shape)) != shape:
            raise CheckpointError(f"{name} has the shape {list(found)}, not {list(shape)}", hint=_PUBLISHED)


def _tensors(file: CheckpointFile) -> Iterator[tuple[str, Array]]:
    file.open().close()  # refuses links that lead out of the folder
    try:
        with safe_open(file.path, "numpy") as reader:
            for name in reader.keys():  # noqa: SIM118 -- no mapping
                yield name, reader.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} can't be read: {error}", hint="download or copy the file again") from error


def _other_names(leaf: Spec, stored: Mapping[str, Array]) -> Iterator[tuple[str, dict[str, Array]]]:
    """The stored tensors of a spec that have another name than in the weight map, and what they are there."""
    if isinstance(leaf, Embedding):
        yield from ((name, {f"{leaf.at}.weight": stored[name]}) for name in leaf.aliases if name in stored)
    elif isinstance(leaf, Linear):
        modules = leaf.modules
        places = [*accumulate(modules.values())][:-1]
        for whole in (leaf.at, *leaf.aliases):
            for name, kind in ((f"{whole}.{kind}", kind) for kind in ("weight", "bias")):
                if whole not in modules and name in stored:
                    parts = np.split(stored[name], places)
                    yield name, {f"{module}.{kind}": part for module, part in zip(modules, parts, strict=True)}
    elif isinstance(leaf, Experts):
        gate, up, down = leaf.names
        for prefix in (leaf.at, *leaf.aliases):
            if (name := f"{prefix}.gate_up_proj") in stored:
                yield name, _one_by_one(leaf.at, (gate, up), (np.array_split(each, 2) for each in stored[name]))
            if (name := f"{prefix}.down_proj") in stored:
                yield name, _one_by_one(leaf.at, (down,), ([each] for each in stored[name]))


def _one_by_one(at: str, names: tuple[str, ...], experts: Iterable[list[Array]]) -> dict[str, Array]:
    return {
        f"{at}.{number}.{name}.weight": tensor
        for number, tensors in enumerate(experts)
        for name, tensor in zip(names, tensors, strict=True)
    }


def _rename(name: str, parts: Mapping[str, Array], stored: dict[str, Array]) -> None:
    del stored[name]
    for own, tensor in parts.items():
        if own in stored and not np.array_equal(stored[own], tensor):
            raise CheckpointError(
                f"{name} differs from {own}, which the model's config says are the same",
                hint="if it is a head with weights of its own, set tie_word_embeddings to false in config.json",
            )
        stored[own] = tensor


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
