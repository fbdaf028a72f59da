"""Runs softmax-attention decoders of the transformers library, with its own modules on llmk's paged attention."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AttentionInterface, AutoModelForCausalLM
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.logging import disable_progress_bar

from llmk import tree
from llmk.api import AttentionQuery, CacheSpec, Checkpoint, CheckpointError, StoredTensor
from llmk.api.checkpoint import check_folder
from llmk.api.errors import describe as describe_error
from llmk.nn import Build, Builder, Experts, Layer, Linear, StepContext
from llmk.nn.attention import cache_spec
from llmk.nn.tensor_file import read_headers, weight_files
from llmk.tree import Config, Sites
from llmk_models.transformers_experts import expert_layers, layer_number
from llmk_models.transformers_facts import decoder_layers, describe
from llmk_models.transformers_layers import (
    PLANNED,
    LinearModule,
    called,
    fill_from_files,
    fill_from_module,
    fits,
    presented,
)
from llmk_models.transformers_moe import ExpertsModule, fill_experts, is_experts, is_like, num_routed
from llmk_models.transformers_watch import WATCH, Observed, check_observed

_AUTO: Any = AutoModelForCausalLM
_SCALE_ERROR = 1e-6
PAGED = "llmk"
"""The name under which transformers finds llmk's attention."""


class PagedAttention:
    """Binds one attention module to its cache, its backend and the current step. ``scale`` is the factor of the logits
    that the module has in place of the backend's, such as 1 where it scales queries itself."""

    def __init__(self, owner: TransformersModel, build: Build, site: str, index: int, scale: float) -> None:
        self._owner = owner
        query = build.plan.choice("attention", site).query
        assert isinstance(query, AttentionQuery)
        ratio = scale / query.scale
        self._factor = 1.0 if abs(ratio - 1.0) <= _SCALE_ERROR else ratio
        self._backend = build.attention(site)
        self._index = index

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> Tensor:
        """``query`` is ``[tokens, heads, head_dim]``, ``key`` and ``value`` ``[tokens, kv_heads, head_dim]``."""
        step = self._owner.step
        query = query if self._factor == 1.0 else query * self._factor
        cache, meta = step.caches[self._index], step.meta[self._index]
        self._backend.write(key, value, cache, meta)
        return self._backend.run(query, cache, meta, sinks=sinks)


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The library's attention interface, from ``[1, heads, tokens, head_dim]`` to ``[1, tokens, heads, head_dim]``.

    Window and soft cap are the backend's; ``check_observed`` has checked that they equal the module's.
    """
    out = module.llmk_attention(*(part[0].transpose(0, 1) for part in (query, key, value)), s_aux)
    return out.unsqueeze(0), None


AttentionInterface.register(PAGED, paged_attention)


class _GivenOutput(BaseModelOutputWithPast):
    """A decoder's output, with the further fields that some language models pass on from it."""

    def __getattr__(self, name: str) -> None:
        """``None`` for fields that not every decoder's output has."""


class _Given(nn.Module):
    """Replaces the decoder inside the language model, so that its head runs on given hidden states."""

    hidden: Tensor

    def forward(self, *args: Any, **kwargs: Any) -> _GivenOutput:
        """The given hidden states, for any arguments."""
        return _GivenOutput(last_hidden_state=self.hidden)


