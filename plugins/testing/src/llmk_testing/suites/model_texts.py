"""Cases of a family's texts and numbers: how long texts are, a tied head that is stored, numbers at other values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from llmk.api import Checkpoint, LlmkError, ModelSpec
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.tree import Head, Rope
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.comparing import check_logits
from llmk_testing.describing import facts_of, program_of
from llmk_testing.files import copied, tensors_of
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import ModelExample

_LENGTHS = (
    *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length"),
    *("max_target_positions", "model_max_length"),
)
"""Keys of configs that say how long texts may be."""
_LONGEST = 300
_OF_TRAINING = ("dropout", "drop", "init", "loss", "jitter", "noise", "_std", "coef")
_FRACTIONS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_emb_fraction")
"""Numbers of how much of a head is rotated."""
_FACTOR = 1.7
_STRETCH = 4.0
_ODD_SIZES = ("vocab_size", "sliding_window", "attention_window_size", "local_window_size")
_SHORT = 12

Harness = Callable[..., ModelHarness]


def checks(
    spec: ModelSpec, bench: Bench, example: ModelExample, folder: Callable[[], Path], harness: Harness
) -> dict[str, Callable[[], str | None]]:
    """Cases by name, as those of the files."""
    return {
        "texts may be as long as the config says": partial(_check_length, spec, example, folder),
        "windows of attention are the config's": partial(_check_windows, spec, example, folder),
        "long texts have the oracle's logits": partial(_check_long, bench, example, folder, harness),
        "a tied head may be stored": partial(_check_tied, spec, bench, example, folder, harness),
        "numbers of the config, at other values, are the oracle's": partial(
            _check_numbers, spec, bench, example, folder, harness
        ),
    }


def _check_length(spec: ModelSpec, example: ModelExample, folder: Callable[[], Path]) -> str:
    """Raises AssertionError unless a length beyond the family's own is the length of texts. States without attention
    have no longest text."""
    checkpoint = read_checkpoint(folder())
    facts = facts_of(spec, checkpoint)
    found = facts.max_model_len
    if not facts.attention:
        return "the model has no attention"
    config = checkpoint.config
    keys = [key for key in _LENGTHS if type(config.get(key)) is int and _is_known(example, config, key)]
    for key in keys:
        longer = 2 * max(found, config[key])
        with suppress(LlmkError):  # it may depend on others
            other = facts_of(spec, replace(checkpoint, config={**config, key: longer})).max_model_len
            assert other != found, f"max_model_len is {found} with {key} = {config[key]} and with {longer}"
    _check_stretched(spec, checkpoint)
    return ", ".join(keys) or "the config has none"


def _check_windows(spec: ModelSpec, example: ModelExample, folder: Callable[[], Path]) -> str:
    """Raises AssertionError where attention has a window that the config does not have: texts of the kit are shorter
    than most, and would not show it."""
    checkpoint = read_checkpoint(folder())
    config = example.filled(checkpoint.config) if example.filled else checkpoint.config
    known = {*_integers(config), *_integers(checkpoint.config)}
    for site in facts_of(spec, checkpoint).attention:
        window = site.sliding_window
        assert window is None or window in known, (
            f"attention at {site.site!r} has a window of {window} tokens, which is no number of the config"
        )
    return f"{len(known)} numbers"


def _integers(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _integers(each)
    elif type(value) is int:
        yield value


def _check_stretched(spec: ModelSpec, checkpoint: Checkpoint) -> None:
    """YaRN's texts are longer than those before the extension, as the tree's rotations say, where all are stretched."""
    rope, longest = checkpoint.config.get("rope_parameters"), checkpoint.config.get("max_position_embeddings")
    if not spec.tree or not isinstance(rope, dict) or rope.get("rope_type") != "default" or type(longest) is not int:
        return
    own = {**rope, "rope_type": "yarn", "factor": _STRETCH, "original_max_position_embeddings": longest}
    stretched = replace(checkpoint, config={**checkpoint.config, "rope_parameters": own})
    with suppress(LlmkError):
        ropes = tree_ropes(spec, stretched)
        found = facts_of(spec, stretched).max_model_len
        right = min((each.max_model_len for each in ropes), default=found)
        if all(each.parameters["rope_type"] == "yarn" for each in ropes):
            assert found >= right, f"max_model_len is {found} with {own}, its rotations are for {right} positions"


def tree_ropes(spec: ModelSpec, checkpoint: Checkpoint) -> list[Rope]:
    """The rotations of a family's tree."""
    return list(_ropes(program_of(spec, checkpoint)))


def _ropes(part: Any) -> Iterator[Rope]:
    """The rotations of a part of a tree."""
    if isinstance(part, Rope):
        yield part
    elif is_dataclass(part) and not isinstance(part, type):
        for field in fields(part):
            yield from _ropes(getattr(part, field.name))
    elif isinstance(part, tuple):
        for each in part:
            yield from _ropes(each)


