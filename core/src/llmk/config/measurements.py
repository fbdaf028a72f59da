"""Measured times of kernels, by which the resolver chooses where there are any.

``llmk tune`` keeps them in a folder of the user's, and wheels may ship some (:class:`llmk.api.TunedConfigs`), which
count where the user has none for a query. A folder has a JSON file for each kind of device, named after it
(``acme-a_1-acme-9000.json``)::

    {"device": "acme/a_1 Acme 9000",
     "versions": {"llmk-acme": "0.1.0", "torch": "2.11.0"},
     "measured": [{"query": {"kind": "linear", "dtype": "bfloat16", "in_features": 1024, ...},
                   "date": "2026-11-21",
                   "microseconds": {"1": {"acme.linear": 5.2, "reference.linear": 7.8}, ...}}]}

A query is all that a site asks but for platform and site, so what was measured for one model serves others with sites
that look alike. A file counts only while every distribution in ``versions`` that is installed is of that version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import importlib_metadata as metadata
from pydantic import BaseModel, ValidationError

from llmk.api import CheckpointError, ConfigError, PlatformFacts, Query, TunedConfigs
from llmk.api.checkpoint import LONGEST_JSON, read_named

OFF = "none"
"""The setting ``platform.measurements`` that leaves all measurements out."""

_NOISE = 1.03
"""How much slower than the fastest a kernel may be and yet go on where it serves the range below: no more than
measurements differ by themselves, and not worth a change of kernels."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of the kernels that could serve one query: microseconds by token count and id, and the day (ISO 8601).

    A count stands for those down to the next lower one, the highest also for all above.
    """

    date: str = ""
    times: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def edges(self) -> set[int]:
        """Token counts at which another measured count begins to stand."""
        return {count + 1 for count in sorted(self.times)[:-1]}

    def fastest(self, ids: Collection[str], tokens: int, last: str = "") -> tuple[str, str] | None:
        """The fastest of ``ids`` at a token count and why it is chosen, or ``last``, which serves the counts below,
        where that is as fast; ``None`` where none of them was measured there."""
        count = self._count(tokens)
        times = {id: time for id, time in self.times.get(count, {}).items() if id in ids}
        if not times:
            return None
        best, *others = sorted(times, key=lambda id: times[id] / (_NOISE if id == last else 1))
        ratio = f"{times[best] / times[others[0]]:.2f}x of {others[0]}" if others else "alone"
        return best, f"measured {ratio} at {count} token{'s'[: count > 1]}, {self.date}"

    def at(self, tokens: int) -> Mapping[str, float]:
        """Microseconds by id at a token count."""
        return self.times.get(self._count(tokens), {})

    def _count(self, tokens: int) -> int:
        """The measured count that stands for ``tokens``; 0 where there is none."""
        counts = sorted(self.times)
        return next((count for count in counts if count >= tokens), counts[-1] if counts else 0)


NOTHING = Measured()


class Measurements(dict[str, Measured]):
    """What was measured on one kind of device, by the key of the query."""

    def of(self, query: Query) -> Measured:
        """What was measured for ``query``; nothing, perhaps."""
        return self.get(key_of(query), NOTHING)


class _Record(BaseModel):
    query: dict[str, Any]
    date: str
    microseconds: dict[int, dict[str, float]]


class _File(BaseModel):
    device: str
    versions: dict[str, str]
    measured: list[_Record]

    def to_measurements(self) -> Measurements:
        records = ((_dump(record.query), Measured(record.date, record.microseconds)) for record in self.measured)
        return Measurements(records)


def key_of(query: Query) -> str:
    """What a query's measurements are found by: JSON of all of it but platform and site."""
    asked = {f.name: getattr(query, f.name) for f in fields(query) if f.name not in ("platform", "site")}
    return _dump({"kind": query.kind, **asked})


def load_measurements(
    setting: str, platform: PlatformFacts, shipped: Iterable[TunedConfigs]
) -> tuple[Measurements, list[str]]:
    """What counts on ``platform``, and warnings about files that don't. ``setting`` is ``platform.measurements``."""
    measurements, warnings = Measurements(), []
    if setting != OFF:
        for folder in (*filter(None, map(shipped_folder, shipped)), folder_of(setting)):
            file, problem = _read(_file_in(folder, platform))
            if problem:
                warnings.append(problem)
            elif file:
                measurements.update(file.to_measurements())
    return measurements, warnings


def save_measurements(
    setting: str, platform: PlatformFacts, measured: Measurements, versions: Mapping[str, str]
) -> Path:
    """Adds to the user's file, or begins it anew where it no longer counts; returns it."""
    path = _file_in(folder_of(setting), platform)
    found, _ = _read(path)
    merged = {**(found.to_measurements() if found else {}), **measured}
    file = _File(
        device=f"{platform.label} {platform.device_name}".strip(),
        versions={**(found.versions if found else {}), **versions},
        measured=[
            _Record(query=json.loads(key), date=each.date, microseconds=dict(each.times))  # type: ignore[arg-type]
            for key, each in sorted(merged.items())
        ],
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.model_dump_json(indent=1))
    except OSError as error:
        why = f"the measurements can't be written to {path}: {error.strerror}"
        raise ConfigError(why, hint="name a folder with platform.measurements") from error
    return path


def folder_of(setting: str) -> Path:
    """Where the user's measurements are, by the setting ``platform.measurements``."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(setting) if setting else Path(cache, "llmk", "measurements")


def shipped_folder(spec: TunedConfigs) -> Path | None:
    """Where a wheel's measurements are; ``None`` where its package has no such folder. Imports nothing."""
    top, *inner = spec.package.split(".")
    try:
        found = find_spec(top)
    except ValueError:
        found = None
    folders = (Path(place, *inner, spec.folder) for place in (found.submodule_search_locations or () if found else ()))
    return next((folder for folder in folders if folder.is_dir()), None)


def _file_in(folder: Path, platform: PlatformFacts) -> Path:
    name = re.sub(r"\W+", "-", f"{platform.label} {platform.device_name}").strip("-").lower()
    return folder / f"{name}.json"


def _read(path: Path) -> tuple[_File | None, str]:
    """A file that counts, or why it doesn't; neither where there is none."""
    if not os.path.lexists(path):
        return None, ""
    try:
        file = _File.model_validate_json(read_named(path, LONGEST_JSON))
    except (CheckpointError, ValidationError) as error:
        return None, f"measurements in {path} are left out: {str(error).splitlines()[0]}; llmk tune writes them anew"
    for name, version in file.versions.items():
        found = next((found.version for found in metadata.distributions(name=name)), version)
        if found != version:
            why = f"they are of {name} {version}, installed is {found}"
            return None, f"measurements in {path} are left out: {why}; llmk tune measures again"
    return file, ""


def _dump(query: Mapping[str, Any]) -> str:
    return json.dumps(query, sort_keys=True)
