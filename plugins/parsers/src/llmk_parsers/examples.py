"""Examples for the conformance kit: answers in each dialect, as models write them."""

from __future__ import annotations

QWEN3 = (
    "<think>\nTwelve plus thirty is forty-two.\n</think>\n\n42",
    "<think>No tool is needed, says <tool_call>.</think>Paris, where 3 < 4.",
    '<think>\nI should look.\n<tool_call>\n{"name": "find", "arguments": {"q": "x"}}\n</tool_call>',
    "<think>a</think>b<think>c</think>d",
)
DEEPSEEK_R1 = (
    "<think>\nFirst, the sum.\n</think>\n\n**42**",
    "The template has opened the block.</think>So the answer is here.",
    "<think></think>Nothing was thought.",
)
HERMES = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": [1, 2]}}\n</tool_call>',
    '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n<tool_call>\n'
    '{"name": "b", "arguments": {"x": "}\\""}}\n</tool_call>\nDone.',
    '<tool_call>{"arguments": {"text": "\\u00e9\\ud83d\\ude00 </tool_call>"}, "name": "say"}</tool_call>',
)
LLAMA3_JSON = (
    '{"name": "get_weather", "parameters": {"city": "Oslo", "days": [1, 2]}}',
    '<|python_tag|>{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": "}; {\\""}}',
    '{"parameters": {"text": "\\u00e9\\ud83d\\ude00"}, "name": "say"}',
)
