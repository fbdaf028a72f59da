"""Plugins are found, checked and imported one by one; what is wrong with one is its own affair."""

from __future__ import annotations

import sys

import pytest
from wheelhouse import Wheelhouse, kernels

from llmk.api import errors
from llmk.kernel.discovery import Plugin

GOOD = kernels("good", "linear_kernels", 'id="good.linear", tier=Tier.NATIVE')


def reasons(plugin: Plugin) -> str:
    return " ".join(str(reason) for reason in plugin.reasons)


def test_good_plugin_is_active(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("good", GOOD, version="2.5")
    plugin = wheelhouse.plugin("good")
    assert (plugin.state, plugin.wheel, plugin.hooks) == ("active", "good-wheel 2.5", ("llmk_linear_kernels",))
    assert plugin.reasons == []


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise RuntimeError('no such chip')", "RuntimeError: no such chip"),
        ("import surely_not_installed", "ModuleNotFoundError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
        ("class Stop(BaseException): pass\nraise Stop('odd')", "Stop: odd"),
    ],
)
def test_broken_import_is_quarantined_with_its_traceback(wheelhouse: Wheelhouse, statement: str, said: str) -> None:
    wheelhouse.install("bad", statement)
    wheelhouse.install("good", GOOD)
    registry = wheelhouse.discover()
    bad = next(plugin for plugin in registry.plugins if plugin.name == "bad")
    assert bad.state == "broken"
    assert said in reasons(bad)
    assert "plug_bad" in bad.traceback
    assert [r.spec.id for r in registry.kernels("linear") if r.plugin.name == "good"] == ["good.linear"]
    (warning,) = registry.warnings
    assert "bad-wheel 1.0" in warning


