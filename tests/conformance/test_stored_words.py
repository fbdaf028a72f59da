"""A good quantization method that packs numbers into words without a sign, of a model's head too, passes the suite."""

from __future__ import annotations

from typing import Any

import pytest
from killing import check_killed

from llmk.api import QuantizationSpec
from llmk_testing.bench import Bench
from llmk_testing.case import Result
from llmk_testing.suites import cases

SPECS = """
from llmk.api import OK, QuantizationSpec, hookimpl, no

def claims(checkpoint):
    return OK if checkpoint.quantization.get("quant_method") == "words" else no("quant_method")

@hookimpl
def llmk_quantization_methods():
    where = {"implementation": "NAME_method:Words", "examples": "NAME_method:EXAMPLES"}
    what = {"name": "words", "weight_format": "int8_channel", "heads": True}
    return [QuantizationSpec(id="NAME.words", claims=claims, **what, **where)]
"""
METHOD = '''
import torch

from llmk.api import CheckpointError
from llmk.nn import Quantization
from llmk.reference.quantize import quantize_int8_channel
from llmk_testing.quantization_example import QuantizationExample


class Words(Quantization):
    """Four numbers of 8 bits to a word, and a scale for each output."""

    def check(self, module, stored):
        words, scale = stored.get("weight_packed"), stored.get("weight_scale")
        named = stored.keys() == {"weight_packed", "weight_scale"}
        if named and words.dtype == WORD and len(words.shape) == 2 and scale.dtype == "F32":
            if scale.shape == (words.shape[0], 1):
                return
        found = [(name, each.dtype, each.shape) for name, each in stored.items()]
        raise CheckpointError(f"{module} stores {found}", hint="")

    def shape(self, stored):
        rows, words = stored["weight_packed"].shape
        return rows, NUMBERS * words

    def convert(self, layer, parameters, rows):
        if "weight" in parameters:
            return quantize_int8_channel(parameters["weight"].float())
        if not parameters["weight_scale"].isfinite().all():
            raise CheckpointError(f"{layer} has a scale that is no number", hint="")
        return {"weight": parameters["weight_packed"].view(torch.int8), "weight_scale": parameters["weight_scale"]}


def stored(weight):
    parts = quantize_int8_channel(weight)
    return {"weight_packed": parts["weight"].view(TORCH), "weight_scale": parts["weight_scale"]}


def restored(stored):
    return stored["weight_packed"].view(torch.int8).float() * stored["weight_scale"]


EXAMPLES = (
    QuantizationExample(
        name="words",
        model_type="llama",
        stored=stored,
        restored=restored,
        quantization_config={"quant_method": "words"},
        quantized_weights=r"lm_head\\.weight|model\\.layers\\..*_proj\\.weight",
    ),
)
'''


def opened(site: Any, name: str, word: str, method: str = METHOD) -> tuple[QuantizationSpec, Bench]:
    """The spec of the method, which is installed by a ``name`` of its own, with words of a dtype."""
    bits = int(word.removeprefix("U"))
    module = method.replace("WORD", repr(word)).replace("NUMBERS", str(bits // 8)).replace("TORCH", f"torch.uint{bits}")
    site(name, SPECS.replace("NAME", name), **{f"{name}_method": module})
    bench = Bench.open("cpu")
    assert not bench.registry.warnings, bench.registry.warnings
    return next(each.spec for each in bench.registry.of(QuantizationSpec) if each.plugin.name == name), bench


@pytest.mark.parametrize("word", ["U16", "U32", "U64"])
def test_a_good_method_passes(word: str, site: Any) -> None:
    found = [Result.of(case) for case in cases("quantization", *opened(site, f"words_{word.lower()}", word))]
    assert [each for each in found if each.outcome == "failed"] == []
    (left,) = [each for each in found if "what is left plain" in each.name]
    assert "lm_head served" in left.message or "lm_head refused" in left.message


def test_a_table_that_is_left_plain_and_read_as_another_is_found(site: Any) -> None:
    """As by one that rounds a head which files hold plain."""
    broken = METHOD.replace(
        """        raise CheckpointError(f"{module} stores""",
        """        if module == "lm_head":
            return
        raise CheckpointError(f"{module} stores""",
    ).replace(
        """        if "weight" in parameters:
""",
        """        if "weight" in parameters and layer == "lm_head":
            return quantize_int8_channel(parameters["weight"].float())
        if "weight" in parameters:
""",
    )
    spec, bench = opened(site, "words_broken", "U32", broken)
    check_killed("quantization", spec, bench, "what is left plain")
