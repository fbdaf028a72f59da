"""Model families that are broken on purpose, each as real engines were, and the cases that tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from llmk.api import CacheSpec, ModelSpec
from llmk.nn import Attention, Linear, builder
from llmk.nn.builder import Builder
from llmk.nn.parallel import Parallel
from llmk.nn.tree_model import TreeModel
from llmk.tree import CausalLM, Config, Norm, Program, SelfAttention
from llmk_models import dense
from llmk_models.parts import Parts
from llmk_testing.model_example import ModelExample
from llmk_testing.ranks import Threaded

EXAMPLES = (
    ModelExample.of_transformers(
        "tiny",
        "qwen3",
        head_dim=32,
        attention_bias=True,
        rms_norm_eps=1e-3,
        num_hidden_layers=2,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 50000.0},
    ),
)


@dataclass(frozen=True)
class Defect:
    """``plant`` breaks the good family; the case whose name begins with ``killer`` fails."""

    id: str
    sentence: str
    plant: Callable[[pytest.MonkeyPatch], object]
    killer: str
    change: Callable[[ModelSpec], ModelSpec] = lambda spec: spec


def tree_with_torch(config: Config) -> CausalLM:
    """A tree whose module imports torch, as this one does."""
    return dense.tree(config)


def _around(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replaces ``owner.name`` by what ``change`` does with it and its arguments."""
    good = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **options: change(good, *args, **options))


def _rotates_within_the_step(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, model: Any, token_ids: Tensor, step: Any) -> Any:
        return good(model, token_ids, replace(step, positions=step.positions - step.positions.min()))

    _around(patch, TreeModel, "forward", change)


def _rotates_by_another_base(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, rope: Any, size: int, length: int, theta: float, **options: Any) -> Any:
        return good({**rope, "rope_theta": 2 * theta}, size, length, 2 * theta, **options)

    _around(patch, builder, "cos_sin_cache", change)


def _forgets_bias(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, layer: Linear) -> None:
        good(layer)
        layer.bias = None

    _around(patch, Linear, "finish", change)


def _another_eps(patch: pytest.MonkeyPatch) -> None:
    _around(patch, Parts, "norm", lambda good, parts, at: replace(good(parts, at), eps=1e-6))


def _counts_tokens(patch: pytest.MonkeyPatch) -> None:
    """Within any tolerance, but not bit by bit."""
    _around(
        patch, TreeModel, "forward", lambda good, model, ids, step: good(model, ids, step) * (1 + 1e-6 * ids.shape[0])
    )


def _looks_up_what_is_given(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, model: TreeModel, token_ids: Tensor, step: Any) -> Any:
        return good(model, token_ids.clamp(max=model.program.model.embed.vocab_size - 1), replace(step, given=None))

    _around(patch, TreeModel, "forward", change)


def _halves_what_is_given(patch: pytest.MonkeyPatch) -> None:
    """Has another factor for embeddings than the oracle."""

    def change(good: Any, model: TreeModel, token_ids: Tensor, step: Any) -> Any:
        given = step.given and replace(step.given, rows=step.given.rows / 2)
        return good(model, token_ids, replace(step, given=given))

    _around(patch, TreeModel, "forward", change)


def _always_long(patch: pytest.MonkeyPatch) -> None:
    """Serves the longest text."""

    def change(good: Any, config: Config) -> CausalLM:
        found: CausalLM = good(config)
        return replace(found, default_model_len=found.max_model_len)

    _around(patch, dense, "tree", change)


def _new_names_alone(patch: pytest.MonkeyPatch) -> None:
    """Reads no base of rotations that stands by itself, as in configs of older releases."""

    def change(good: Any, config: Config) -> CausalLM:
        values = {key: value for key, value in config.values.items() if key != "rope_theta"}
        found: CausalLM = good(Config(replace(config.checkpoint, config=values)))
        return found

    _around(patch, dense, "tree", change)


