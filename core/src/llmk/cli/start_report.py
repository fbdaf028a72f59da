"""What ``llmk serve`` says once it serves: what a person wants to know first, within 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from llmk import __version__
from llmk.cli.terminal import Style
from llmk.planning.memory import ANY_LENGTH, gib, held_by, weight_bytes
from llmk.planning.shadows import render_shadows
from llmk.planning.summary import render_advice, render_kernels, render_measured
from llmk.planning.tables import render_pairs, wrapped

if TYPE_CHECKING:
    from llmk.engine.async_llm import AsyncLLM
    from llmk.planning.boot import Boot
    from llmk.serve.service import Service

WIDTH = 80
"""Columns of a report, no matter how wide the terminal is."""


_LABELS = ("llmk", "model", "device", "memory", "context", "measured", "parsers")


def render_start(service: Service, style: Style, width: int = WIDTH) -> str:
    """The report, without the URL, which is printed below it."""
    engine, width = service.engine, min(width or WIDTH, WIDTH)
    plan = engine.boot.plan
    path = engine.boot.settings.config.model.path
    model = f" {path}" if path else ""
    facts = render_pairs([*_facts(engine, model), *_parsers(service)], width)
    lines = [_styled(facts, style), ""]
    lines += [wrapped(line, width) for line in render_kernels(plan, model, width)]
    if plan.shadows:
        lines += [render_shadows(engine.boot, width)]
    lines += [style.warning(wrapped(line, width)) for line in render_advice(plan, model)]
    return "\n".join(lines)


def _facts(engine: AsyncLLM, model: str) -> Iterator[tuple[str, str]]:
    boot, info = engine.boot, engine.info
    plan, config = boot.plan, boot.settings.config
    methods = "".join(f", weights by {method.id}" for method in plan.quantization)
    count = _count(boot.facts.num_parameters)
    yield "llmk", __version__
    yield "model", f"{engine.model_name}: {plan.architecture}, {count} parameters, {plan.dtype}{methods}"
    ranks = f", {plan.tensor} x {plan.pipeline} processes (tensor x pipeline)" if plan.num_ranks > 1 else ""
    yield "device", f"{plan.platform.device_name or plan.platform.name} ({plan.platform.label}){ranks}"
    yield "memory", _memory(boot, info.num_blocks)
    yield "context", f"{info.max_model_len:,} tokens; up to {config.scheduler.max_num_seqs} requests at once"
    yield "measured", render_measured(plan, model)


def _memory(boot: Boot, num_blocks: int) -> str:
    weights = gib(weight_bytes(boot.facts, boot.plan.dtype, boot.plan.weight_bits))
    held, size = held_by(boot, num_blocks)
    if not num_blocks or not size:
        return f"{weights} weights, no cache"
    tokens = "requests of any length" if held == ANY_LENGTH else f"{held:,} tokens"
    each = " on each device" if boot.plan.num_ranks > 1 else ""
    return f"{weights} weights, {gib(size)} cache{each}, which holds {tokens}"


def _parsers(service: Service) -> Iterator[tuple[str, str]]:
    found = [f"{kind} {p['id']}" for kind, p in service.dialect.describe().items() if p["id"]]
    yield "parsers", ", ".join(found) or "none: reasoning and tool calls stay in the text"


def _count(number: int) -> str:
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:,}"


def _styled(facts: str, style: Style) -> str:
    """With bold labels."""
    end = max(len(name) for name in _LABELS)
    return "\n".join(style.strong(line[:end]) + line[end:] for line in facts.splitlines())
