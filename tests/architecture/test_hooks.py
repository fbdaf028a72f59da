"""Every hook is documented, its example works, and a test exercises it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pluggy
import pytest
from pydantic import BaseModel

from llmk.api import Default, ModelFacts, Plan, PlatformFacts, Problem, hooks
from llmk.config.schema import Config

HOOKS = {name: hook for name, hook in vars(hooks).items() if name.startswith("llmk_")}
TEST_FOLDERS = ("core/tests", "models/tests", "backends-*/tests", "plugins/*/tests", "tests")
FOLDER = "docs/plugins/hooks"
LABELS = ("Purpose", "Called", "Arguments", "Returns", "Since")

PLATFORM = PlatformFacts(name="acme", arch="a1", device_type="cpu")
MODEL = ModelFacts(
    architecture="AcmeForCausalLM",
    model="acme.model",
    num_layers=1,
    hidden_size=8,
    vocab_size=8,
    max_model_len=8,
    dtype="float32",
    num_parameters=8,
)
PLAN = Plan(PLATFORM, "acme.platform", "acme:Platform", MODEL.model, "acme:Model", MODEL.architecture, "float32", ())
ARGUMENTS = {
    "platform": PLATFORM,
    "model": MODEL,
    "plan": PLAN,
    "config": Config.model_validate({"cache": {"block_size": 24}}),
}


@pytest.fixture(scope="module")
def sections(root: Path) -> dict[str, str]:
    """What is written by hand of each hook, by its name."""
    pages = {file.stem: file.read_text() for file in (root / FOLDER).glob("*.md") if file.stem != "index"}
    return {f"llmk_{stem}": page.partition("<!-- made by")[0] for stem, page in pages.items()}


def test_every_hook_has_a_page_and_nothing_else_does(sections: dict[str, str]) -> None:
    assert set(sections) == set(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_documented(name: str, sections: dict[str, str]) -> None:
    section = sections[name]
    missing = [label for label in LABELS if not re.search(rf"^\*\*{label}:\*\*", section, flags=re.MULTILINE)]
    assert not missing, f"{FOLDER} says nothing of {missing} for {name}"
    described = re.findall(r"^- `(\w+)`:", section, flags=re.MULTILINE)
    assert described == list(inspect.signature(HOOKS[name]).parameters)


@pytest.mark.parametrize("name", HOOKS)
def test_example_works(name: str, sections: dict[str, str]) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", sections[name], flags=re.MULTILINE | re.DOTALL)
    module: dict[str, Any] = {"__name__": "llmk_acme.specs"}
    exec(compile(example, f"{FOLDER}, {name}", "exec"), module)
    manager = pluggy.PluginManager("llmk")
    manager.add_hookspecs(hooks)
    manager.register(type("Specs", (), {key: staticmethod(value) for key, value in module.items() if key == name}))
    manager.check_pending()
    arguments = {key: ARGUMENTS[key] for key in inspect.signature(HOOKS[name]).parameters}
    answers = getattr(manager.hook, name)(**arguments)
    if name == "llmk_plan_resolved":
        assert answers == []
        return
    if name == "llmk_config_schema":
        assert issubclass(answers[0], BaseModel)
        return
    if name == "llmk_demo_checkpoint":
        assert isinstance(answers[0], str)
        return
    assert answers[0], "the example must return something"
    assert all(isinstance(item, returned_type(name)) for item in answers[0])


def returned_type(name: str) -> tuple[type, ...]:
    """The types of the items that a hook returns, as its specification says."""
    match = re.fullmatch(r"Iterable\[([\w| ]+)\]", inspect.signature(HOOKS[name]).return_annotation)
    assert match, f"{name} must say what it returns an iterable of"
    known = {**vars(hooks), "Default": Default, "Problem": Problem}
    found = tuple(known[each] for each in match[1].split(" | "))
    assert all(isinstance(each, type) for each in found)
    return found


def exercised_hooks(root: Path) -> dict[str, list[str]]:
    """Hooks named by ``@pytest.mark.hook("…")`` on a test function, and the tests that do."""
    found: dict[str, list[str]] = {}
    files = [file for folder in TEST_FOLDERS for path in root.glob(folder) for file in path.rglob("test_*.py")]
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for mark in re.findall(
                    r"pytest\.mark\.hook\('(\w+)'\)", "\n".join(map(ast.unparse, node.decorator_list))
                ):
                    found.setdefault(mark, []).append(f"{file.relative_to(root)}::{node.name}")
    return found


def test_every_hook_has_a_test(root: Path) -> None:
    exercised = exercised_hooks(root)
    assert set(exercised) <= set(HOOKS), "a test names a hook that there is not"
    missing = sorted(set(HOOKS) - set(exercised))
    assert not missing, f"no test is marked @pytest.mark.hook(name) for {missing}"