def _own_attention_factor(patch: pytest.MonkeyPatch) -> None:
    """Computes YaRN's factor of attention where the config states one."""

    def change(good: Any, rope: Any, *args: Any, **options: Any) -> Any:
        return good({key: value for key, value in rope.items() if key != "attention_factor"}, *args, **options)

    _around(patch, builder, "cos_sin_cache", change)


def _sums_two(patch: pytest.MonkeyPatch) -> None:
    """Sums over pairs of ranks."""

    def change(good: Any, place: Threaded, x: Tensor) -> Tensor:
        found: Tensor = good(place, x)
        return found if place.tensor_size == 2 else found / 2

    _around(patch, Threaded, "all_reduce", change)


def _miscounts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Program, "num_parameters", 1)


def _misnames(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, spec: Norm) -> tuple[Any, ...]:
        return tuple(tensor._replace(name=f"{spec.at}.scale") for tensor in good(spec))

    _around(patch, Norm, "tensors", change)


def _pads_vocabulary(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, config: Config) -> CausalLM:
        found: CausalLM = good(config)
        return replace(found, embed=replace(found.embed, vocab_size=512))

    _around(patch, dense, "tree", change)


def _whole_vocabulary(patch: pytest.MonkeyPatch) -> None:
    """Of a multiple of 64 tokens."""

    def change(good: Any, config: Config) -> CausalLM:
        found: CausalLM = good(config)
        size = -(-found.embed.vocab_size // 64) * 64
        return replace(found, embed=replace(found.embed, vocab_size=size), head=replace(found.head, vocab_size=size))

    _around(patch, dense, "tree", change)


def _before_the_extension(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, config: Config) -> CausalLM:
        return replace(good(config), max_model_len=config.size("max_position_embeddings"))

    _around(patch, dense, "tree", change)


def _window_of_its_own(patch: pytest.MonkeyPatch) -> None:
    good = SelfAttention.of.__func__  # type: ignore[attr-defined]
    patch.setattr(
        SelfAttention, "of", classmethod(lambda cls, *args, **options: good(cls, *args, **{**options, "window": 4096}))
    )


def _published_length(patch: pytest.MonkeyPatch) -> None:
    _around(patch, dense, "tree", lambda good, config: replace(good(config), max_model_len=8192))


def _one_base(patch: pytest.MonkeyPatch) -> None:
    """Reads the base of rotations, and none of what stretches them."""

    def change(good: Any, rope: Any, size: int, length: int, theta: float, **options: Any) -> Any:
        return good({"rope_type": "default", "rope_theta": theta}, size, length, theta, **options)

    _around(patch, builder, "cos_sin_cache", change)


def _short_table(patch: pytest.MonkeyPatch) -> None:
    """Rotates positions from 64 on as the last before."""

    def change(good: Any, *args: Any, rows: range, **options: Any) -> Any:
        read = [min(position, 63) for position in rows]
        return torch.cat([good(*args, rows=range(position, position + 1), **options) for position in read])

    _around(patch, builder, "cos_sin_cache", change)


def _copies_angles(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, layer: Attention, *args: Any, **options: Any) -> None:
        good(layer, *args, **options)
        layer._cos_sin = None if layer._cos_sin is None else layer._cos_sin.clone()

    _around(patch, Attention, "__init__", change)


def _no_aliases(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, config: Config) -> CausalLM:
        found: CausalLM = good(config)
        return replace(found, embed=replace(found.embed, aliases=()))

    _around(patch, dense, "tree", change)


def _raw_keys(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Config, "num_layers", lambda self, key: self.values[key])


def _keeps_in_the_cache_before(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, builder: Builder, site: str, spec: CacheSpec) -> int:
        return max(good(builder, site, spec) - 1, 0)

    _around(patch, Builder, "keep", change)


def _ignores_unknown(patch: pytest.MonkeyPatch) -> None:
    _around(patch, dense, "tree", lambda good, config: replace(good(config), ignored=(r".*surprise.*",)))


def _hands_on_rounded(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, place: Parallel, *tensors: Tensor) -> None:
        good(place, *(tensor.to(torch.bfloat16).to(tensor.dtype) for tensor in tensors))

    _around(patch, Parallel, "send_to_next_stage", change)


def _coarse_in_16_bits(patch: pytest.MonkeyPatch) -> None:
    def change(good: Any, *args: Any) -> Tensor:
        out: Tensor = good(*args)
        return out.to(torch.float8_e4m3fn).to(out.dtype) if out.dtype == torch.bfloat16 else out

    _around(patch, Attention, "__call__", change)


DEFECTS = (
    Defect("rope_in_step", "rotates by a token's place in the step", _rotates_within_the_step, "chunked prefill"),
    Defect("rope_base", "rotates by another base than the config's", _rotates_by_another_base, "logits are"),
    Defect(
        "cache_of_another_layer",
        "a layer keeps its keys in the cache of the one before",
        _keeps_in_the_cache_before,
        "decode equals prefill",
    ),
    Defect("norm_eps", "norms with a default eps, not the config's", _another_eps, "logits are"),
    Defect("bias", "drops the biases of linear layers", _forgets_bias, "logits are"),
    Defect(
        "head_order",
        "heads come out of attention in another order",
        lambda patch: _around(patch, Attention, "__call__", lambda good, *args: good(*args).roll(32, -1)),
        "logits are",
    ),
    Defect("coarse_in_16_bits", "rounds to 8 bits where the model has 16", _coarse_in_16_bits, "bfloat16 is as exact"),
    Defect("counts_tokens", "results depend on how many tokens a step has", _counts_tokens, "results don't depend"),
    Defect("looks_up_given", "looks up tokens where embeddings are given", _looks_up_what_is_given, "embeddings take"),
    Defect(
        "not_all_reduced",
        "partial results of row-parallel GEMMs are not summed",
        lambda patch: patch.setattr(Threaded, "all_reduce", lambda self, x: x),
        "two tensor parallel ranks",
    ),
    Defect("rounded_between_stages", "stages hand on rounded states", _hands_on_rounded, "two stages"),
    Defect(
        "ignores_unknown",
        "ignores tensors that it has no place for",
        _ignores_unknown,
        "unknown tensors",
    ),
    Defect("before_the_extension", "YaRN's texts are not longer", _before_the_extension, "texts may be"),
    Defect("whole_vocabulary", "pads the vocabulary to a multiple of 64", _whole_vocabulary, "numbers of the config"),
    Defect("window", "tokens attend to the last 4096 alone", _window_of_its_own, "windows of attention"),
    Defect("published_length", "texts are as long as in published checkpoints", _published_length, "texts may be"),
    Defect("one_base", "rotations are not stretched", _one_base, "numbers of the config"),
    Defect("short_table", "positions from 64 on are rotated alike", _short_table, "long texts have"),
    Defect("copies_angles", "keeps a copy of the angles that there are when it is built", _copies_angles, "logits are"),
    Defect("no_aliases", "a tied head that is stored is a tensor too many", _no_aliases, "a tied head may"),
    Defect("half_of_what_is_given", "embeddings that are given are halved", _halves_what_is_given, "embeddings take"),
    Defect("always_long", "LongRoPE is served with its longest text", _always_long, "LongRoPE is served"),
    Defect("new_names", "a base under its older name is not read", _new_names_alone, "configs in another form"),
    Defect("attention_factor", "a factor that YaRN states is not read", _own_attention_factor, "options of the config"),
    Defect("sums_two", "sums are of two ranks", _sums_two, "four tensor parallel ranks"),
    Defect("num_parameters", "reports a wrong number of parameters", _miscounts, "facts are"),
    Defect("weight_map", "says another name than its modules load", _misnames, "the tree's weight map"),
    Defect("vocab_size", "reports a padded vocabulary", _pads_vocabulary, "facts are"),
    Defect("key_error", "a missing key is a KeyError", _raw_keys, "odd configs"),
    Defect(
        "tree_imports_torch",
        "reading the config imports torch",
        lambda patch: None,
        "describing needs no torch",
        lambda spec: replace(spec, tree="defects.model:tree_with_torch"),
    ),
)
