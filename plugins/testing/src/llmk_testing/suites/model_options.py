"""The case of a config's options at other values, one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from llmk.api import LlmkError, ModelSpec
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.describing import facts_of
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import ModelExample
from llmk_testing.suites.model_switches import is_activation, switches
from llmk_testing.suites.model_texts import compare

Config = Mapping[str, Any]
Harness = Callable[..., ModelHarness]

_ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast", "quick_gelu", "relu", "relu2", "mish")
"""Names in configs of activations that engines took for each other."""
_ROPES: tuple[Config, ...] = (
    {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "attention_factor": 0.7,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    {
        "rope_type": "llama3",
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 8.0,
        "original_max_position_embeddings": 32,
    },
)
"""What is put in place of default settings of RoPE."""
_HEADS = ("num_key_value_heads", "head_dim")


def check_options(
    spec: ModelSpec, bench: Bench, example: ModelExample, folder: Callable[[], Path], harness: Harness
) -> str:
    """Raises AssertionError unless a checkpoint with another value of one option is refused, or has the oracle's
    logits."""
    if example.vary is None or example.filled is None:
        raise Skip("the example can't be written with another config (ModelExample.vary)")
    checkpoint, tried = read_checkpoint(folder()), 0
    for change in _changes(example.filled(checkpoint.config)):
        with suppress(LlmkError):
            facts_of(spec, replace(checkpoint, config={**checkpoint.config, **change}))
            tried += _tried(spec, bench, example, harness, change)
    return f"{tried} options"


def _changes(config: Config) -> Iterator[Config]:
    """What is changed, one thing at a time."""
    for key, value in switches(config):
        yield {key: not value}
    for key, value in sorted(config.items()):
        if is_activation(key):
            yield from ({key: name} for name in _ACTIVATIONS if name != value)
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "default":
        yield from ({"rope_parameters": {**rope, **other}} for other in _ROPES)
    sizes = {key: config[key] for key in _HEADS if type(config.get(key)) is int}
    yield {key: 1 if key == "num_key_value_heads" else value + 8 for key, value in sizes.items()}


def _tried(spec: ModelSpec, bench: Bench, example: ModelExample, harness: Harness, change: Config) -> bool:
    """Whether there is such a model, which is then compared."""
    assert example.vary is not None
    with TemporaryDirectory(prefix="llmk-") as target:
        try:
            example.vary(Path(target), **change)
            example.logits(Path(target), [3, 4, 5], torch.float32)
        except Exception:  # the oracle has none
            return False
        facts_of(spec, read_checkpoint(Path(target)))
        compare(bench, example, harness(Path(target)), Path(target), f"with {json.dumps(change)}")
    return True
