"""Which speculator is chosen and how it is made, and how the plan shows it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from wheelhouse import Wheelhouse

from llmk.api import Choice, Plan, PlatformFacts, PluginError, Reason, SelectionError
from llmk.config import load
from llmk.planning.boot import Boot
from llmk.planning.choices.speculation import (
    choose_speculator,
    device_speculator,
    head_speculator,
    host_speculator,
    render_speculation,
    speculation_of,
)

CODE = """
from types import SimpleNamespace
from llmk.api import no

@hookimpl
def llmk_speculators():
    where = "plug_{name}:Drafts"
    return [
        SpeculatorSpec(id="{name}.host", name="{spoken}", implementation=where),
        SpeculatorSpec(id="{name}.device", name="{spoken}-device", implementation="plug_{name}:Wide", on_device=True),
        SpeculatorSpec(id="{name}.heads", name="{spoken}-heads", implementation="plug_{name}:Headed", heads=True),
        SpeculatorSpec(id="{name}.other", name="other", implementation=where, supports=same_vocabulary),
    ]

def same_vocabulary(checkpoint):
    return no("vocab_size", wanted=checkpoint.config["vocab_size"], found=32000, hint="name a draft of the same family")

class Drafts:
    def __init__(self, context):
        if context.options.get("depth") == 0:
            raise ValueError("depth must be at least 1")
        self.context = context
    def propose(self, request, tokens, most):
        return ()

class Wide:
    def __init__(self, context):
        self.context = context
    def propose(self, tokens, known, slots, width):
        return None

class Headed:
    def __init__(self, context):
        self.context = context
    def follow(self, heads, hidden, following, rows):
        return hidden
    def propose(self, heads, hidden, counts):
        return None
"""
CHECKPOINT: Any = SimpleNamespace(config={"vocab_size": 151936})
FACTS: Any = SimpleNamespace(vocab_size=151936, max_model_len=512)


def choose(house: Wheelhouse, excluded: dict[str, Reason] | None = None, **rules: Any) -> Choice | None:
    config = load({f"speculation.{key}": value for key, value in rules.items()}, environ={}).config
    return choose_speculator(house.discover(), config, CHECKPOINT, excluded or {})


def booted(house: Wheelhouse, use: str, **options: Any) -> Boot:
    """A boot whose plan has nothing but the speculator."""
    settings = load({"speculation.use": use, "speculation.num_drafts": 3}, environ={})
    registry = house.discover()
    choice = choose_speculator(registry, settings.config, CHECKPOINT, {})
    config = settings.config.model_copy(update={"plugin": {"acme": options}})
    plan = Plan(
        PlatformFacts(name="x", arch="y", device_type="cpu"), "", "", "", "", "", "", (choice,) if choice else ()
    )
    return Boot(replace(settings, config=config), registry, CHECKPOINT, FACTS, plan.platform, plan)


@pytest.mark.hook("llmk_speculators")
def test_a_speculator_is_used_only_where_it_is_named(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("acme", CODE.format(name="acme", spoken="echo"))
    assert choose(wheelhouse) is None
    choice = choose(wheelhouse, use="echo")
    assert choice is not None
    assert (choice.kind, choice.site, choice.id) == ("speculator", "speculation", "acme.host")
    assert choice.pieces[0].distribution == "acme-wheel"
    assert choice.pieces[0].why == "pinned by [speculation] use"
    assert {out.id for out in choice.rejected} == {"acme.device", "acme.heads", "acme.other"}
    on_device = choose(wheelhouse, use="acme.device")
    assert on_device is not None
    assert (on_device.kind, on_device.id) == ("device_speculator", "acme.device")
    by_heads = choose(wheelhouse, use="echo-heads")
    assert by_heads is not None
    assert (by_heads.kind, by_heads.id) == ("head_speculator", "acme.heads")
    wheelhouse.install("third", CODE.format(name="third", spoken="echo"))
    with pytest.raises(SelectionError, match=r"acme\.host .* and third\.host .* tie"):
        choose(wheelhouse, use="echo")


def test_one_that_is_missing_broken_or_of_another_vocabulary(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("acme", CODE.format(name="acme", spoken="echo"))
    with pytest.raises(SelectionError, match=r"\[speculation\] names 'eco', which is not installed") as missing:
        choose(wheelhouse, use="eco")
    assert "installed: " in str(missing.value.hint)
    with pytest.raises(SelectionError, match=r"echo is pinned by \[speculation\] use, but can't serve") as broken:
        choose(wheelhouse, {"acme.host": Reason("import_failed", found="no module")}, use="echo")
    assert [reason.code for reason in broken.value.reasons] == ["import_failed"]
    with pytest.raises(SelectionError, match=r"acme\.other is pinned by \[speculation\] use") as other:
        choose(wheelhouse, use="acme.other")
    (reason,) = other.value.reasons
    assert (reason.code, reason.wanted, reason.found) == ("vocab_size", "151936", "32000")


def test_it_is_made_with_its_section_of_the_configuration(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("acme", CODE.format(name="acme", spoken="echo"))
    boot = booted(wheelhouse, "echo", depth=4)
    made: Any = host_speculator(boot)
    context = made.context
    assert (context.vocab_size, context.max_drafts, context.max_len) == (151936, 3, 512)
    assert context.options == {"depth": 4}
    assert device_speculator(boot) is None
    assert render_speculation(boot).startswith("speculation: up to 3 drafts per request and step, as many as pay, by ")
    boot = booted(wheelhouse, "acme.device")
    assert host_speculator(boot) is None
    assert device_speculator(boot) is not None
    assert "on the device" in render_speculation(boot)
    boot = booted(wheelhouse, "acme.heads")
    assert (host_speculator(boot), device_speculator(boot)) == (None, None)
    assert head_speculator(boot) is not None
    assert "the model's own heads" in render_speculation(boot)
    nothing = booted(wheelhouse, "")
    assert (speculation_of(nothing.plan), render_speculation(nothing)) == (None, "")


def test_one_that_refuses_its_options_is_one_error(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("acme", CODE.format(name="acme", spoken="echo"))
    with pytest.raises(PluginError, match=r"acme\.host of acme-wheel .* can't be made") as refused:
        host_speculator(booted(wheelhouse, "echo", depth=0))
    assert "depth must be at least 1" in str(refused.value.reasons[0])
    assert "[plugin.acme]" in str(refused.value.hint)
