"""The part of the model suite that tests files: ``describe`` on configs, and the loading of tensors."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from llmk.api import AttentionFacts, Checkpoint, CheckpointError, LlmkError, ModelFacts, ModelSpec
from llmk.api.errors import describe
from llmk.kernel.interpreter import PYTHON
from llmk.nn.tensor_file import read_headers, weight_files
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.reference.rope.rotation import cos_sin_cache
from llmk.tree import Attend, Program, Rope, weight_map
from llmk_testing.bench import Bench
from llmk_testing.case import Skip
from llmk_testing.describing import facts_of, program_of
from llmk_testing.files import copied, tensors_of
from llmk_testing.model import ModelHarness
from llmk_testing.model_example import ModelExample
from llmk_testing.suites.model_switches import check_activations, check_switches

_SURPRISE = "model.layers.0.surprise.weight"
_ODD: Mapping[type, tuple[Any, ...]] = {
    bool: ("odd",),
    int: ("odd", -1, 0, [], None),
    float: ("odd", [], None),
    str: (7, []),
    list: ("odd", 3),
    dict: ("odd", [1]),
}
"""By the type of a config value: invalid values to put in its place."""

_ALONE = """
import json, sys
from pathlib import Path
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.kernel.loader import load_object
from llmk.tree import Config
kind, location, checkpoint = sys.argv[1], sys.argv[2], read_checkpoint(sys.argv[3])
load_object(location)(Config(checkpoint) if kind == "tree" else checkpoint)
print("torch" in sys.modules)
"""


def checks(
    spec: ModelSpec,
    bench: Bench,
    example: ModelExample,
    folder: Callable[[], Path],
    harness: Callable[..., ModelHarness],
) -> dict[str, Callable[[], str | None]]:
    """Cases by name. ``folder`` returns the example's checkpoint, ``harness`` loads one."""

    def needs_no_torch() -> None:
        kind, location = ("tree", spec.tree) if spec.tree else ("describe", spec.describe)
        command = [*PYTHON, "-c", _ALONE, kind, location, str(folder())]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
        assert done.returncode == 0, f"{location} fails in a separate process:\n{done.stderr[-2000:]}"
        assert done.stdout.strip() == "False", f"{location} imports torch, which `llmk explain` must do without"

    def survives_odd_configs() -> str:
        checkpoint = read_checkpoint(folder())
        complaints, tried = [], 0
        for key, value, config in odd_configs(checkpoint.config):
            tried += 1
            if complaint := _complaint(lambda config=config: facts_of(spec, replace(checkpoint, config=config)), key):  # type: ignore[misc]
                complaints.append(f"{key} = {value}: {complaint}")
        assert not complaints, f"{len(complaints)} of {tried} odd configs: " + "; ".join(complaints[:12])
        return f"{tried} configs"

    def has_the_weight_map() -> str:
        if not spec.tree:
            raise Skip("the family gives no tree")
        return _check_weight_map(spec, read_checkpoint(folder()))

    def names_missing_tensors() -> str:
        names = list(_read_tensors(folder(), harness()))
        order = torch.randperm(len(names), generator=bench.random("missing")).tolist()
        chosen = [names[at] for at in (order if bench.thorough else order[:2])]
        for name in chosen:
            _refused(folder(), harness, lambda tensors, name=name: tensors.pop(name), name)  # type: ignore[misc]
        return f"{len(chosen)} of {len(names)} tensors"

    def names_unknown_tensors() -> None:
        _refused(folder(), harness, lambda tensors: tensors.update({_SURPRISE: torch.zeros(3)}), _SURPRISE)

    def names_wrong_shapes() -> str:
        name = max(_read_tensors(folder(), harness()).items(), key=lambda item: item[1].numel())[0]
        _refused(folder(), harness, lambda tensors: tensors.update({name: tensors[name][1:]}), name)
        return name

    return {
        **_of_example(spec, example, folder, harness),
        "describing needs no torch": needs_no_torch,
        "odd configs are refused by the key's name": survives_odd_configs,
        "absent keys have the oracle's defaults": partial(_check_defaults, spec, example, folder),
        "the tree's weight map is the checkpoint's": has_the_weight_map,
        "missing tensors are named": names_missing_tensors,
        "unknown tensors are named": names_unknown_tensors,
        "tensors of another shape are named": names_wrong_shapes,
    }


