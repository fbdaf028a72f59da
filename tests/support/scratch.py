"""Wheels built from source, and virtual environments to install them into, apart from the one that runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

LLMK = "import sys; from llmk.cli.main import main; sys.exit(main(sys.argv[1:]))"
OUR_OWN = ("llmk", "__editable__", "_editable_skbc", "_distutils_hack", "distutils-precedence")
"""What entries of an environment start with that are llmk's, or make it editable."""
LEFT_BEHIND = ("build", "*.egg-info", "__pycache__", "tests", "fixtures", "training", ".*", "dist")
BUILD = """
import os, sys, tomllib
from importlib import import_module

for source, target in zip(sys.argv[1::2], sys.argv[2::2]):
    os.chdir(source)
    with open("pyproject.toml", "rb") as file:
        backend = tomllib.load(file)["build-system"]["build-backend"]
    os.mkdir(target)
    import_module(backend).build_wheel(target)
"""
"""Builds a wheel of each source folder into its target folder by PEP 517, as pip does in a process for each step."""
BUILD_SECONDS = 550.0
"""For all wheels of the workspace, one of which compiles a C++ library while other tests run."""


def run(command: list[str], timeout: float = 300, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end, with its output as text. Raises ``subprocess.TimeoutExpired``."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)  # type: ignore[call-overload,no-any-return]


def build_wheels(sources: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """Builds one wheel per source folder into ``folder`` and returns their paths by the same keys.

    The sources are copied first, so that nothing that an earlier build left behind gets into a wheel. Several processes
    may ask for the same folder: the first one builds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        missing = [name for name in sources if not (folder / name).exists()]
        folders = [(folder / "source" / name, folder / f"{name}.unfinished") for name in missing]
        for name, (copy, unfinished) in zip(missing, folders, strict=True):
            for left in (copy, unfinished):  # of a build that was ended
                shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(sources[name], copy, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        arguments = [str(path) for pair in folders for path in pair]
        done = run([sys.executable, "-c", BUILD, *arguments], timeout=BUILD_SECONDS)
        assert done.returncode == 0, f"not all of {', '.join(missing)} build:\n{done.stdout}{done.stderr}"
        for name, (_, unfinished) in zip(missing, folders, strict=True):
            unfinished.rename(folder / name)
    found = {}
    for name in sources:
        (found[name],) = (folder / name).glob("*.whl")
    return found


def link_dependencies(folder: Path) -> Path:
    """A folder that shows what is installed in the running environment, but for llmk's own distributions.

    It stands in for downloading torch and the rest once more for each scratch environment.
    """
    site_packages = Path(sysconfig.get_path("purelib"))
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            folder.mkdir(parents=True)
            for entry in site_packages.iterdir():
                if not entry.name.startswith(OUR_OWN):
                    (folder / entry.name).symlink_to(entry)
    return folder


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that holds what is installed into it, and sees third-party dependencies."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, dependencies: Path) -> Environment:
        """Makes one at ``folder``."""
        venv.create(folder, symlinks=True)
        environment = cls(folder)
        (environment.site_packages / "dependencies.pth").write_text(f"{dependencies}\n")
        return environment

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    @property
    def site_packages(self) -> Path:
        """Where distributions are installed."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def install(self, *wheels: Path) -> None:
        """Installs wheels, and nothing that they depend on."""
        self.pip("install", "--no-deps", "--no-index", "--no-compile", *map(str, wheels))

    def uninstall(self, *distributions: str) -> None:
        """Uninstalls distributions."""
        self.pip("uninstall", "-y", *distributions)

    def run(self, code: str, *arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Runs Python code in ``cwd``, with ``environ`` on top of a plain environment."""
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("LLMK", "PYTHON"))}
        settings = plain | {"OMP_NUM_THREADS": "1"} | environ
        return run([str(self.python), "-c", code, *arguments], cwd=cwd, env=settings)

    def llmk(self, *arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
        """Runs ``llmk`` with ``arguments``."""
        return self.run(LLMK, *arguments, cwd=cwd, **environ)

    def pip(self, *arguments: str) -> None:
        """Runs pip, which must succeed."""
        done = run([str(self.python), "-m", "pip", "--disable-pip-version-check", *arguments, "-q"])
        assert done.returncode == 0, f"pip {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
