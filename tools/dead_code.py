"""Finds code that nothing uses, with vulture. Exits with 1 where there is some.

Tests are not users: what only tests call is dead. What a spec of an installed plugin names (``"module:attribute"``),
hook implementations, and functions that a framework calls by name or decorator are used. ``KEPT`` lists the rest, each
with a reason. Attributes and fields are left out: they are read by serializers, which vulture can't see.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from first_party import registry
from size_report import python_files, source_folders
from vulture import Vulture
from vulture.core import Item

from llmk.kernel.registry import HOOKS, Registered

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ("tools", "benchmarks", "models/training")
"""Folders of scripts: they use the sources, and are searched too."""

TEMPLATES = "templates"
"""Folder of what is copied into new plugins, and used there."""

CALLED_BY_NAME = ("llmk_*", "pytest_*", "test_*", "visit_*", "__getattr__", "__init_subclass__")
CALLED_BY_DECORATOR = ("@router.*", "@model_validator", "@field_validator", "@pytest.fixture")

KEPT = {
    "capture_signals": "overrides uvicorn's",
    "send_400_response": "overrides uvicorn's",
    "utcnow": "overrides the method of datetime, which plugins call",
    "launch_metadata": "the compiler of kernels calls it",
    "aclose": "contextlib.aclosing calls it",
    "locate_file": "importlib.metadata calls it",
    "get_completions": "prompt_toolkit calls it",
    "handle_starttag": "html.parser calls it",
    "handle_endtag": "html.parser calls it",
    "handle_data": "html.parser calls it",
    "initialize_state": "Ray Serve calls it",
    "choose_replicas": "Ray Serve calls it",
    "on_request_routed": "Ray Serve calls it",
    "runtest": "pytest calls it",
    "reportinfo": "pytest calls it",
    "handle_error": "socketserver calls it",
    "_should_skip_dynamo": "torch asks classes of TorchDispatchMode",
    "log_message": "http.server calls it",
    "do_HEAD": "http.server calls it",
    "do_GET": "http.server calls it",
    "check_parser": "public: for the tests of plugins",
    "gated_by": "public: for families of other wheels",
    "reason_codes": "a test compares the documentation with it",
    "gated_delta_rule_by_token": "the definition that tests compare the chunked form with",
    "state_space_scan_by_token": "the definition that tests compare the chunked form with",
    "abstract_state": "the compilation ahead of time in the tests of the TPU backend calls it",
    "read_weights": "public: the reader of weights for models on JAX",
    "quantize_int8_group": "public: the reference of a format, for plugins that read it",
    "quantize_int4_group": "public: the reference of a format, for plugins that read it",
}
"""Names that vulture can't see a use of, with the reason why they are used."""


def named_by_specs(spec: Any) -> Iterator[str]:
    """The attributes that a spec names in strings, at any depth."""
    if isinstance(spec, str):
        module, _, name = spec.partition(":")
        if module and name.isidentifier():
            yield name
    elif is_dataclass(spec):
        for field in fields(spec):
            yield from named_by_specs(getattr(spec, field.name))
    elif isinstance(spec, tuple | list | frozenset):
        for item in spec:
            yield from named_by_specs(item)


def named_by_strings(files: list[Path]) -> Iterator[str]:
    """Every string of the sources that is an identifier, or ends with one after a colon."""
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                name = node.value.rpartition(":")[2]
                if name.isidentifier():
                    yield name


def _specs() -> list[Any]:
    """Every spec of the repository's own wheels."""
    specs: list[Any] = []
    for spec_type in {spec_type for kinds in HOOKS.values() for spec_type in kinds.values()}:
        registered: list[Registered[Any]] = registry().of(spec_type)
        specs += [entry.spec for entry in registered]
    return specs


def unused(root: Path = ROOT) -> list[Item]:
    """What nothing uses, in order of path and line."""
    files = [file for folder in source_folders(root) for file in python_files(folder) if TEMPLATES not in file.parts]
    files += [file for name in SCRIPTS for file in python_files(root / name) if not file.name.startswith("test_")]
    named = {*named_by_strings(files), *named_by_specs(_specs())}
    # Names that are known in full are looked up here: vulture would match every definition with each of thousands.
    finder = Vulture(ignore_names=[*CALLED_BY_NAME], ignore_decorators=[*CALLED_BY_DECORATOR])
    finder.scavenge([str(file) for file in files])
    found: list[Item] = finder.get_unused_code(min_confidence=60, sort_by_size=False)
    return [
        item for item in found if item.typ not in ("variable", "attribute") and item.name not in named | KEPT.keys()
    ]


def main() -> int:
    """Prints what nothing uses; 1 where there is some."""
    found = unused()
    for item in found:
        print(f"{Path(item.filename).relative_to(ROOT)}:{item.first_lineno}: nothing uses {item.typ} {item.name!r}")
    if found:
        print("Remove it, or name in tools/dead_code.py who uses it.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
