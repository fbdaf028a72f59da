"""What a chat template may compute: compiling and rendering one must end, and take no gigabytes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from llmk.api import RequestError
from llmk.engine.text.chat_template import ChatTemplates, variables_of

BOMBS = (
    "10 ** 10 ** 100000000",
    "10 ** (10 ** 10)",
    "'a' * 10000000000",
    "[1] * (10 ** 9)",
    "2 ** 900000 * 2 ** 900000",
)
USED = """
import sys
from llmk.engine.text.tokenizer import _check_templates
from llmk.serve.generation.template_variables import TemplateVariables
_check_templates({"default": sys.argv[1]}, "here")
TemplateVariables({"default": sys.argv[1]})
"""


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("form", ["{{ %s }}", "{%% if (%s) %%}x{%% endif %%}", "{%% set x = %s %%}{{ messages }}"])
def test_a_bomb_is_refused_when_it_is_rendered(form: str, bomb: str) -> None:
    source = form % bomb
    with pytest.raises(RequestError, match="is too large"):
        ChatTemplates({"default": source}, {}).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_does_not_hang_the_start(bomb: str) -> None:
    """Constants are not computed while a template is compiled, in which nothing could interrupt it."""
    subprocess.run([sys.executable, "-c", USED, "{{ %s }}" % bomb], check=True, timeout=60)  # noqa: UP031


def test_arithmetic_is_what_it_was() -> None:
    source = "{{ 3 * 2 ** 4 }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ 2 * 1.5 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ 7 % 4 }}"
    text = ChatTemplates({"default": source}, {}).render([])
    assert text == "48 ababab [1, 1] 3.0 0.5 1.4142135623730951 3"


def test_variables() -> None:
    assert variables_of("{% generation %}{{ a | tojson }}{% endgeneration %}{% set b = 1 %}{{ b }}") == {"a"}
    assert variables_of("{{ a") is None