def test_interrupt_is_not_swallowed(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("bad", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        wheelhouse.discover()


@pytest.mark.parametrize(
    ("requires", "state"),
    [
        (["llmk-core>=0.1,<0.2"], "active"),
        (["LLMK_core >= 99"], "incompatible"),
        (["llmk-core>=0.0.1", "llmk-core<0.1"], "incompatible"),
        (['llmk-core>=99; extra == "new"'], "active"),
        (['llmk-core>=99; python_version >= "3"'], "incompatible"),
        (["numpy>=99"], "active"),
        (["not a requirement ;;"], "broken"),
    ],
)
def test_core_version_is_checked_before_import(wheelhouse: Wheelhouse, requires: list[str], state: str) -> None:
    wheelhouse.install("good", GOOD, requires=requires)
    assert wheelhouse.plugin("good").state == state
    assert ("plug_good" in sys.modules) == (state == "active")


def test_incompatible_says_what_is_needed_and_what_there_is(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("good", GOOD, requires=["llmk-core>=99"])
    text = reasons(wheelhouse.plugin("good"))
    for part in ("llmk-core>=99", "llmk-core 0.1.0", "pip install -U 'llmk-core>=99'"):
        assert part in text


def test_plugin_of_a_later_api_is_incompatible(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("good", GOOD, group="llmk.v2")
    plugin = wheelhouse.plugin("good")
    assert plugin.state == "incompatible"
    assert "llmk.v2" in reasons(plugin)
    assert "llmk.v1" in reasons(plugin)


@pytest.mark.parametrize("name", ["good", "good-wheel", "Good_Wheel"])
def test_disable_takes_either_name(wheelhouse: Wheelhouse, name: str) -> None:
    wheelhouse.install("good", GOOD)
    plugin = wheelhouse.plugin("good", disable=[name])
    assert plugin.state == "blocked"
    assert "plug_good" not in sys.modules


def test_only_spares_the_core(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("good", GOOD)
    wheelhouse.install("other", "")
    states = {plugin.name: plugin.state for plugin in wheelhouse.discover(only=["good"]).plugins}
    assert (states["good"], states["other"], states["reference"]) == ("active", "blocked", "active")


def test_second_wheel_of_a_name_conflicts_and_names_both(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("good", GOOD, wheel="aa-wheel")
    wheelhouse.install("good", GOOD, wheel="bb-wheel", module="plug_other")
    found = {p.distribution: p for p in wheelhouse.discover().plugins}
    assert (found["aa-wheel"].state, found["bb-wheel"].state) == ("active", "conflicting")
    text = reasons(found["bb-wheel"])
    for part in ("aa-wheel 1.0", "bb-wheel 1.0", '[plugins] disable = ["aa-wheel"]'):
        assert part in text
    assert "plug_other" not in sys.modules
    settled = {p.distribution: p.state for p in wheelhouse.discover(disable=["aa-wheel"]).plugins}
    assert (settled["aa-wheel"], settled["bb-wheel"]) == ("blocked", "active")


def test_first_party_wheels_keep_their_names(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("good", GOOD, wheel="aa-wheel")
    wheelhouse.install("good", GOOD, wheel="llmk-wheel", module="plug_own")
    found = {p.distribution: p.state for p in wheelhouse.discover().plugins}
    assert (found["llmk-wheel"], found["aa-wheel"]) == ("active", "conflicting")


def test_unknown_hook_is_an_error_with_a_suggestion(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("bad", "@hookimpl\ndef llmk_linear_kernel():\n    return []\n")
    plugin = wheelhouse.plugin("bad")
    assert plugin.state == "broken"
    assert "llmk_linear_kernel" in reasons(plugin)
    assert "did you mean llmk_linear_kernels?" in reasons(plugin)


def test_hook_with_an_argument_that_there_is_not(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("bad", "@hookimpl\ndef llmk_plan_resolved(plan, mood):\n    ...\n")
    plugin = wheelhouse.plugin("bad")
    assert plugin.state == "broken"
    assert "mood" in reasons(plugin)


def test_hook_may_leave_out_arguments(wheelhouse: Wheelhouse) -> None:
    code = "@hookimpl\ndef llmk_config_defaults():\n    return [Default('cache.block_size', 8, 'why')]\n"
    wheelhouse.install("terse", code)
    plugin = wheelhouse.plugin("terse")
    assert plugin.call("llmk_config_defaults", platform=None, model=None)[0].value == 8


def test_plugin_without_marked_hooks_says_so(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("mute", "def llmk_ops():\n    return []\n")
    plugin = wheelhouse.plugin("mute")
    assert plugin.state == "loaded"
    assert "@hookimpl" in reasons(plugin)


PATCHES = {
    "a method": "import llmk.api.errors as errors\nerrors.LlmkError.__str__ = lambda self: 'fine'",
    "a wrapped one": (
        "import functools\nimport llmk.api.errors as errors\nformer = errors.LlmkError.__str__\n"
        "@functools.wraps(former)\ndef wrapped(self): return 'fine'\nerrors.LlmkError.__str__ = wrapped"
    ),
    "a function": "import llmk.api.errors as errors\nerrors.describe = lambda error: 'fine'",
}


@pytest.mark.parametrize("code", PATCHES.values(), ids=PATCHES)
def test_a_plugin_that_replaces_what_is_llmks_is_named_and_fatal(
    wheelhouse: Wheelhouse, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(errors.LlmkError, "__str__", errors.LlmkError.__str__)
    monkeypatch.setattr(errors, "describe", errors.describe)
    wheelhouse.install("patcher", code)
    registry = wheelhouse.discover()
    (plugin,) = [plugin for plugin in registry.plugins if plugin.name == "patcher"]
    assert (plugin.state, [reason.code for reason in plugin.reasons]) == ("broken", ["replaced"])
    assert "llmk.api.errors." in plugin.reasons[0].found
    with pytest.raises(errors.PluginError) as caught:
        registry.enforce()
    assert "'patcher' of patcher-wheel 1.0" in caught.value.message
    assert "disable" in caught.value.hint
    wheelhouse.discover(disable=["patcher"]).enforce()
