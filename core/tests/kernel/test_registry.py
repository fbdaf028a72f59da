"""Specs are collected and validated plugin by plugin; ids are unique; overriding takes consent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from wheelhouse import Wheelhouse, kernels

from llmk.api import KernelSpec, OpContract, ParserSpec, PluginError, Tier, TokenBand
from llmk.config import PluginsSection
from llmk.kernel.registry import HOOKS, Registry

BASE = kernels("base", "linear_kernels", 'id="base.linear", tier=Tier.NATIVE')


def reasons(registry: Registry, name: str) -> str:
    (plugin,) = (plugin for plugin in registry.plugins if plugin.name == name)
    return f"{plugin.state}: {' '.join(map(str, plugin.reasons))}"


def ids(registry: Registry) -> list[str]:
    return [r.spec.id for r in registry.kernels("linear") if r.plugin.name != "reference"]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ValueError('not today')", "ValueError: not today"),
        ("import sys; sys.exit(1)", "SystemExit"),
        ("yield 1 / 0", "ZeroDivisionError"),
        ("return 7", "llmk_ops returned int, not KernelSpec"),
        ("return ['x']", "llmk_ops returned str, not KernelSpec"),
        (
            "return [KernelSpec(id='bad.x', kind='op', op='x', implementation='nowhere', tier=Tier.NATIVE)]",
            "'nowhere' is not of the form 'module:attribute'",
        ),
        ("return [KernelSpec(id='bad.x', kind='op', implementation='a:b', tier=Tier.NATIVE)]", "an op must be named"),
        (
            "return [KernelSpec(id='other.x', kind='op', op='x', implementation='a:b', tier=Tier.NATIVE)]",
            "'other.x' is not of the form 'bad.name', where 'bad' is the entry point's name",
        ),
        (
            "return [KernelSpec(id='bad.', kind='op', op='x', implementation='a:b', tier=Tier.NATIVE)]",
            "not of the form 'bad.name'",
        ),
        (
            "return [KernelSpec(id='bad.x', kind='op', op='x', implementation='a:b', tier=Tier.NATIVE)] * 2",
            "'bad.x' is registered twice",
        ),
        (
            "return [KernelSpec(id='bad.x', kind='linear', implementation='a:b', tier=Tier.NATIVE)]",
            "is of kind 'linear', but a hook for kind 'op' returned it",
        ),
    ],
)
@pytest.mark.hook("llmk_ops")
def test_bad_answer_spoils_its_plugin_alone(wheelhouse: Wheelhouse, code: str, said: str) -> None:
    fine = kernels("bad", "linear_kernels", 'id="bad.linear", tier=Tier.NATIVE')
    wheelhouse.install("bad", f"{fine}\n@hookimpl\ndef llmk_ops():\n    {code}\n")
    wheelhouse.install("base", BASE)
    registry = wheelhouse.discover()
    assert reasons(registry, "bad").startswith("broken")
    assert said in reasons(registry, "bad")
    assert ids(registry) == ["base.linear"]


def test_one_id_may_serve_two_kinds(wheelhouse: Wheelhouse) -> None:
    spec = "ParserSpec(id='p.x', name='x', implementation='a:b', claims=lambda query: OK)"
    hooks = (f"@hookimpl\ndef llmk_{kind}_parsers():\n    return [{spec}]\n" for kind in ("reasoning", "tool"))
    wheelhouse.install("p", "\n".join(hooks))
    registry = wheelhouse.discover()
    assert [r.kind for r in registry.of(ParserSpec)] == ["reasoning_parser", "tool_parser"]


def test_hook_that_raises_later_takes_its_specs_with_it(wheelhouse: Wheelhouse) -> None:
    code = BASE + "\n@hookimpl\ndef llmk_config_schema():\n    raise OSError('late')\n"
    wheelhouse.install("base", code)
    registry = wheelhouse.discover()
    assert ids(registry) == ["base.linear"]
    assert registry.call("llmk_config_schema", type) == []
    assert ids(registry) == []
    assert "OSError: late" in reasons(registry, "base")


def test_specs_refuse_to_be_malformed() -> None:
    def spec(*bands: TokenBand) -> KernelSpec:
        return KernelSpec(id="a.b", kind="linear", implementation="m:f", tier=Tier.NATIVE, bands=bands)

    assert spec(TokenBand(5, 9), TokenBand(1, 5)).bands[0].start == 5
    for bands in ((), (TokenBand(0, 4),), (TokenBand(4, 4),), (TokenBand(1, 5), TokenBand(4, 9))):
        with pytest.raises(ValueError, match="token band"):
            spec(*bands)
    with pytest.raises(ValueError, match="prepare"):
        KernelSpec(id="a.b", kind="linear", implementation="m:f", prepare="m", tier=Tier.NATIVE)


OVERRIDE = kernels("over", "linear_kernels", 'id="over.linear", tier=Tier.REFERENCE, overrides="base.linear"')


def test_override_without_consent_is_refused_with_the_line_that_consents(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("base", BASE)
    wheelhouse.install("over", OVERRIDE)
    registry = wheelhouse.discover()
    assert ids(registry) == ["base.linear"]
    ((refused, reason),) = registry.refused
    assert refused.spec.id == "over.linear"
    for part in ("base.linear of base-wheel 1.0", '[plugins] allow_overrides = ["base.linear"]'):
        assert part in str(reason)


def test_override_with_consent_takes_the_others_place(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("base", BASE)
    wheelhouse.install("over", OVERRIDE)
    registry = wheelhouse.discover(allow_overrides=["base.linear"])
    assert ids(registry) == ["over.linear"]
    ((refused, reason),) = registry.refused
    assert (refused.spec.id, reason.code) == ("base.linear", "overridden")
    assert "over.linear of over-wheel 1.0" in str(reason)


def test_second_override_of_one_id_is_refused(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("base", BASE)
    wheelhouse.install("over", OVERRIDE)
    wheelhouse.install("rival", OVERRIDE.replace("over.linear", "rival.linear").replace("plug_over", "plug_rival"))
    registry = wheelhouse.discover(allow_overrides=["base.linear"])
    assert ids(registry) == ["over.linear"]
    codes = {refused.spec.id: reason.code for refused, reason in registry.refused}
    assert codes == {"base.linear": "overridden", "rival.linear": "override_conflict"}


def test_override_of_what_is_not_there_needs_no_consent(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("over", OVERRIDE)
    registry = wheelhouse.discover()
    assert (ids(registry), registry.refused) == (["over.linear"], [])


def contracts(plugin: str, *ops: str, **others: str) -> str:
    more = "".join(f", {name}={value!r}" for name, value in others.items())
    listed = (f"OpContract(id='{plugin}.{i}', op='{op}', signature='(x) -> y'{more})" for i, op in enumerate(ops))
    return f"@hookimpl\ndef llmk_ops():\n    return [{', '.join(listed)}]\n"


def test_an_op_is_declared_by_one_wheel(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("base", contracts("base", "blend", "weave"))
    wheelhouse.install("rival", contracts("rival", "knit", "blend"))
    wheelhouse.install("third", contracts("third", "knit"))
    wheelhouse.install("twice", contracts("twice", "purl", "purl"))
    wheelhouse.install("core_too", contracts("core_too", "rms_norm"))
    registry = wheelhouse.discover()
    for name, op, owner in (
        ("rival", "blend", "base"),
        ("twice", "purl", "twice"),
        ("core_too", "rms_norm", "llmk-core"),
    ):
        for part in ("conflicting: ", f"op {op} for ", f"declared by {owner}", "[plugins] disable = "):
            assert part in reasons(registry, name)
    owners = {
        op: contract.id for op, contract in registry.contracts.items() if not contract.id.startswith("reference.")
    }
    assert owners == {"blend": "base.0", "weave": "base.1", "knit": "third.0"}
    assert registry.contracts["rms_norm"].id == "reference.rms_norm"


def test_a_contract_is_replaced_with_consent(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("base", contracts("base", "blend"))
    wheelhouse.install("over", contracts("over", "blend", overrides="base.0"))
    assert wheelhouse.discover().contracts["blend"].id == "base.0"
    registry = wheelhouse.discover(allow_overrides=["base.0"])
    assert registry.contracts["blend"].id == "over.0"
    assert reasons(registry, "base") == "active: "


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"signature": "x, weight -> out"}, r"'x, weight -> out' is not of the form '\(x, weight\) -> out'"),
        ({"signature": "(x, weight)"}, "is not of the form"),
        ({"mutates_args": ("cache",)}, r"'cache' is not an argument of \(x, weight\) -> out"),
        ({"weights": ("w",)}, "'w' is not an argument of"),
        ({"examples": "somewhere"}, "examples = 'somewhere' is not of the form 'module:attribute'"),
    ],
)
def test_contracts_refuse_to_be_malformed(fields: dict[str, Any], message: str) -> None:
    contract = OpContract(id="a.b", op="b", signature="(x, weight) -> out", weights=("weight",))
    assert contract.positions(contract.weights) == (1,)
    with pytest.raises(ValueError, match=message):
        replace(contract, **fields)


def test_broken_plugin_is_fatal_once_it_is_required(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("bad", "raise RuntimeError('no such chip')")
    wheelhouse.discover().enforce()
    for rules in ({"require": ["bad"]}, {"require": ["bad-wheel"]}, {"only": ["bad"]}):
        with pytest.raises(PluginError, match="bad-wheel") as caught:
            wheelhouse.discover(**rules).enforce()
        assert "RuntimeError: no such chip" in str(caught.value)
        assert "raise RuntimeError('no such chip')" in caught.value.__notes__[0]
    with pytest.raises(PluginError, match="'bad'"):
        wheelhouse.discover().enforce(["bad"])
    with pytest.raises(PluginError, match="'bad'"):
        wheelhouse.discover().enforce(strict=True)


def test_requiring_a_plugin_that_is_not_installed_or_disabled(wheelhouse: Wheelhouse) -> None:
    wheelhouse.install("base", BASE)
    with pytest.raises(PluginError, match=r"'absent' is required, but not installed") as caught:
        wheelhouse.discover(require=["absent"]).enforce()
    assert "base (base-wheel)" in caught.value.hint
    with pytest.raises(PluginError, match="is blocked"):
        wheelhouse.discover(require=["base"], disable=["base"]).enforce()
    wheelhouse.discover(disable=["base"]).enforce(strict=True)
    wheelhouse.discover().enforce(["not-a-plugin"])


def test_every_hook_that_returns_specs_is_collected() -> None:
    from llmk.api import hooks

    others = {"llmk_config_defaults", "llmk_check_config", "llmk_config_schema", "llmk_plan_resolved"}
    assert set(HOOKS) | others | {"llmk_demo_checkpoint"} == {n for n in vars(hooks) if n.startswith("llmk_")}


def test_rules_are_those_of_the_configuration() -> None:
    registry = Registry.discover(PluginsSection(only=("nothing",)))
    assert [p.name for p in registry.plugins if p.is_usable] == ["reference"]
