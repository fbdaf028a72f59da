"""Whether a rank's machine has what the engine's has: the same wheels, the same model, a device of the same kind."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import importlib_metadata as metadata
import msgspec

from llmk.api import ENTRY_POINT_GROUP, Checkpoint
from llmk.kernel.discovery import CORE
from llmk.planning.choices.platforms import probe_platforms

if TYPE_CHECKING:
    from llmk.planning.boot import Boot

_CONFIG = "config.json"
_SAMPLES, _SAMPLE_BYTES = 16, 4096


class Expected(msgspec.Struct):
    """What the engine's machine has: the versions of wheels, and the model's folder or file, with the sizes in bytes of
    its weight files, digests of samples of them, and a digest of its configuration."""

    wheels: dict[str, str]
    model: str
    files: dict[str, int]
    samples: dict[str, str]
    config: str

    @classmethod
    def by(cls, checkpoint: Checkpoint) -> Expected:
        """What this machine has."""
        folder = checkpoint.path.absolute()
        files = {file.name: file.size for file in checkpoint.weight_files}
        if folder.is_file():  # of another format: all is in it
            files = {"": folder.stat().st_size}
        samples = {name: _sample(folder / name) for name in files if (folder / name).is_file()}
        return cls(_wheels(), str(folder), files, samples, _digest(folder))

    def problems(self) -> Iterator[str]:
        """What is different on this machine."""
        found, model = _wheels(), Path(self.model)
        for name in sorted(found.keys() | self.wheels.keys()):
            has, wanted = (versions.get(name, "missing") for versions in (found, self.wheels))
            if has != wanted:
                yield f"{name} is {has}, not {wanted}"
        if not model.exists():
            yield f"there is no {model}"
            return
        if _digest(model) != self.config:
            yield f"{model / _CONFIG} is another"
        for name, size in self.files.items():
            file = model / name
            if not file.is_file():
                yield f"there is no {file}"
            elif file.stat().st_size != size:
                yield f"{file} has {file.stat().st_size:,} bytes, not {size:,}"
            elif name in self.samples and _sample(file) != self.samples[name]:
                yield f"{file} has other contents, such as those of another version of the model"


def platform_problems(boot: Boot) -> Iterator[str]:
    """Why this machine can't run what was planned for another's device."""
    planned = boot.platform_facts
    probed = probe_platforms(boot.registry, None, boot.settings.config.plugin)
    probe = next(probe for platform, probe in probed if platform.spec.id == boot.plan.platform_id)
    if not probe.verdict or probe.facts is None:
        yield f"{planned.label} can't be used: {'; '.join(map(str, probe.verdict.reasons))}"
    elif probe.facts.label != planned.label:
        yield f"the device is {probe.facts.label}, not {planned.label}"
    elif missing := planned.features - probe.facts.features:
        yield f"the device lacks {', '.join(sorted(missing))}, which the plan may need"


def _wheels() -> dict[str, str]:
    """The versions of what runs a rank: Python, torch, the core and all plugins."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    plugins = (entry.dist for entry in metadata.entry_points(group=ENTRY_POINT_GROUP))
    for found in (*plugins, *map(_distribution, (CORE, "torch"))):
        with suppress(OSError):  # one that is being installed, or removed
            if found is not None:
                versions[found.name] = found.version
    return versions


def _distribution(name: str) -> Any:
    return next(iter(metadata.distributions(name=name)), None)


def _sample(file: Path) -> str:
    """A digest of some pieces of a file, all over it: two trainings of one model differ nearly everywhere, and reading
    all would take as long as loading."""
    size, digest = file.stat().st_size, sha256()
    with file.open("rb") as opened:
        for place in range(_SAMPLES):
            opened.seek(size * place // _SAMPLES)
            digest.update(opened.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _digest(model: Path) -> str:
    config = model / _CONFIG
    return sha256(config.read_bytes()).hexdigest() if config.is_file() else ""
