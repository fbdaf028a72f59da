"""Starts with a toy model, up to the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from wheelhouse import Wheelhouse

from llmk.api import Choice
from llmk.config import load
from llmk.planning.boot import Boot, boot

LINEAR = 'id="{0}.linear", tier=Tier.{1}'
"""A linear kernel's spec, by its plugin's name and its tier."""


def write_model(folder: Path, **config: Any) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["ToyForCausalLM"], **config}))
    return folder


def start(house: Wheelhouse, model: Path | str, *, on: str | None = None, verify: bool = False, **flags: Any) -> Boot:
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    rules = {key.removeprefix("plugins."): dotted.pop(key) for key in list(dotted) if key.startswith("plugins.")}
    settings = load({**house.flags(rules), **dotted, "model.path": str(model)}, environ={}, cwd=house.folder)
    return boot(settings, on=on, verify=verify)


def codes(choice: Choice, id: str) -> list[str]:
    (rejection,) = (rejection for rejection in choice.rejected if rejection.id == id)
    return [reason.code for reason in rejection.reasons]
