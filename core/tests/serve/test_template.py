"""The variables of chat templates."""

from __future__ import annotations

from typing import Any

import pytest

from llmk.api import RequestError
from llmk.serve.generation.template_variables import TemplateVariables

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
THINKING = PLAIN + "{% generation %}{% if enable_thinking %}<think>{% endif %}{% endgeneration %}"
LEVELS = PLAIN + "{{ reasoning_effort }}"


def test_templates_of_a_model_are_taken_together() -> None:
    template = TemplateVariables({"default": PLAIN, "tool_use": "{{ tools }}" + PLAIN})
    assert template.knows("tools")
    assert not template.knows("enable_thinking")
    assert template.exists
    assert not TemplateVariables({}).exists


@pytest.mark.parametrize(
    ("source", "effort", "options"),
    [
        (THINKING, "none", {"enable_thinking": False}),
        (THINKING, "medium", {"enable_thinking": True}),
        (THINKING, "high", {"enable_thinking": True}),
        (LEVELS, "high", {"reasoning_effort": "high"}),
        (PLAIN, "none", {}),
        (PLAIN, "high", {}),
    ],
)
def test_reasoning_effort(source: str, effort: str, options: dict[str, Any]) -> None:
    assert TemplateVariables({"default": source}).options({}, effort) == options


def test_verbosity() -> None:
    wordy = TemplateVariables({"default": PLAIN + "{{ verbosity }}"})
    assert wordy.options({}, None, "low") == {"verbosity": "low"}
    assert wordy.options({"verbosity": "high"}, None, "low") == {"verbosity": "high"}
    assert TemplateVariables({"default": PLAIN}).options({}, None, "low") == {}


def test_switches_that_contradict_each_other() -> None:
    template = TemplateVariables({"default": THINKING})
    with pytest.raises(RequestError, match="contradicts"):
        template.options({"enable_thinking": True}, "none")
    assert template.options({"enable_thinking": False}, "none") == {"enable_thinking": False}


def test_the_switch_of_the_request() -> None:
    template = TemplateVariables({"default": THINKING})
    assert template.thinking(template.options({"enable_thinking": False}, None)) is False
    assert template.thinking(template.options({}, "medium")) is True
    assert template.thinking({}) is None


def test_a_template_that_cannot_be_parsed_has_every_variable() -> None:
    template = TemplateVariables({"default": "{% unheard of %}"})
    assert template.knows("anything")
    assert template.options({"anything": 1}, None) == {"anything": 1}