class TransformersModel:
    """Follows ``llmk.nn.Model`` and ``llmk.nn.SelfLoading``.

    The decoder runs all tokens of a step as one row of the batch. The language model around it is only used for its
    head, which includes its scaling, soft cap or bias of logits.
    """

    weights: tuple[Layer, ...] = ()
    ignored_weights: tuple[str, ...] = ()
    step: StepContext

    def __init__(self, build: Build, checkpoint: Checkpoint) -> None:
        self._build = build
        self._facts = describe(checkpoint)
        self._sites: list[str] = []
        self._path = ""
        self._name = checkpoint.architecture
        self._config = read_config(checkpoint)  # models modify their config
        with torch.device("meta"):
            without_weights = self._made(build.dtype)
        self._attend_once(without_weights)
        self._layers, self._experts = self._built(Config(checkpoint))

    def load(self, checkpoint: Checkpoint, dtype: torch.dtype, dummy_seed: int | None) -> None:
        """Loads through transformers, then checks that every layer's attention matches the described one."""
        methods = ", ".join(method.id for method in self._build.plan.quantization)
        if methods and not self._layers:
            raise CheckpointError(
                f"{methods} can't serve transformers' modules of {self._name}, of which llmk replaces no linear layer",
                hint="use an unquantized checkpoint without --model.quantization, or a natively implemented family",
            )
        model: Any = self._pretrained(checkpoint, dtype) if dummy_seed is None else self._random(dtype, dummy_seed)
        modules = {name: self._module(model, name) for name in (*self._layers, *self._experts)}
        with called(modules) as inputs:
            seen = self._attend_once(model)
        from_files = methods and dummy_seed is None
        stored = presented(self._build, read_headers(weight_files(checkpoint))) if from_files else {}
        for name in self._layers:
            if name in inputs:
                self._replace(name, stored)
        for name, (spec, layer) in self._experts.items():
            top_k = num_routed(inputs.get(name, ()))
            if fill_experts(layer, spec, modules[name], top_k, stored):
                self._put(name, ExpertsModule(layer))
        self._decoder.to(self._build.device)
        self._head.to(self._build.device)
        for index, (module, site) in enumerate(zip(seen, self._sites, strict=True)):
            scale: float = module.llmk_observed.scale  # type: ignore[assignment, union-attr]
            module.llmk_attention = PagedAttention(self, self._build, site, index, scale)  # type: ignore[assignment]
        self._decoder.config._attn_implementation = PAGED
        self._decoder.config.pad_token_id = None  # modules would look for it in each step, on the host
        default = self._facts.default_model_len
        keep_frequencies(self._decoder, long=bool(default and self._build.max_model_len > default))

    def forward(self, token_ids: Tensor, step: StepContext) -> Tensor:
        self.step = step
        hidden = self._run(token_ids, step.positions)
        return hidden if step.output_rows is None else hidden[step.output_rows]

    def logits(self, hidden: Tensor) -> Tensor:
        self._given.hidden = hidden[None]
        row = torch.zeros(1, hidden.shape[0], dtype=torch.int64, device=hidden.device)
        logits: Tensor = self._head(input_ids=row, use_cache=False).logits
        return logits[0]

    def cache_specs(self) -> list[tuple[int, str, CacheSpec]]:
        return [(layer, site, cache_spec(self._build, site)) for layer, site in enumerate(self._sites)]

    def _built(self, config: Config) -> tuple[dict[str, Linear], dict[str, tuple[tree.Experts, Experts]]]:
        """The linear layers and experts of llmk for those of the decoder's modules that are what the checkpoint's names
        say, by name."""
        specs, experts = decoder_layers(config), expert_layers(config, self._facts.hidden_size)
        modules = {f"{self._path}.{name}": module for name, module in self._decoder.named_modules()}
        known = [each for each in specs if fits(modules.get(each.at), each.size, each.rows, bias=each.bias)]
        if self._build.parallel.tensor_size > 1:
            plan = set((getattr(type(self._config), "base_model_tp_plan", None) or {}).values())
            if len(known) < len(specs) or not plan or plan - set(PLANNED):
                raise CheckpointError(
                    f"transformers has no plan for {self._name} by which llmk can cut it",
                    hint="set parallel.tensor to 1, or install a wheel that implements the architecture natively",
                )
        builder = Builder(self._build, Sites([*specs, *experts], self._build.plan.dtype))
        of_layer = {layer_number(spec.at): spec for spec in experts}
        found = {name: of_layer.get(layer_number(name)) for name, module in modules.items() if is_experts(module)}
        alike = {name: spec for name, spec in found.items() if spec is not None and is_like(modules[name], spec)}
        return (
            {each.at: builder.linear(each) for each in known},
            {name: (spec, builder.experts(spec)) for name, spec in alike.items()},
        )

    def _module(self, model: Any, name: str) -> Any:
        return model.get_submodule(name)

    def _put(self, name: str, module: nn.Module) -> None:
        """Puts a module in the place of the decoder's module ``name``."""
        self._decoder.set_submodule(name.removeprefix(f"{self._path}."), module)

    def _replace(self, name: str, stored: Mapping[str, Sequence[StoredTensor]]) -> None:
        """Puts llmk's layer in the place of the decoder's module ``name``."""
        layer, module = self._layers[name], self._module(self._decoder, name.removeprefix(f"{self._path}."))
        if stored:
            fill_from_files(layer, stored)
        else:
            fill_from_module(layer, module)
        self._put(name, LinearModule(layer, module, self._build.device))

    def _run(self, token_ids: Tensor, positions: Tensor) -> Tensor:
        out = self._decoder(input_ids=token_ids[None], position_ids=positions[None], use_cache=False)
        hidden: Tensor = out.last_hidden_state
        return hidden[0]

    def _pretrained(self, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
        stored = read_headers(weight_files(checkpoint))
        config = deepcopy(self._config)
        if self._build.plan.quantization and hasattr(config, "quantization_config"):
            del config.quantization_config  # the layers that are stored quantized are replaced
        if not sys.stderr.isatty():
            disable_progress_bar()
        check_folder(checkpoint.path)
        try:
            model, report = _AUTO.from_pretrained(
                checkpoint.path,
                config=config,
                trust_remote_code=False,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are reported below, by name
            )
        except (RuntimeError, ValueError, OSError) as error:
            gaps = ", ".join(_gaps([tensor.name for tensor in stored])[:10])
            raise CheckpointError(
                f"transformers can't load {checkpoint.path}: {error}" + (f" The files lack {gaps}." if gaps else ""),
                hint="check that config.json belongs to these weights",
            ) from error
        for kind, what in (
            ("missing_keys", "lacks"),
            ("unexpected_keys", "contains, but the model does not,"),
            ("mismatched_keys", "contains with another shape than the model's,"),
        ):
            keys = [each for each in report[kind] if not self._replaced(each if isinstance(each, str) else each[0])]
            if names := sorted(each if isinstance(each, str) else _as_stored(each, stored) for each in keys):
                shown = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
                raise CheckpointError(
                    f"{checkpoint.path} {what} {len(names)} tensors: {shown}",
                    hint="check that the download is complete and that config.json belongs to these weights",
                )
        return model

    def _replaced(self, tensor: str) -> bool:
        """Whether a tensor is one of a quantized layer of llmk, which reads it itself."""
        of_experts = any(tensor.startswith(f"{spec.at}.") for spec, _ in self._experts.values())
        return bool(self._build.plan.quantization) and (of_experts or tensor.rpartition(".")[0] in self._layers)

    def _random(self, dtype: torch.dtype, seed: int) -> Any:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self._made(dtype)

    def _made(self, dtype: torch.dtype) -> Any:
        try:
            return _AUTO.from_config(deepcopy(self._config), dtype=dtype, trust_remote_code=False)
        except Exception as error:
            raise CheckpointError(
                f"transformers can't build {self._name} of this config.json: {describe_error(error)}",
                hint="compare config.json with the one that the model's authors publish",
            ) from error

    def _attend_once(self, model: Any) -> list[nn.Module]:
        """Separates decoder and head, runs attention once, and returns the attention modules by layer.

        Raises CheckpointError if a layer's attention differs from the planned one. It is tried without weights first;
        for models that don't run without weights, the result is then empty.
        """
        model = model.eval().requires_grad_(False)
        decoder = model.get_decoder()
        self._given = _Given()
        path = next((name for name, module in model.named_modules() if module is decoder), "")
        if not path or not hasattr(decoder, "config"):
            raise CheckpointError(
                f"transformers' {type(model).__name__} keeps its decoder where llmk can't reach it",
                hint="install a wheel that implements the architecture natively",
            )
        model.set_submodule(path, self._given)
        self._path = path
        self._decoder: Any = decoder
        self._head: Any = model
        seen = self._observe()
        return [] if seen is None else self._checked(seen)

    @torch.inference_mode()
    def _observe(self) -> dict[int, tuple[nn.Module, Observed]] | None:
        """Runs two tokens through the decoder; by layer index, the attention module and its observed attention.
        ``None`` if the model has no weights yet and does not run without."""
        self._decoder.config._attn_implementation = WATCH
        tokens = torch.arange(2, device=next(self._decoder.parameters()).device)
        name = type(self._decoder).__name__
        try:
            self.logits(self._run(tokens, tokens))
        except Exception as error:
            if tokens.is_meta and isinstance(error, (NotImplementedError, RuntimeError)):
                return None
            raise CheckpointError(
                f"transformers' {name} does not run on llmk's attention: {describe_error(error)}",
                hint="install a wheel that implements the architecture natively",
            ) from error
        seen = {}
        for module in self._decoder.modules():
            observed, index = getattr(module, "llmk_observed", None), getattr(module, "layer_idx", None)
            if observed is not None and index is not None:
                seen[int(index)] = (module, observed)
        return seen

    def _checked(self, seen: dict[int, tuple[nn.Module, Observed]]) -> list[nn.Module]:
        """The attention modules by layer, checked against the plan, in the order of ``_sites``."""
        sites = {facts.sliding_window: facts for facts in self._facts.attention}
        self._sites = []
        modules = []
        for index in range(self._facts.num_layers):
            if index not in seen:
                raise CheckpointError(
                    f"layer {index} of transformers' {type(self._decoder).__name__} bypasses the attention interface",
                    hint="install a wheel that implements the architecture natively",
                )
            module, observed = seen[index]
            facts = sites.get(observed.window, self._facts.attention[0])
            check_observed(index, observed, facts)
            self._sites.append(facts.site)
            modules.append(module)
        return modules


def read_config(checkpoint: Checkpoint) -> Any:
    """The library's config object, from the parsed ``config.json``: no code of the checkpoint is run.

    Raises:
        CheckpointError: the library does not know the model type, or the config does not match it.
    """
    kind = checkpoint.config.get("model_type", "")
    if kind not in CONFIG_MAPPING:
        raise CheckpointError(
            f"transformers has no implementation of {checkpoint.architecture}: model_type {kind!r} is unknown",
            hint="install a wheel that implements it, or a newer transformers",
        )
    try:
        config = CONFIG_MAPPING[kind].from_dict(dict(checkpoint.config))
    except Exception as error:
        raise CheckpointError(
            f"transformers can't read {checkpoint.path / 'config.json'} as one of {kind}: {describe_error(error)}",
            hint="compare it with the config.json that the model's authors publish",
        ) from error
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise CheckpointError(
            f"transformers has no language model of model_type {kind!r}, which {checkpoint.architecture} should be",
            hint="compare it with the config.json that the model's authors publish",
        )
    return config


def keep_frequencies(decoder: nn.Module, long: bool) -> None:
    """Makes RoPE use the same frequencies for any batch, so that a text's results don't depend on others, and no step
    looks at positions on the host: dynamic ones those of contexts that are not extended, LongRoPE those of ``long``
    contexts, or of others."""
    for module in decoder.modules():
        rotary: Any = module
        kinds = getattr(module, "rope_type", None)
        by_layer: Mapping[Any, str] = kinds if isinstance(kinds, Mapping) else {None: kinds or ""}
        for layer, kind in by_layer.items():
            if kind == "longrope" and long:
                options = {} if layer is None else {"layer_type": layer}
                found = getattr(rotary, "inv_freq" if layer is None else f"{layer}_inv_freq")
                rotary(found, torch.tensor([[1 << 30]], device=found.device), **options)
        if {"dynamic", "longrope"} & set(by_layer.values()):
            # Not updated then; the others are not either.
            rotary.rope_type = dict.fromkeys(kinds, "default") if isinstance(kinds, Mapping) else "default"


def _as_stored(mismatch: tuple[str, Sequence[int], Sequence[int]], stored: Sequence[StoredTensor]) -> str:
    """The name of a tensor with another shape, and, if the model renamed it, the names in the files with that shape."""
    name, shape, _ = mismatch
    alike = [tensor.name for tensor in stored if tensor.shape == tuple(shape)]
    return name if name in alike else f"{name} (in the files: {' or '.join(alike)})"


def _gaps(names: Sequence[str]) -> list[str]:
    """Names that are missing from numbered sequences of otherwise equal names."""
    alike: dict[str, set[tuple[str, ...]]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "{}", name), set()).add(tuple(re.findall(r"\d+", name)))
    return [
        form.format(*numbers)
        for form, found in alike.items()
        for numbers in itertools.product(*(sorted(set(place)) for place in zip(*found, strict=True)))
        if numbers not in found
    ]
