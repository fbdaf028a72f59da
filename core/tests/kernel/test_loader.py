"""Loading what a spec names."""

from __future__ import annotations

import pytest
from wheelhouse import Wheelhouse

from llmk.api import PluginError
from llmk.kernel.loader import load_object


def test_attribute_of_a_module() -> None:
    assert load_object("pathlib:Path.cwd")() == load_object("pathlib:Path").cwd()


@pytest.mark.parametrize(
    ("location", "cause"),
    [
        ("plug_lazy:absent", "AttributeError"),
        ("absent_module:x", "ModuleNotFoundError"),
        ("plug_bad:x", "SystemExit: 4"),
    ],
)
def test_failure_names_wheel_place_and_cause(wheelhouse: Wheelhouse, location: str, cause: str) -> None:
    wheelhouse.install("lazy", "")
    wheelhouse.install("bad", "import sys; sys.exit(4)")
    plugin = wheelhouse.plugin("lazy")
    for owner in (plugin, plugin.wheel):
        with pytest.raises(PluginError) as caught:
            load_object(location, plugin=owner)
        for part in (location, "lazy-wheel 1.0", cause):
            assert part in str(caught.value)
