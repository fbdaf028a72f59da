"""``llmk plugins new``: writes a distribution with a small working plugin as a starting point.

The templates are the files of a distribution ``llmk-acme``. In Python they are renamed, elsewhere ``$`` fields are
filled in.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parseaddr
from importlib.util import find_spec
from pathlib import Path
from string import Template

import importlib_metadata as metadata
from packaging.utils import canonicalize_name
from packaging.version import Version

from llmk.api import ENTRY_POINT_GROUP, ConfigError
from llmk.kernel.discovery import CORE
from llmk_testing.kinds import KINDS, Kind

TEMPLATES = Path(__file__).with_name("templates")
COMMON = {
    "pyproject.toml.in": "pyproject.toml",
    "README.md": "README.md",
    "gitignore": ".gitignore",
    "conformance.py": "tests/test_conformance.py",
}
"""Files of every distribution and their destinations; all others go into its package."""
WRITTEN = (".py", ".json", ".html", ".css", ".js")


@dataclass(frozen=True, slots=True)
class Project:
    """The distribution to write. ``distribution`` is the canonical name; ``author`` is empty, or as in an email
    header."""

    distribution: str
    kind: str
    author: str = ""

    @property
    def name(self) -> str:
        """The entry point's name, which is the prefix of ids."""
        return self.distribution.removeprefix("llmk-").removesuffix("-llmk")

    @property
    def package(self) -> str:
        """The import name."""
        return self.distribution.replace("-", "_")

    @property
    def facts(self) -> Kind:
        """The description of its kind."""
        return KINDS[self.kind]

    @property
    def check(self) -> str:
        """The command that checks it; a platform is checked on itself."""
        return f"llmk plugins check {self.distribution}" + (f" --platform {self.name}" if self.on else "")

    @property
    def on(self) -> str:
        """The platform to check it on, if that is not the default."""
        return self.name if self.kind == "platform" else ""

    def files(self) -> Iterator[tuple[str, str]]:
        """Every file's path and text."""
        fields = self._fields()
        for file, place in COMMON.items():
            yield place, Template((TEMPLATES / "common" / file).read_text()).substitute(fields)
        package = f"src/{self.package}"
        yield f"{package}/py.typed", ""
        yield (
            f"{package}/__init__.py",
            f'"""{self.facts.summary} for llmk. ``{self.package}.specs`` is the plugin."""\n',
        )
        for source in self._sources():
            yield f"{package}/{source.relative_to(self._templates)}", self.rename(source.read_text())

    def rename(self, text: str) -> str:
        """A template's text with this distribution's names."""
        title = "".join(word.capitalize() for word in self.name.split("-"))
        names = {"llmk_acme": self.package, "acme": self.name, "Acme": title}
        return re.sub("|".join(names), lambda found: names[found.group()], text)

    def _sources(self) -> list[Path]:
        return sorted(path for path in self._templates.rglob("*.*") if path.suffix in WRITTEN)

    @property
    def _templates(self) -> Path:
        return TEMPLATES / self.kind.replace("-", "_")

    def _fields(self) -> Mapping[str, str]:
        facts = self.facts
        version = Version(metadata.version(CORE))
        bound = f">={version.major}.{version.minor},<{version.major}.{version.minor + 1}"
        modules = [source for source in self._sources() if source.suffix == ".py" and source.name != "specs.py"]
        data = [source for source in self._sources() if source.suffix != ".py"]
        patterns = sorted({f"{source.parent.name}/*{source.suffix}" for source in data})
        rows = {f"{module.name}": self.rename(_about(module)) for module in modules}
        rows |= {f"{source.parent.name}/{source.name}": "package data" for source in data}
        return {
            "distribution": self.distribution,
            "name": self.name,
            "package": self.package,
            "group": ENTRY_POINT_GROUP,
            "summary": facts.summary,
            "core": f"{CORE}{bound}",
            "core_testing": f"{CORE}[testing]{bound}",
            "authors": _authors(self.author),
            "data": json.dumps(["py.typed", *patterns]),
            "files": "".join(f"\n| `src/{self.package}/{name}` | {about} |" for name, about in rows.items()),
            "usage": self.rename(facts.readme),
            "check": self.check,
            "pytest": f"pytest --llmk-platform {self.on}" if self.on else "pytest",
        }


class NewCommand:
    """``llmk plugins new``."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = "kinds:\n" + "\n".join(f"  {name:18}{kind.help}" for name, kind in KINDS.items())
        parser.add_argument("name", metavar="NAME", help="the distribution's name, for example llmk-acme")
        parser.add_argument("--kind", required=True, choices=KINDS, metavar="KIND", help="its kind; see below")
        parser.add_argument("--folder", type=Path, metavar="DIR", help="where to write it (./NAME)")
        parser.add_argument("--author", default="", metavar="WHO", help="for example 'Ada Acme <ada@acme.example>'")

    def run(self, args: argparse.Namespace) -> int:
        """Writes the distribution and prints the next steps.

        Raises ConfigError for an invalid name, and if the folder exists.
        """
        project = Project(_checked(args.name), args.kind, args.author)
        folder: Path = args.folder or Path(project.distribution)
        if folder.exists():
            raise ConfigError(
                f"{folder} exists already", hint="name another folder with --folder, or move that one away"
            )
        for place, text in project.files():
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(path)
        print(
            "\nnext:",
            f"pip install -e '{folder}[test]'",
            project.check,
            project.rename(project.facts.command),
            sep="\n  ",
        )
        return 0


def _checked(given: str) -> str:
    """The canonical form of a distribution's name, if it is free. Raises ConfigError."""
    name = canonicalize_name(given)
    example = "use another name, such as llmk-acme"
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or name.startswith("llmk-core") or name == "llmk":
        raise ConfigError(
            f"{given!r} is not a valid plugin name: letters, digits and hyphens, a letter first",
            hint=example,
        )
    project, points = Project(name, ""), metadata.entry_points(group=ENTRY_POINT_GROUP)
    plugins = {point.name: canonicalize_name(point.dist.name) for point in points if point.dist}
    if plugins.get(project.name, name) != name:
        wheel = plugins[project.name]
        raise ConfigError(f"the ids {project.name}.* are those of {wheel}, which is installed", hint=example)
    if find_spec(project.package) and name not in plugins.values():
        raise ConfigError(f"a package {project.package} is installed, which is not a plugin of {name}", hint=example)
    return name


def _authors(author: str) -> str:
    """The line of pyproject.toml, with a line break before it; empty where there is no author."""
    if not author:
        return ""
    name, address = parseaddr(author)
    email = f", email = {json.dumps(address)}" if "@" in address else ""
    return f"\nauthors = [{{ name = {json.dumps(name or author)}{email} }}]"


def _about(source: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    return " ".join(docstring.split()).partition(". ")[0].rstrip(".").replace("|", "\\|")
