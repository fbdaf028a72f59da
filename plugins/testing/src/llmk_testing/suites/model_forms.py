"""Cases of configs that say the same in another form, and of one that extends texts by LongRoPE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from llmk.api import LlmkError, ModelSpec
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk_testing.case import Skip
from llmk_testing.describing import facts_of
from llmk_testing.model_example import ModelExample
from llmk_testing.suites.model_files import meaning
from llmk_testing.suites.model_texts import tree_ropes

Config = Mapping[str, Any]

_ORIGINAL = 64
"""Tokens of texts before an extension by LongRoPE."""


def checks(spec: ModelSpec, example: ModelExample, folder: Callable[[], Path]) -> dict[str, Callable[[], str | None]]:
    """Cases by name, as those of the files."""
    return {
        "configs in another form mean the same": partial(_check_forms, spec, example, folder),
        "LongRoPE is served to its original length by default": partial(_check_longrope, spec, folder),
    }


def _check_forms(spec: ModelSpec, example: ModelExample, folder: Callable[[], Path]) -> str:
    """Raises AssertionError where a config in another form, which means the same to the oracle, means another model to
    the family, or is refused."""
    if example.filled is None:
        raise Skip("the example doesn't know what configs mean (ModelExample.filled)")
    checkpoint, tried, wrong = read_checkpoint(folder()), 0, []
    checkpoint = replace(checkpoint, config=_with_its_own_base(checkpoint.config))
    right, filled = meaning(spec, checkpoint), _filled(example, checkpoint.config)
    for what, config in _forms(checkpoint.config):
        if _filled(example, config) != filled or filled is None:
            continue
        tried += 1
        found = meaning(spec, replace(checkpoint, config=config))
        if found != right:
            wrong.append(f"{what} is {'refused' if found is None else 'another model'}")
    assert not wrong, f"of {tried} other forms of the config, " + "; ".join(wrong[:12])
    return f"{tried} forms"


def _with_its_own_base(config: Config) -> Config:
    """With a base of rotations that is no default."""
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or not isinstance(rope.get("rope_theta"), (int, float)):
        return config
    return {**config, "rope_parameters": {**rope, "rope_theta": 3.5 * rope["rope_theta"]}}


def _filled(example: ModelExample, config: Config) -> Config | None:
    """What a config means to the oracle; ``None``: it refuses it."""
    assert example.filled is not None
    try:
        return example.filled(config)
    except ValueError:
        return None


def _forms(config: Config) -> Iterator[tuple[str, Config]]:
    """Whole numbers without a fraction, keys that are null in place of absent, and settings of RoPE under their older
    names."""
    for key, value in sorted(config.items()):
        if isinstance(value, float) and value.is_integer():
            yield f"{key} = {int(value)}, an integer", {**config, key: int(value)}
        if key not in ("architectures", "model_type"):
            yield f"{key} = null", {**config, key: None}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and not any(isinstance(value, dict) for value in rope.values()):
        rest = {key: value for key, value in config.items() if key != "rope_parameters"}
        base = {"rope_theta": rope["rope_theta"]} if "rope_theta" in rope else {}
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        for name in ("rope_type", "type"):
            own = {(name if key == "rope_type" else key): value for key, value in scaling.items()}
            own = own if rope.get("rope_type", "default") != "default" else {}
            yield f"rope_scaling with {name}", {**rest, **base, "rope_scaling": own or None}


def _check_longrope(spec: ModelSpec, folder: Callable[[], Path]) -> str:
    """Raises AssertionError where texts are served by default that are longer than those before the extension: their
    factors would be those of long texts for all."""
    if not spec.tree:
        raise Skip("the family has no tree, whose rotations say how texts are extended")
    checkpoint = read_checkpoint(folder())
    rope, ropes = checkpoint.config.get("rope_parameters"), tree_ropes(spec, checkpoint)
    if not ropes or not isinstance(rope, dict) or rope.get("rope_type", "default") not in ("default", "longrope"):
        return "it has no rotations that could be so"
    pairs = ropes[0].rotary_dim // 2
    own = {
        **rope,
        "rope_type": "longrope",
        "short_factor": [1.0] * pairs,
        "long_factor": [2.0] * pairs,
        "factor": 4.0,
        "original_max_position_embeddings": _ORIGINAL,
    }
    config = {**checkpoint.config, "rope_parameters": own, "max_position_embeddings": 4 * _ORIGINAL}
    extended = replace(checkpoint, config={**config, "original_max_position_embeddings": _ORIGINAL})
    try:
        facts = facts_of(spec, extended)
    except LlmkError:
        return "it is refused"
    if any(each.parameters["rope_type"] != "longrope" for each in tree_ropes(spec, extended)):
        return "not all of its rotations are so"
    served = facts.default_model_len or facts.max_model_len
    assert served <= _ORIGINAL, (
        f"of a checkpoint with LongRoPE, {served} tokens are served by default, which is rotated by the long factors,"
        f" also where it is short; before the extension it had {_ORIGINAL} (llmk.tree.default_length)"
    )
    return f"{served} tokens"
