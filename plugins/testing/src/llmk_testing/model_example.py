"""Examples of a model family: small checkpoints and their expected logits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from llmk_testing.case import Skip
from llmk_testing.checkpoints import write_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExample:
    """One checkpoint of a family. ``ModelSpec.examples`` names a sequence of these; together they should cover both
    values of every boolean option of the family's config.

    ``write(folder)`` writes a checkpoint with float32 weights, in which every config key has an effect.
    ``logits(folder, token_ids, dtype)`` is the oracle, another implementation: it loads the checkpoint in ``dtype`` and
    returns float32 logits ``[tokens, vocab]`` of one text.
    """

    name: str
    write: Callable[[Path], object]
    logits: Callable[[Path, Sequence[int], torch.dtype], Tensor]
    tolerance: float = 2e-5
    """Allowed relative error of float32 logits (a different order of summation)."""
    bfloat16_margin: float = 1.25
    """The largest allowed ratio of the model's error to the oracle's, both in bfloat16."""
    filled: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Fills in what a config leaves out, with the defaults of the implementation that writes such configs, or raises
    ValueError; ``None``: they are not known."""
    vary: Callable[..., object] | None = None
    """``vary(folder, **config)`` writes the checkpoint with some keys of its config at other values, and the tensors
    that it then has; it raises where there is no such model."""
    embedded: Callable[[Path, Tensor], Tensor] | None = None
    """The oracle of prompts that are embeddings: ``embedded(folder, rows)`` is as ``logits``, in float32, of a text
    whose tokens have ``rows`` (float32 ``[tokens, hidden]``) in place of what is looked up; ``None``: it is not
    known."""
    refused: Sequence[tuple[Mapping[str, Any], str]] = ()
    """Changes of the config with which the checkpoint can't be served, each with what the refusal says, as a regular
    expression."""
    other_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Other names of keys of the config, under which the family reads them too."""

    @classmethod
    def of_transformers(
        cls, name: str, model_type: str, *, bfloat16_margin: float = 1.25, **config: Any
    ) -> ModelExample:
        """A random checkpoint of a type that ``transformers`` has, with ``config`` on top of tiny sizes; all tensors
        are drawn, also those that start as zeros or ones. The model in ``transformers`` is the oracle, and its config
        class has the defaults."""
        write = partial(write_checkpoint, model_type=model_type, **config)
        given: dict[str, Any] = {"bfloat16_margin": bfloat16_margin, "filled": transformers_config, "vary": write}
        given["embedded"] = transformers_embedded
        return cls(name=name, write=write, logits=transformers_logits, **given)


def transformers_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config with the defaults of its class in ``transformers``. Raises ValueError where that refuses it."""
    try:
        from transformers import CONFIG_MAPPING
    except ImportError as error:
        raise Skip("the defaults are those of transformers, which is not installed") from error
    with TemporaryDirectory(prefix="llmk-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        try:
            read = CONFIG_MAPPING[config["model_type"]].from_pretrained(folder)
        except Exception as error:
            raise ValueError(f"transformers refuses the config: {error}") from error
    filled: dict[str, Any] = json.loads(read.to_json_string(use_diff=False))
    return filled


def transformers_logits(folder: Path, token_ids: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Float32 logits ``[tokens, vocab]`` of the model in ``transformers``, in one forward pass without a cache."""
    model = _loaded(folder, dtype)
    with torch.inference_mode():
        return model(torch.tensor([list(token_ids)])).logits[0].float()  # type: ignore[no-any-return]


def transformers_embedded(folder: Path, rows: Tensor) -> Tensor:
    """Float32 logits ``[tokens, vocab]`` of the model in ``transformers``, of embeddings ``[tokens, hidden]``."""
    model = _loaded(folder, torch.float32)
    with torch.inference_mode():
        return model(inputs_embeds=rows[None]).logits[0].float()  # type: ignore[no-any-return]


def _loaded(folder: Path, dtype: torch.dtype) -> Any:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise Skip("the oracle is transformers, which is not installed") from error
    load = AutoModelForCausalLM.from_pretrained
    return load(folder, dtype=dtype, attn_implementation="eager", local_files_only=True).eval()
