"""Measured times of kernels, by which the resolver chooses between them.

``llmk tune`` writes them to a folder of the user, and wheels may contain some (:class:`llmk.api.TunedConfigs`), which
are used for queries that the user has not measured. A folder has a JSON file for each kind of device, named after it
(``acme-a_1-acme-9000.json``)::

    {"device": "acme/a_1 Acme 9000",
     "versions": {"llmk-acme": "0.1.0", "torch": "2.11.0"},
     "measured": [{"query": {"kind": "linear", "dtype": "bfloat16", "in_features": 1024, ...},
                   "date": "2026-11-21",
                   "microseconds": {"1": {"acme.linear": 5.2, "reference.linear": 7.8}, ...}}]}

``query`` has the fields of a query except platform and site, so that measurements for one model are used for others
with equal sites, and except fields that are newer than the first release and at their default, so that measurements
from before such a field are still used. A file is used only if every distribution in ``versions`` that is installed
has that version.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import importlib_metadata as metadata
from pydantic import BaseModel, ValidationError

from llmk.api import FIRST_FIELDS, CheckpointError, ConfigError, PlatformFacts, Query, TunedConfigs
from llmk.api.checkpoint import LONGEST_JSON, read_named
from llmk.api.matching import neutral_values
from llmk.api.query import BOUNDS, MoEQuery
from llmk.config.package_folder import package_folder

OFF = "none"
"""The value of ``platform.measurements`` for choosing without measurements."""

_NOISE = 1.03
"""The kernel chosen for the token counts below is kept if it is at most this much slower than the fastest: measurements
vary by as much, so changing kernels would gain nothing."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of the kernels that support one query: microseconds by token count and id, and the date (ISO 8601).

    A measured count represents all counts down to the next lower measured one; the highest represents all above too.
    """

    date: str = ""
    times: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    @property
    def edges(self) -> set[int]:
        """Token counts from which another measured count is used."""
        return {count + 1 for count in sorted(self.times)[:-1]}

    def fastest(self, ids: Collection[str], tokens: int, last: str = "") -> tuple[str, str] | None:
        """The fastest of ``ids`` at a token count, and the reason as text. ``last``, the kernel for the counts below,
        is preferred if it is about as fast. ``None`` if no kernel was measured."""
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
        """The measured count that represents ``tokens``; 0 if nothing was measured."""
        counts = sorted(self.times)
        return next((count for count in counts if count >= tokens), counts[-1] if counts else 0)


NOTHING = Measured()


class Measurements(dict[str, Measured]):
    """Measurements on one kind of device, by the key of the query."""

    def of(self, query: Query) -> Measured:
        """The measurements for ``query``, which may be empty."""
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
    """The key of a query's measurements: its fields as JSON, except platform, site, bounds, and later fields at their
    default."""
    neutral, left_out = neutral_values(type(query)), BOUNDS | {"platform", "site"}
    values = {f.name: getattr(query, f.name) for f in fields(query) if f.name not in left_out}
    for name in neutral.keys() - FIRST_FIELDS:
        if values[name] == neutral[name]:
            del values[name]
    if isinstance(query, MoEQuery) and not query.facts:
        del values["facts"]
    return _dump({"kind": query.kind, **values})


def load_measurements(
    setting: str, platform: PlatformFacts, shipped: Iterable[TunedConfigs]
) -> tuple[Measurements, list[str]]:
    """The measurements for ``platform``, and warnings about files that are not used. ``setting`` is
    ``platform.measurements``."""
    measurements, warnings = Measurements(), []
    if setting != OFF:
        folders = (package_folder(spec.package, spec.folder) for spec in shipped)
        for folder in (*filter(None, folders), folder_of(setting)):
            file, problem = _read(_file_in(folder, platform))
            if problem:
                warnings.append(problem)
            elif file:
                measurements.update(file.to_measurements())
    return measurements, warnings


def save_measurements(
    setting: str, platform: PlatformFacts, measured: Measurements, versions: Mapping[str, str]
) -> Path:
    """Adds measurements to the user's file, or replaces the file if it is outdated; returns its path."""
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
    """The folder of the user's measurements for the setting ``platform.measurements``."""
    return Path(setting) if setting else cache_folder() / "measurements"


def cache_folder() -> Path:
    """llmk's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "llmk")


def _file_in(folder: Path, platform: PlatformFacts) -> Path:
    name = re.sub(r"\W+", "-", f"{platform.label} {platform.device_name}").strip("-").lower()
    return folder / f"{name}.json"


def _read(path: Path) -> tuple[_File | None, str]:
    """A file of measurements, or why it is not used; ``(None, "")`` if there is no file."""
    if not os.path.lexists(path):
        return None, ""
    try:
        file = _File.model_validate_json(read_named(path, LONGEST_JSON))
    except (CheckpointError, ValidationError) as error:
        return None, f"measurements in {path} are left out: {str(error).splitlines()[0]}; llmk tune measures again"
    for name, version in file.versions.items():
        found = next((found.version for found in metadata.distributions(name=name)), version)
        if found != version:
            why = f"they are of {name} {version}, installed is {found}"
            return None, f"measurements in {path} are left out: {why}; llmk tune measures again"
    return file, ""


def _dump(query: Mapping[str, Any]) -> str:
    return json.dumps(query, sort_keys=True)