def _is_known(example: ModelExample, config: Mapping[str, Any], key: str) -> bool:
    """Whether the oracle's configs have a key, or would be refused without it."""
    if example.filled is None:
        return True
    try:
        return key in example.filled({other: value for other, value in config.items() if other != key})
    except ValueError:
        return True


def _check_long(bench: Bench, example: ModelExample, folder: Callable[[], Path], harness: Harness) -> str:
    """Raises AssertionError unless the last tokens of a text are right: one as long as the model takes, if that is
    short."""
    model = harness()
    facts = model.boot.facts
    count = min(facts.max_model_len, _LONGEST)
    text = torch.randint(3, facts.vocab_size, (count,), generator=bench.random(example.name, "long")).tolist()
    rows = [row for part in (text[:-2], text[-2:-1], text[-1:]) for row in model.step([("long", part)])]
    right = example.logits(folder(), text, torch.float32)
    check_logits(torch.cat(rows)[-3:], right[-3:], example.tolerance, f"the last of {count} tokens (seed {bench.seed})")
    return f"{count} tokens"


def _check_tied(
    spec: ModelSpec, bench: Bench, example: ModelExample, folder: Callable[[], Path], harness: Harness
) -> str:
    """Raises AssertionError unless a tied checkpoint is read that stores its head nevertheless."""
    if not spec.tree:
        return "the family gives no tree"
    program = program_of(spec, read_checkpoint(folder()))
    heads = [leaf for leaf in program.leaves() if isinstance(leaf, Head) and leaf.tied]
    table, stored = f"{program.model.embed.at}.weight", tensors_of(folder())
    name = f"{heads[0].at}.weight" if heads else ""
    if not heads or name in stored or table not in stored:
        return "its head is not tied"
    with TemporaryDirectory(prefix="llmk-") as target:
        both = copied(folder(), Path(target) / "both", lambda tensors: tensors.update({name: tensors[table].clone()}))
        compare(bench, example, harness(both), both, f"with {name} next to the embedding to which it is tied")
    return name


def _check_numbers(
    spec: ModelSpec, bench: Bench, example: ModelExample, folder: Callable[[], Path], harness: Harness
) -> str:
    """Raises AssertionError unless a checkpoint with other numbers is refused or has the oracle's logits."""
    if example.vary is None or example.filled is None:
        return "the example can't be written with another config (ModelExample.vary)"
    config = example.filled(read_checkpoint(folder()).config)
    numbers = dict(_numbers(config))
    stretched = _stretched(numbers.get("rope_parameters", config.get("rope_parameters")))
    for change in ({**numbers, **stretched}, numbers) if stretched else (numbers,):
        with TemporaryDirectory(prefix="llmk-") as target, suppress(Skip):
            model, other = _written(spec, example, Path(target), change, harness)
            compare(bench, example, model, other, f"with {json.dumps(change)}")
            return ", ".join(change) or "there are none"
    return "there is no such model"


def _written(
    spec: ModelSpec, example: ModelExample, folder: Path, change: Mapping[str, Any], harness: Harness
) -> tuple[ModelHarness, Path]:
    """The model with a changed config. Raises Skip where the oracle has none, or the family refuses it."""
    assert example.vary is not None
    try:
        example.vary(folder, **change)
        example.logits(folder, [3, 4, 5], torch.float32)
    except Exception as error:
        raise Skip(f"the oracle has no such model: {error}") from error
    try:
        facts_of(spec, read_checkpoint(folder))
    except LlmkError as error:
        raise Skip(f"refused: {error}") from error
    return harness(folder), folder


def compare(bench: Bench, example: ModelExample, model: ModelHarness, folder: Path, what: str) -> None:
    """Raises AssertionError unless the logits of a short text are the oracle's."""
    random = bench.random(example.name, "other")
    text = torch.randint(3, model.boot.facts.vocab_size, (_SHORT,), generator=random).tolist()
    right = example.logits(folder, text, torch.float32)
    check_logits(model.step([("other", text)])[0], right, example.tolerance, f"{what} (seed {bench.seed})")


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Numbers with other values: those that are no integers, RoPE's among them, and a vocabulary and windows of odd
    sizes."""
    for key in _ODD_SIZES:
        if type(config.get(key)) is int and config[key] > 1:
            yield key, (config[key] | 1) + 2
    for key, value in sorted(config.items()):
        if isinstance(value, float) and value and key not in _FRACTIONS and not any(w in key for w in _OF_TRAINING):
            yield key, value * _FACTOR
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and isinstance(rope.get("rope_theta"), (int, float)):
        yield "rope_parameters", {**rope, "rope_theta": rope["rope_theta"] * _FACTOR}


def _stretched(rope: Any) -> dict[str, Any]:
    """Other RoPE parameters, whose positions are divided by a factor."""
    if not isinstance(rope, dict) or rope.get("rope_type") != "default":
        return {}
    return {"rope_parameters": {**rope, "rope_type": "linear", "factor": 4.0}}
