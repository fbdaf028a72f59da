from __future__ import annotations

import pytest

from llmk.api import ParserContext, ReasoningDelta, TextDelta
from llmk_parsers.reasoning.deepseek_r1 import DeepSeekR1
from llmk_parsers.reasoning.qwen3 import Qwen3
from llmk_parsers.think_tags import ThinkTags
from llmk_testing.parsers import check_chunking, check_parser

OPENED = ParserContext(prompt_tail="<|im_start|>assistant\n<think>\n")
CLOSED = ParserContext(prompt_tail="<|im_start|>assistant\n<think>\n\n</think>\n\n")
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "<think>"}}\n</tool_call>'
ON = ParserContext()

CASES = {
    "opened by the model": (ON, "<think>a</think>b", "a", "b"),
    "opened after a newline": (ON, "\n<think>a</think>b", "a", "b"),
    "opened by the template": (OPENED, "a</think>b", "a", "b"),
    "opened by both": (OPENED, "<think>a</think>b", "a", "b"),
    "no closing tag": (ON, "a", "a", ""),
    "no closing tag, opened by the template": (OPENED, "a", "a", ""),
    "closed by the template": (CLOSED, "a", "", "a"),
    "white space inside is kept": (ON, "<think>\na\n</think>\n\nb", "\na\n", "\n\nb"),
    "nothing thought": (ON, "<think>\n\n</think>\n\nb", "", "\n\nb"),
    "tags that are talked of": (
        ON,
        "a <think> b</think>c <think> d </think>",
        "a <think> b",
        "c <think> d </think>",
    ),
    "closed twice": (ON, "a</think>\n</think>b</think>c", "a", "\nbc"),
    "closed by the template and the model": (CLOSED, "</think>a", "", "a"),
    "tag cut off": (ON, "a</thi", "a</thi", ""),
    "again after a call": (ON, f"<think>a</think>b{CALL}\n<think>c</think>d", "ac", f"b{CALL}\nd"),
    "several blocks": (CLOSED, "<think>a</think> <think>b</think>c", "ab", " c"),
    "call in the middle of a thought": (ON, f"<think>a{CALL}b", "a", f"{CALL}b"),
    "xml call in the middle of a thought": (ON, "a<tool_call>\n<function=f>", "a", "<tool_call>\n<function=f>"),
    "call that is talked of": (ON, "a <tool_call> b</think>c", "a <tool_call> b", "c"),
    "call of another dialect": (
        ON,
        "a<｜tool▁calls▁begin｜>x<think><｜tool▁calls▁end｜><think>b",
        "ab",
        "<｜tool▁calls▁begin｜>x<think><｜tool▁calls▁end｜>",
    ),
}


@pytest.mark.parametrize("kind", [Qwen3, DeepSeekR1])
@pytest.mark.parametrize(("context", "text", "reasoning", "content"), CASES.values(), ids=CASES)
def test_split(kind: type[ThinkTags], context: ParserContext, text: str, reasoning: str, content: str) -> None:
    answer = check_chunking(lambda: kind(context), text, rounds=16)
    assert (answer.reasoning, answer.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("context", "thinks"),
    [
        (ParserContext(), True),
        (ParserContext(thinking=True), True),
        (ParserContext(thinking=False), False),
        (ParserContext(template_options={"enable_thinking": False}), False),
        (ParserContext(thinking=True, template_options={"enable_thinking": False}), True),
        (ParserContext(thinking=False, prompt_tail="<think>\n"), True),
        (ParserContext(thinking=True, prompt_tail="<think>\n\n</think>\n\n"), False),
        (ParserContext(thinking=False, prompt_tail="What is <think>?<|im_end|>\n<|im_start|>assistant\n"), False),
    ],
)
def test_qwen3_knows_whether_thinking_is_on(context: ParserContext, thinks: bool) -> None:
    expected = [ReasoningDelta("a")] if thinks else [TextDelta("a")]
    assert [*Qwen3(context).push("a")] == expected


def test_deepseek_r1_thinks_unless_the_answer_is_to_come_first() -> None:
    assert [*DeepSeekR1(ParserContext()).push("a")] == [ReasoningDelta("a")]
    assert [*DeepSeekR1(ParserContext(thinking=False)).push("a")] == [TextDelta("a")]
    assert [*DeepSeekR1(ParserContext(thinking=False)).push("<think>a")] == [ReasoningDelta("a")]


def test_blocks_may_interleave_in_one_chunk() -> None:
    events = Qwen3(ON).push(f"<think>a</think>b{CALL}<think>c</think>d")
    kinds = [type(event) for event in events]
    assert [kind for i, kind in enumerate(kinds) if i == 0 or kind is not kinds[i - 1]] == [
        ReasoningDelta,
        TextDelta,
        ReasoningDelta,
        TextDelta,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("context", [ON, OPENED, CLOSED])
@pytest.mark.parametrize("kind", [Qwen3, DeepSeekR1])
def test_conforms(kind: type[ThinkTags], context: ParserContext) -> None:
    check_parser(lambda: kind(context), [case[1] for case in CASES.values()])
