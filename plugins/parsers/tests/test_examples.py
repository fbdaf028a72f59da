"""Every example of every dialect is answered as it says, however it is cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dialects import SPECS, load, make

from llmk.api import ParserContext
from llmk_testing.suites.parser_results import check_answers


@pytest.mark.parametrize("key", [key for key, spec in SPECS.items() if spec.examples])
def test_examples(key: str) -> None:
    def made(context: ParserContext) -> Callable[[], object]:
        return lambda: make(key, context)

    check_answers(made, lambda: load(SPECS[key].examples))
