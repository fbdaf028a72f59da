"""Headers of calls are recognized alike as they arrive and when they are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from dialects import SPECS, load

from llmk_parsers.tag_calls import TagCalls

FORMS = ("{}", " {}", ' name="{}"', " name={}", ' tool="{}" index="1"', " to={} x", "assistant to={}\n")
ODD = ("f", "a b", "a>b", "<a", "a\nb", "\u2028>f", 'a"b', "a=b", "\u00a0f")


def dialects() -> Iterator[type[TagCalls]]:
    """Those of all parsers."""
    for spec in SPECS.values():
        load(spec.implementation)
    left = list(TagCalls.__subclasses__())
    while left:
        made = left.pop()
        left += made.__subclasses__()
        if hasattr(made, "MARKS"):
            yield made


@pytest.mark.parametrize("header", [form.format(odd) for form in FORMS for odd in ODD])
def test_a_header_with_a_name_may_be_one_from_its_start(header: str) -> None:
    for dialect in dialects():
        tags = dialect.MARKS
        if tags.name.fullmatch(header) and tags.name_end not in header:
            refused = [at for at in range(len(header) + 1) if not tags.name_so_far.fullmatch(header[:at])]
            assert not refused, f"{dialect.__module__} returns {header[: refused[0]]!r} as text before the rest comes"
