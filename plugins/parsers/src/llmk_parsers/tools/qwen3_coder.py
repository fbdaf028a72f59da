"""Calls as ``<function=name>`` with ``<parameter=name>`` tags: Qwen3-Coder, Qwen3.5, Nemotron 3 and others."""

from __future__ import annotations

from llmk_parsers.tag_calls import ANYTHING, PLAIN, PLAIN_SO_FAR, TagCalls, Tags
from llmk_parsers.tag_writer import TagWriter


def function_tags(opening: str, closing: str) -> Tags:
    """The markers of the dialect with calls between ``opening`` and ``closing``."""
    return Tags(
        lists=(opening,),
        list_ends=(closing,),
        call="<function=",
        name=PLAIN,
        name_so_far=PLAIN_SO_FAR,
        call_end="</function>",
        key="<parameter=",
        key_name=ANYTHING,
        value_end="</parameter>",
        value_stops=("<parameter=", "</function>"),
        trim=True,
    )


def function_writer(tags: Tags) -> TagWriter:
    """The writer of such a dialect."""
    opening, closing = tags.lists[0], tags.list_ends[0]
    return TagWriter(
        trigger=opening,
        markers=(opening, closing),
        opening=f"{opening}\n<function=",
        after_name=">\n",
        key="<parameter=",
        after_key=">\n",
        after_value="\n</parameter>\n",
        closing=f"</function>\n{closing}",
        stops=(tags.value_end, *tags.value_stops),
    )


class Qwen3Coder(TagCalls):
    """Any number of calls between tags, which may be missing. A value stands on lines of its own, or not."""

    STRIP = True
    MARKS = function_tags("<tool_call>", "</tool_call>")


WRITER = function_writer(Qwen3Coder.MARKS)