def _read_tensors(folder: Path, harness: ModelHarness) -> dict[str, Tensor]:
    """The stored tensors that the model does not ignore."""
    ignored, stored = harness.model.ignored_weights, sorted(tensors_of(folder).items())
    return {name: each for name, each in stored if not any(re.fullmatch(pattern, name) for pattern in ignored)}


def _check_refusals(
    spec: ModelSpec, example: ModelExample, folder: Callable[[], Path], harness: Callable[..., ModelHarness]
) -> str:
    """Raises AssertionError unless the changes that the example names are refused as it says, at the latest when the
    checkpoint is loaded."""
    for change, said in example.refused:
        with TemporaryDirectory(prefix="llmk-") as target:
            spoilt = Path(target) / "spoilt"
            shutil.copytree(folder(), spoilt)
            config = json.loads((spoilt / "config.json").read_text())
            (spoilt / "config.json").write_text(json.dumps(config | change))
            try:
                facts_of(spec, read_checkpoint(spoilt))
                harness(spoilt)
                answer = "it is not refused"
            except LlmkError as error:
                answer = "" if re.search(said, str(error)) else f"the refusal lacks {said!r}: {error}"
        assert not answer, f"with {change}, {answer}"
    return f"{len(example.refused)} configs"


def _check_names(spec: ModelSpec, example: ModelExample, folder: Callable[[], Path]) -> str:
    """Raises AssertionError unless the config means the same with the other names that the example has for its keys."""
    checkpoint = read_checkpoint(folder())
    meant = meaning(spec, checkpoint)
    pairs = [(key, other) for key, others in example.other_names.items() for other in others]
    for key, other in pairs:
        renamed = {other if name == key else name: value for name, value in checkpoint.config.items()}
        same = meaning(spec, replace(checkpoint, config=renamed)) == meant
        assert same, f"with {key} under the name {other}, the model is another"
    return f"{len(pairs)} names"


def _check_defaults(spec: ModelSpec, example: ModelExample, folder: Callable[[], Path]) -> str:
    """Raises AssertionError unless a config without a key, where that is served, means what it means with the key's
    default."""
    if example.filled is None:
        raise Skip("the example doesn't know the defaults (ModelExample.filled)")
    checkpoint, wrong, tried = read_checkpoint(folder()), [], 0
    for key in sorted(checkpoint.config.keys() - {"architectures", "model_type"}):
        rest = {other: kept for other, kept in checkpoint.config.items() if other != key}
        without = meaning(spec, replace(checkpoint, config=rest))
        default = None if without is None else _default(example.filled, rest, key)
        stated = None if default is None else meaning(spec, replace(checkpoint, config={**rest, key: default}))
        if stated is not None:
            tried += 1
            wrong += [f"{key}, whose default is {default!r}"] if stated != without else []
    assert not wrong, f"without {len(wrong)} of {tried} keys, the model is another: " + "; ".join(wrong[:12])
    return f"{tried} keys"


def _default(filled: Callable[[Mapping[str, Any]], Mapping[str, Any]], config: Mapping[str, Any], key: str) -> Any:
    """The default of a key that a config lacks; ``None``: there is no default, or the config is refused."""
    try:
        return filled(config).get(key)
    except ValueError:
        return None


def meaning(spec: ModelSpec, checkpoint: Checkpoint) -> Any:
    """The tree, or the facts of a family without one; ``None``: the config is refused."""
    try:
        return _comparable(program_of(spec, checkpoint) if spec.tree else facts_of(spec, checkpoint))
    except LlmkError:
        return None


