"""The weight format of each site: from the methods that read its modules, by the rules of the configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmk.api import (
    OK,
    Checkpoint,
    CheckpointError,
    LinearFacts,
    ModelFacts,
    MoEFacts,
    OpFacts,
    PluginError,
    QuantizationSpec,
    SelectionError,
    Verdict,
    no,
)
from llmk.config import Config, SelectSection
from llmk.config.schema import SelectSections
from llmk.planning.formats import WeightFormats, choose_formats, variants, with_formats

LAYERS = range(3)


def linear(site: str, *parts: str, **fields: Any) -> LinearFacts:
    modules = tuple(tuple(f"layers.{layer}.{part}" for part in parts) for layer in LAYERS) if parts else ()
    return LinearFacts(site=site, in_features=8, out_features=8, count=len(LAYERS), modules=modules, **fields)


EXPERTS = MoEFacts(
    site="moe", num_experts=2, top_k=1, hidden_size=8, intermediate_size=8, count=3,
    modules=tuple((f"layers.{layer}.experts.0.up",) for layer in LAYERS),
)  # fmt: skip
FACTS = ModelFacts(
    architecture="A", model="m.a", num_layers=3, hidden_size=8, vocab_size=16, max_model_len=64, dtype="bfloat16",
    num_parameters=1000, moe=(EXPERTS,),
    linear=(linear("qkv", "q", "k"), linear("down", "down"), linear("head", quantizable=False)),
    ops=(OpFacts(site="norm", op="norm"), OpFacts(site="norm_down", op="norm_linear", linear="down")),
)  # fmt: skip
CHECKPOINT = Checkpoint(Path(), {"quantization_config": {"quant_method": "mixed"}})


class Registry:
    """A registry of quantization methods."""

    def __init__(self, *specs: QuantizationSpec) -> None:
        self._specs = specs

    def of(self, spec_type: type) -> list[Any]:
        return [Registered(spec) for spec in self._specs]


class Plugin:
    wheel, way_out = "a-wheel 1.0", "uninstall it"


class Registered:
    plugin = Plugin()

    def __init__(self, spec: QuantizationSpec) -> None:
        self.spec = spec


def method(name: str, reads: Callable[[str], Verdict | None], weight_format: str = "", **fields: Any) -> Any:
    """A method ``a.name`` with the format ``name``."""
    return QuantizationSpec(
        id=f"a.{name}", name=name, weight_format=weight_format or name, claims=lambda checkpoint: OK,
        implementation="m:C", modules=lambda checkpoint: reads, **fields,
    )  # fmt: skip


def where(part: str) -> Callable[[str], Verdict | None]:
    """Reads modules whose name has the part, others have another format."""
    return lambda module: OK if part in module else no("scheme", wanted=part, found="another")


def chosen(*specs: QuantizationSpec, **rules: Any) -> WeightFormats:
    config = Config(select=SelectSections(quantization=SelectSection(**rules)))
    formats = choose_formats(Registry(*specs), config, CHECKPOINT)  # type: ignore[arg-type]
    assert formats is not None
    return formats


def test_only_methods_that_read_heads_are_asked_about_one() -> None:
    head = LinearFacts(site="lm_head", in_features=8, out_features=16, modules=(("lm_head",),), parallel="vocab")
    facts = replace(FACTS, linear=(*FACTS.linear, head))
    for heads, expected in ((False, "plain"), (True, "fp8")):
        found = with_formats(facts, chosen(method("fp8", lambda module: OK, heads=heads)))
        assert [site.weight_format for site in found.linear] == ["fp8", "fp8", "plain", expected]


def test_a_site_is_split_by_the_formats_of_its_layers() -> None:
    lists = {"layers.1.down": None, "layers.2.experts.0.up": no("scheme")}
    formats = chosen(method("fp8", lambda module: lists.get(module, OK)), method("int4", where("2.experts")))
    facts = with_formats(FACTS, formats)
    assert [(site.site, site.weight_format, site.count) for site in facts.linear] == [
        ("qkv", "fp8", 3), ("down.fp8", "fp8", 2), ("down.plain", "plain", 1), ("head", "plain", 3),
    ]  # fmt: skip
    assert [(site.site, site.weight_format, site.count) for site in facts.moe] == [
        ("moe.fp8", "fp8", 2),
        ("moe.int4", "int4", 1),
    ]
    assert [(op.site, op.linear) for op in facts.ops] == [
        ("norm", None), ("norm_down.fp8", "down.fp8"), ("norm_down.plain", "down.plain"),
    ]  # fmt: skip
    assert [(each.kind, each.site, each.variant, each.members) for each in variants(facts)] == [
        ("linear", "down", "down.fp8", ("layers.0.down", "layers.2.down")),
        ("linear", "down", "down.plain", ("layers.1.down",)),
        ("moe", "moe", "moe.fp8", ("layers.0.experts.0.up", "layers.1.experts.0.up")),
        ("moe", "moe", "moe.int4", ("layers.2.experts.0.up",)),
        ("op", "norm_down", "norm_down.fp8", ("down.fp8",)),
        ("op", "norm_down", "norm_down.plain", ("down.plain",)),
    ]
    assert [choice.id for choice in formats.choices] == ["a.fp8", "a.int4"]
    assert with_formats(facts, formats) == facts


def test_one_format_leaves_the_sites_as_they_are() -> None:
    facts = with_formats(FACTS, chosen(method("fp8", lambda module: OK), method("unused", where("nothing"))))
    assert [site.site for site in facts.linear] == ["qkv", "down", "head"]
    assert (facts.ops, [*variants(facts)]) == (FACTS.ops, [])
    assert {site.weight_format for site in (*facts.linear[:2], *facts.moe)} == {"fp8"}


def test_members_of_one_layer_that_disagree_are_named() -> None:
    formats = chosen(method("fp8", lambda module: None if module == "layers.1.k" else OK))
    with pytest.raises(CheckpointError, match=r"one GEMM: layers\.1\.q \(fp8\), layers\.1\.k \(plain\)"):
        with_formats(FACTS, formats)


def test_a_module_that_no_method_reads_is_named_with_all_reasons() -> None:
    specs = method("fp8", where("q")), method("int4", where("k"))
    with pytest.raises(CheckpointError, match=r"stores layers\.0\.down .*chosen for others: a\.fp8, a\.int4") as caught:
        with_formats(replace(FACTS, linear=FACTS.linear[1:]), chosen(*specs))
    assert [(reason.wanted, reason.hint) for reason in caught.value.reasons] == [
        ("q", "a.fp8"),
        ("k", "a.int4"),
    ]


def test_of_two_methods_that_read_a_module_a_rule_decides() -> None:
    specs = method("fp8", lambda module: OK), method("other", lambda module: OK)
    with pytest.raises(SelectionError, match=r"a\.fp8 of a-wheel 1\.0 and a\.other of a-wheel 1\.0 tie"):
        with_formats(FACTS, chosen(*specs))
    for rules in ({"use": "a.other"}, {"prefer": ("a.other",)}, {"avoid": ("a.fp8",)}):
        assert with_formats(FACTS, chosen(*specs, **rules)).linear[0].weight_format == "other"


def test_two_methods_of_one_format_are_refused() -> None:
    specs = method("a", where("q"), "fp8"), method("b", lambda module: None if "q" in module else OK, "fp8")
    facts = replace(FACTS, linear=(linear("q", "q"), linear("down", "down")))
    with pytest.raises(SelectionError, match=r"a\.a and a\.b both load modules .* weight format 'fp8'"):
        with_formats(facts, chosen(*specs))


def test_a_site_without_names_needs_one_method_for_all() -> None:
    facts = replace(FACTS, linear=(linear("up"),), moe=())
    assert with_formats(facts, chosen(method("fp8", where("nothing")))).linear[0].weight_format == "fp8"
    with pytest.raises(SelectionError, match="tie"):
        with_formats(facts, chosen(method("fp8", where("q")), method("int4", where("k"))))


def test_a_method_that_raises_is_named() -> None:
    def raises(module: str) -> Verdict:
        raise KeyError(module)

    with pytest.raises(PluginError, match=r"a\.fp8 of a-wheel 1\.0 can't say which modules"):
        with_formats(FACTS, chosen(method("fp8", raises)))
