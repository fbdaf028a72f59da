"""A folder with the results of a sweep, in which a sweep that was interrupted goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from llmk.api import ConfigError
from llmk_bench import plots

SUMMARY = "summary.jsonl"
PARETO = "pareto.svg"


class Experiment:
    """Results by the name of their point. A result is a file that is written whole or not at all.

    Raises ConfigError where there are results already and this does not ``resume`` them.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder
        if self._files() and not resume:
            raise ConfigError(
                f"{folder} has results of an experiment already",
                hint="--resume goes on with it; or choose another --experiment-name",
            )
        folder.mkdir(parents=True, exist_ok=True)

    def result(self, name: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a point, if it was measured. Raises ConfigError if that was with other settings."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            return None
        found: dict[str, Any] = json.loads(file.read_text())
        before, now = found["settings"], json.loads(json.dumps(settings))
        if differing := sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key)):
            shown = ", ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in differing)
            raise ConfigError(f"{file} was measured otherwise: {shown}", hint="choose another --experiment-name")
        return found

    def keep(self, name: str, result: dict[str, Any], timeline: str) -> None:
        """Writes a result and its timeline."""
        write(self.folder / f"{name}.svg", timeline)
        write(self.folder / f"{name}.json", json.dumps(result, indent=1) + "\n")

    def finish(self, title: str) -> None:
        """Writes a line per result, and the Pareto plot."""
        results = [json.loads(file.read_text()) for file in self._files()]
        lines = [{"name": result["name"], **result["settings"], **result["figures"]} for result in results]
        write(self.folder / SUMMARY, "".join(json.dumps(line) + "\n" for line in lines))
        points = [
            (1e3 / line["tpot_ms"]["p50"], line["output_tokens_per_s"], str(line["name"]))
            for line in lines
            if line.get("tpot_ms", {}).get("p50")
        ]
        if points:
            write(self.folder / PARETO, plots.pareto(points, title))

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))


def write(file: Path, text: str) -> None:
    """Replaces a file at once. Raises ConfigError where it can't be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f".{file.name}.part")
        part.write_text(text)
        os.replace(part, file)
    except OSError as error:
        raise ConfigError(f"{file} can't be written: {error.strerror}") from error