def _comparable(part: Any) -> Any:
    """A part of a tree, with the angles of a rotary embedding in place of the settings that lead to them, and what is
    left to a default filled in."""
    if isinstance(part, Rope):
        own = part.parameters
        table = cos_sin_cache(own, part.dim, 8, own["rope_theta"], trained_positions=part.positions)
        return part.dim, part.positions, part.sections, part.neighbours, part.interleaved, table.tolist()
    if isinstance(part, (Attend, AttentionFacts)) and part.scale is None:
        part = replace(part, scale=part.head_dim**-0.5)
    if is_dataclass(part) and not isinstance(part, type):
        return type(part), [_comparable(getattr(part, field.name)) for field in fields(part)]
    if isinstance(part, tuple):
        return tuple(map(_comparable, part))
    return part


def _of_example(
    spec: ModelSpec, example: ModelExample, folder: Callable[[], Path], harness: Callable[..., ModelHarness]
) -> dict[str, Callable[[], str | None]]:
    """The cases of a config's options, and those for which the example names something."""
    refusals = partial(_check_refusals, spec, example, folder, harness)
    names = partial(_check_names, spec, example, folder)
    return {
        "switches of the config, each by itself, say which tensors there are": partial(
            check_switches, spec, example, folder
        ),
        "an activation that there is not is refused": partial(check_activations, spec, folder),
        **({"what can't be served is refused with the reason": refusals} if example.refused else {}),
        **({"keys may have other names": names} if example.other_names else {}),
    }


def _check_weight_map(spec: ModelSpec, checkpoint: Checkpoint) -> str:
    """Raises AssertionError unless the tree's tensors are stored under their names, or others that it gives, in their
    shapes."""
    program = program_of(spec, checkpoint)
    stored = {tensor.name: tensor.shape for tensor in read_headers(weight_files(checkpoint))}
    stated, others = weight_map(program), _with_other_names(program)
    wrong = [
        f"{name} {list(shape)}, which is {f'stored as {list(stored[name])}' if name in stored else 'not stored'}"
        for name, shape in stated.items()
        if (name in stored or name not in others) and (name not in stored or _sizes(stored[name]) != _sizes(shape))
    ]
    assert not wrong, f"the tree has {len(wrong)} of {len(stated)} tensors wrong: " + "; ".join(wrong[:6])
    return f"{len(stated)} tensors"


def _sizes(shape: Sequence[int]) -> list[int]:
    """Those that count when a tensor is read: dimensions of one element are left out."""
    return [size for size in shape if size != 1]


def odd_configs(config: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Configs in which one key is missing or invalid: the key, the change, the config."""
    for key, value in config.items():
        if key in ("architectures", "model_type"):
            continue
        rest = {other: kept for other, kept in config.items() if other != key}
        yield key, "absent", rest
        for odd in _ODD.get(type(value), ()):
            yield key, json.dumps(odd), {**rest, key: odd}


def num_parameters(model: ModelHarness) -> int:
    """Elements of the checkpoint's tensors that the model does not ignore."""
    stored, ignored = read_headers(weight_files(model.boot.checkpoint)), model.model.ignored_weights
    return sum(tensor.num_elements for tensor in stored if not any(re.fullmatch(each, tensor.name) for each in ignored))


def _with_other_names(program: Program) -> set[str]:
    """The tensors that a checkpoint may store under another name."""
    return {tensor.name for leaf in program.leaves() if getattr(leaf, "aliases", ()) for tensor in leaf.tensors()}


def _complaint(describe_config: Callable[[], Any], key: str) -> str:
    """The defect in the handling of a config with an invalid ``key``; empty if there is none."""
    try:
        facts = describe_config()
    except LlmkError as error:
        return "" if key in str(error) else f"{describe(error)!r} doesn't name the key"
    except Exception as error:
        return f"raised {describe(error)}"
    return "" if isinstance(facts, ModelFacts) else f"returned {type(facts).__name__}"


def _refused(
    folder: Path, harness: Callable[..., ModelHarness], change: Callable[[dict[str, Tensor]], object], name: str
) -> None:
    with TemporaryDirectory(prefix="llmk-") as target:
        spoilt = copied(folder, Path(target) / "spoilt", change)
        try:
            harness(spoilt)
            answer = "the checkpoint is loaded anyway"
        except CheckpointError as error:
            answer = "" if name in str(error) else f"the refusal doesn't name it: {error}"
    assert not answer, f"{name} is missing, unknown or of another shape: {answer}"
