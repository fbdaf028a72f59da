"""In which of llmk's own wheels something is that is not installed."""

from __future__ import annotations

import json
from pathlib import Path

import importlib_metadata as metadata

CATALOGUE = Path(__file__).with_name("first_party.json")
"""Wheels by the names of their plugins and of what these register. Made from the wheels by ``make docs``."""


def missing_wheel(name: str) -> str:
    """The wheel that brings what has this name or id, and is not installed; empty where there is no such wheel."""
    wheels: dict[str, str] = json.loads(CATALOGUE.read_text())
    wheel = wheels.get(name) or wheels.get(name.partition(".")[0], "")
    return "" if wheel and any(metadata.distributions(name=wheel)) else wheel


def how_to_install(name: str) -> str:
    """How to get what has this name or id, for a hint; empty where llmk has no wheel with it, or that is installed."""
    wheel = missing_wheel(name)
    return f"{name} is in {wheel}: pip install {wheel}" if wheel else ""
