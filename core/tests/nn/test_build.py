"""Binding: plain callables where one kernel serves, switches where several do, composites from their parts."""

from __future__ import annotations

import pytest
import torch
from plans import build, choice, few, linear, many, piece

from llmk.api import PluginError, SiteVariant
from llmk.nn import Linear, Switch
from llmk.nn.parallel import Parallel

BANDS = (piece("few", band=(0, 9)), piece("many", band=(9, 1 << 31)))


def test_a_site_with_one_kernel_is_bound_to_the_function_itself() -> None:
    made = build(choice("op", "norm", piece("few")), choice("linear", "out", piece("linear")))
    assert made.kernel("op", "norm") is few
    assert made.linear("out").run is linear


def test_a_piecewise_site_changes_kernel_between_steps_only() -> None:
    made = build(choice("op", "norm", *BANDS))
    kernel = made.kernel("op", "norm")
    answers = []
    for num_tokens in (1, 8, 9, 4000, 8):
        made.select(num_tokens)
        answers.append(kernel(num_tokens))
    assert answers == [("few", 1), ("few", 8), ("many", 9), ("many", 4000), ("few", 8)]


def test_switches_with_different_bands_are_all_switched() -> None:
    odd = (piece("many", band=(0, 5)), piece("few", band=(5, 1 << 31)))
    made = build(choice("op", "a", *BANDS), choice("op", "b", *odd))
    a, b = made.kernel("op", "a"), made.kernel("op", "b")
    seen = []
    for num_tokens in (1, 6, 20, 4):
        made.select(num_tokens)
        seen.append((a(0)[0], b(0)[0]))
    assert seen == [("few", "many"), ("few", "few"), ("many", "few"), ("few", "many")]


def test_a_switch_bound_after_the_first_step_is_switched_too() -> None:
    made = build(choice("op", "a", *BANDS), choice("op", "b", *BANDS))
    made.kernel("op", "a")
    made.select(100)
    late = made.kernel("op", "b")
    made.select(100)
    assert late(0)[0] == "many"


def test_select_does_nothing_within_the_current_range(monkeypatch: pytest.MonkeyPatch) -> None:
    made = build(choice("op", "a", *BANDS))
    made.kernel("op", "a")
    made.select(1)
    asked: list[int] = []
    monkeypatch.setattr(Switch, "select", lambda self, n: asked.append(n) or (0, 9))
    made.select(8)
    assert asked == []
    made.select(9)
    assert asked == [9]


def test_a_composite_gets_its_parts_bound() -> None:
    once = choice("op", "twice.once", *BANDS, op="once")
    made = build(choice("op", "twice", piece("make_twice", parts=("once",)), op="twice", parts=(once,)))
    kernel = made.kernel("op", "twice")
    made.select(2)
    assert kernel(7) == ("few", ("few", 7))
    made.select(200)
    assert kernel(7) == ("many", ("many", 7))


def test_a_layer_binds_the_variant_of_its_module() -> None:
    """Layers of a site with several formats, and the ops over them, which are not the same launches."""
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    variants = (
        SiteVariant("linear", "up", "up.plain", ("a.up",)),
        SiteVariant("linear", "up", "up.other", ("b.up",)),
        SiteVariant("op", "up_twice", "up_twice.plain", ("up.plain",)),
        SiteVariant("op", "up_twice", "up_twice.other", ("up.other",)),
    )
    twice = piece("make_linear_twice", parts=("linear",))
    choices = [choice("linear", "up.plain", piece("linear")), choice("linear", "up.other", piece("linear_says_few"))]
    ops = [choice("op", f"up_twice.{name}", twice, op="up_twice") for name in ("plain", "other")]
    made = build(*choices, *ops, variants=variants)
    layers = [Linear(made, f"{name}.up", 4, (5,), site="up") for name in "ab"]
    assert [layer.site for layer in layers] == ["up.plain", "up.other"]
    plain, other = (made.kernel("op", "up_twice", linear=layer.site)(x, weight, None) for layer in layers)
    torch.testing.assert_close(plain, 2 * x @ weight.t())
    torch.testing.assert_close(other, 2 * x @ weight.t() + 2)
    stage = made.stage_layers(6, lambda index: Linear(made, f"{'aab'[index % 3]}.up", 4, (5,), site="up"))
    with made.representative_layers():
        assert [layer.site for layer in stage] == ["up.plain", "up.plain", "up.other", "up.other"]
    with pytest.raises(KeyError, match=r"no linear site 'up'"):
        Linear(made, "c.up", 4, (5,), site="up")


def test_a_composite_over_a_linear_site_calls_its_kernel() -> None:
    made = build(
        choice("linear", "up", piece("linear")),
        choice("op", "up_twice", piece("make_linear_twice", parts=("linear",))),
    )
    x, weight = torch.randn(3, 4), torch.randn(5, 4)
    torch.testing.assert_close(made.kernel("op", "up_twice", linear="up")(x, weight, None), 2 * x @ weight.t())


def test_a_missing_part_is_named() -> None:
    made = build(choice("op", "twice", piece("make_twice", parts=("once",))))
    with pytest.raises(PluginError, match="needs part 'once'"):
        made.kernel("op", "twice")


def test_a_site_that_the_plan_lacks_is_named() -> None:
    with pytest.raises(KeyError, match="no op site 'norm'"):
        build().kernel("op", "norm")


def test_a_switch_refuses_counts_outside_its_bands() -> None:
    with pytest.raises(ValueError, match="no kernel for 9 tokens"):
        Switch([(0, 9, many)]).select(9)


def test_attention_backends_change_together_with_the_ops_that_write_for_them() -> None:
    """Prepare, write and run of one step are always one backend's."""
    pieces = (piece("FewAttention", band=(0, 9)), piece("ManyAttention", band=(9, 1 << 31)))
    write = choice("op", "store", piece("make_write", parts=("attention.write",)))
    attend = choice("op", "attend", piece("make_run", parts=("attention.run",)))
    made = build(choice("attention", "attention", *pieces), write, attend)
    backend, store = made.attention("attention"), made.kernel("op", "store", attention="attention")
    run = made.kernel("op", "attend", attention="attention")
    for num_tokens, name in ((1, "few"), (64, "many"), (2, "few")):
        made.select(num_tokens)
        meta = backend.prepare(num_tokens)
        cache: list[object] = []
        store(None, None, cache, meta)
        assert cache == [(name, (name, num_tokens))]
        assert backend.run(None, cache, meta) == run(None, cache, meta) == (name, (name, num_tokens))


def test_representative_layers_launch_the_kernels_of_all() -> None:
    made = build(*(choice("op", site, piece("few")) for site in "ab"), choice("linear", "out", piece("linear")))

    def layer(index: int) -> int:
        made.kernel("op", "b" if index % 3 == 2 else "a")
        Linear(made, str(index), 4, (8 if index == 6 else 4,), site="out")
        return index

    layers = made.stage_layers(9, layer)
    with made.representative_layers():
        assert list(layers) == [0, 1, 2, 5, 6]
        assert (len(layers), layers[8]) == (9, 8)
    assert list(layers) == list(range(9))


def test_representative_layers_are_those_of_the_stage() -> None:
    made = build(parallel=Parallel(stage=1, num_stages=2))
    layers = made.stage_layers(8, lambda index: index)
    with made.representative_layers():
        assert list(layers) == [4, 5]
