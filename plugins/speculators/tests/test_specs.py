from __future__ import annotations

import pytest
from pydantic import ValidationError

from llmk.api import DeviceSpeculator, HeadSpeculator, Speculator
from llmk.kernel.loader import load_object
from llmk_speculators.examples import OPTIONS
from llmk_speculators.specs import Options, llmk_config_schema, llmk_speculators


def test_specs_name_speculators_that_can_be_made():
    specs = list(llmk_speculators())
    names = [spec.name for spec in specs]
    assert names == ["mtp", "prompt_lookup", "prompt_lookup_device", "suffix_tree"]
    assert [spec.id for spec in specs] == [f"speculators.{name}" for name in names]
    for spec in specs:
        contract = HeadSpeculator if spec.heads else DeviceSpeculator if spec.on_device else Speculator
        assert contract in load_object(spec.implementation, plugin="llmk-speculators").__mro__
        examples = load_object(spec.examples)
        assert getattr(examples, "options", examples) is OPTIONS
        assert spec.summary


def test_options():
    assert llmk_config_schema() is Options
    assert OPTIONS[0] == Options().model_dump()
    for options in OPTIONS:
        Options(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_match": 5}, "min_match = 5 is greater than max_match = 4"),
        ({"min_match": 0}, "greater than or equal to 1"),
        ({"max_match": 33}, "less than or equal to 32"),
        ({"max_spec_factor": 0}, "greater than 0"),
        ({"max_ngram": 3}, "Extra inputs are not permitted"),
    ],
)
def test_bad_options(options: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=message):
        Options(**options)
