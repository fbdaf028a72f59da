"""Tensor parallelism in model facts: the shapes of one rank's shard, and whether a model can be sharded. No torch."""

from __future__ import annotations

from dataclasses import replace

from llmk.api.facts import LinearFacts, ModelFacts, RecurrentFacts
from llmk.api.hooks import Problem
from llmk.api.platform import PlatformFacts

_MOST_NAMED = 64
"""Largest ``parallel.tensor`` that a hint suggests."""


def sharded(facts: ModelFacts, tensor: int) -> ModelFacts:
    """The facts with the sites' sizes of one of ``tensor`` ranks; :func:`parallel_problems` must have found no problem.

    Facts of the whole model (number of layers, vocabulary size, parameters) are unchanged.
    """
    if tensor == 1:
        return facts
    return replace(
        facts,
        attention=tuple(
            replace(site, num_heads=_share(site.num_heads, tensor), num_kv_heads=_share(site.num_kv_heads, tensor))
            for site in facts.attention
        ),
        recurrent=tuple(sharded_state(site, tensor) for site in facts.recurrent),
        linear=tuple(_sharded_linear(site, tensor) for site in facts.linear),
        moe=tuple(replace(site, intermediate_size=_share(site.intermediate_size, tensor)) for site in facts.moe),
        ops=tuple(
            replace(op, facts={**op.facts, **{key: _share(op.facts[key], tensor) for key in op.divided}})
            for op in facts.ops
        ),
    )


def sharded_state(site: RecurrentFacts, tensor: int) -> RecurrentFacts:
    """A recurrent site with the state sizes of one of ``tensor`` ranks."""
    if not site.units:
        return site
    tensors = []
    for each, dim in zip(site.tensors, site.divided, strict=True):
        shape = list(each.shape)
        shape[dim] = _share(shape[dim], tensor)
        tensors.append(replace(each, shape=tuple(shape)))
    inputs = [replace(each, shape=(_share(each.shape[0], tensor), *each.shape[1:])) for each in site.inputs]
    return replace(site, units=_share(site.units, tensor), tensors=tuple(tensors), inputs=tuple(inputs))


def parallel_problems(facts: ModelFacts, platform: PlatformFacts, tensor: int, pipeline: int) -> list[Problem]:
    """Why ``tensor * pipeline`` ranks can't serve the model on the platform; empty if they can."""
    problems = [
        Problem(
            f"parallel.{way}",
            f"{facts.model} does not support parallel.{way} = {size} for {facts.architecture}",
            f"set parallel.{way} to 1, or install a wheel that implements the architecture natively",
        )
        for way, size in (("tensor", tensor), ("pipeline", pipeline))
        if size > 1 and way not in facts.parallel
    ]
    if not problems and (uneven := _uneven(facts, tensor)):
        able = ", ".join(str(number) for number in range(1, _MOST_NAMED) if not _uneven(facts, number))
        message = f"{', '.join(uneven)} can't be divided evenly between {tensor} processes"
        stages = ", or use parallel.pipeline" if "pipeline" in facts.parallel else ""
        problems.append(Problem("parallel.tensor", message, f"set parallel.tensor to one of {able}{stages}"))
    if pipeline > facts.num_layers:
        message = f"{facts.num_layers} layers can't be divided between {pipeline} stages"
        problems.append(Problem("parallel.pipeline", message, f"set parallel.pipeline to {facts.num_layers} or less"))
    devices = platform.num_devices
    if devices and tensor * pipeline > devices and not platform.shared_device:
        message = f"{tensor} x {pipeline} processes need a device each, and {platform.label} has {devices}"
        path = "parallel.tensor" if tensor > 1 else "parallel.pipeline"
        problems.append(Problem(path, message, "lower parallel.tensor or parallel.pipeline"))
    return problems


def _share(number: int, tensor: int) -> int:
    """One rank's part of ``number``, rounded up: the rest is padded, or repeated if there are more ranks than units."""
    return -(-number // tensor)


def _units(site: LinearFacts) -> tuple[tuple[int, int], ...]:
    return site.units or ((site.out_features, 1),)


def _sharded_linear(site: LinearFacts, tensor: int) -> LinearFacts:
    if site.parallel == "row":
        return replace(site, in_features=_share(site.in_features, tensor))
    if not site.parallel:
        return site
    units = tuple((_share(number, tensor), size) for number, size in _units(site))
    return replace(site, units=units, out_features=sum(number * size for number, size in units))


def _uneven(facts: ModelFacts, tensor: int) -> list[str]:
    """Sizes that ``tensor`` ranks can neither divide evenly nor, where there are fewer units than ranks, repeat."""
    sizes = [(site.num_heads, False, f"heads of {site.site}") for site in facts.attention]
    sizes += [(site.num_kv_heads, True, f"key and value heads of {site.site}") for site in facts.attention]
    sizes += [(site.units, False, f"groups of heads of {site.site}") for site in facts.recurrent]
    sizes += [(site.intermediate_size, False, f"features of the experts of {site.site}") for site in facts.moe]
    for site in facts.linear:
        if site.parallel == "row":
            sizes.append((site.in_features, False, f"features into {site.site}"))
        elif site.parallel == "column":
            sizes += [(number, True, f"units of {site.site}") for number, _ in _units(site)]
    named = [f"{size} {what}" for size, few, what in sizes if size % tensor and not (few and tensor % size == 0)]
    return list(dict.fromkeys(named))
