"""Cases of IO processors over texts: long ones, many of them, and tokenizers that add tokens around a text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmk.api import IOContext
from llmk_testing.case import Skip
from llmk_testing.io_bodies import Body, lengthened
from llmk_testing.io_processors import Expected, Make, check_varied

_CONTEXT = 1 << 16
"""The model's context, in tokens, of which the processor's facts speak."""
_MOST = 12


def check_long(make: Make, context: IOContext, bodies: Sequence[Body], expected: Expected, tolerance: float) -> None:
    """Texts of thousands of tokens, each word of which is another, in place of each text; and hundreds of texts. A
    processor may refuse them by name, but leaves nothing out."""
    large = wide(context)
    check_varied(make(large), large, list(lengthened(bodies))[:_MOST], expected, tolerance)


def wide(context: IOContext) -> IOContext:
    """The context of a model that takes long texts."""
    return replace(context, facts=replace(context.facts, max_model_len=_CONTEXT))


def check_special_tokens(
    make: Make, context: IOContext, bodies: Sequence[Body], expected: Expected, tolerance: float
) -> None:
    """The engine encodes texts with them, so a processor that encodes texts itself does, too."""
    added = len(context.tokenizer.encode("a")) - len(context.tokenizer.encode("a", add_special_tokens=False))
    assert added > 0, "the tokenizer adds no tokens, although its post-processor says so"
    check_varied(make(context), context, bodies, expected, tolerance)


def with_special_tokens(written: Path, folder: Path) -> Path:
    """A copy of a checkpoint in ``folder``, whose tokenizer adds a token at both ends of a text."""
    if not (written / "tokenizer.json").is_file():
        raise Skip("the examples' checkpoint has no tokenizer.json")
    copy = Path(shutil.copytree(written, folder / "with_special_tokens"))
    file = copy / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    names = [token["content"] for token in tokenizer.get("added_tokens", ()) if token["special"]]
    if not names:
        raise Skip("the tokenizer of the examples' checkpoint has no special tokens")
    parts = [tokenizer["post_processor"]] if tokenizer.get("post_processor") else []
    around = [_around(names, tokenizer["added_tokens"])]
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [*parts, *around]}
    file.write_text(json.dumps(tokenizer), encoding="utf-8")
    return copy


def _around(names: Sequence[str], tokens: Sequence[Any]) -> dict[str, Any]:
    """The post-processor that puts the first special token before a text and the last one behind it."""
    ids = {token["content"]: token["id"] for token in tokens}
    special: Callable[[str], dict[str, Any]] = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}  # noqa: E731
    text, other = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [special(names[0]), text, special(names[-1])],
        "pair": [text, other],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (names[0], names[-1])},
    }
