"""Which of llmk's own wheels provides a plugin or spec that is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import importlib_metadata as metadata

CATALOGUE = Path(__file__).with_name("first_party.json")
"""Wheels by the names of their plugins and specs. Generated from the wheels by ``make docs``."""


def missing_wheel(name: str) -> str:
    """The wheel that provides this name or id and is not installed; empty if there is no such wheel."""
    wheels: dict[str, str] = json.loads(CATALOGUE.read_text())
    wheel = wheels.get(name) or wheels.get(name.partition(".")[0], "")
    return "" if wheel and any(metadata.distributions(name=wheel)) else wheel


def how_to_install(name: str) -> str:
    """A hint on how to install this name or id; empty if no wheel of llmk provides it, or the wheel is installed."""
    wheel = missing_wheel(name)
    return f"{name} is in {wheel}: pip install {wheel}" if wheel else ""
