"""From samples to text and token ids, through the chat template that ships with the model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from corpus import Call, Sample

END_OF_TURN = "<|im_end|>"
END_OF_TEXT = "<|endoftext|>"


def call_text(call: Call) -> str:
    """One tool call in the model's own format."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


@dataclass(frozen=True)
class ChatTemplate:
    """The compiled ``chat_template.jinja``."""

    template: jinja2.Template

    @classmethod
    def of(cls, folder: Path) -> "ChatTemplate":
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        return cls(environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8")))

    def prompt(self, sample: Sample) -> str:
        """Everything before the reply; a plain document has no chat markup."""
        if sample.plain:
            return "".join(message["content"] for message in sample.messages)
        arguments: dict[str, Any] = {"messages": sample.messages, "tools": sample.tools}
        return self.template.render(arguments, add_generation_prompt=True, enable_thinking=sample.thinking)

    def reply(self, sample: Sample) -> str:
        """What the model is to write, its end token included."""
        if sample.plain:
            return sample.text + END_OF_TEXT
        parts = ([sample.text] if sample.text else []) + [call_text(call) for call in sample.calls]
        thought = f"<think>\n{sample.thought}\n</think>\n\n" if sample.thinking else ""
        return thought + "\n".join(parts) + END_OF_TURN


class Encoder:
    """The shipped tokenizer, applied to samples."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.template = ChatTemplate.of(folder)
        self.pad: int = self.tokenizer.token_to_id(END_OF_TEXT)

    def ids(self, sample: Sample) -> tuple[list[int], list[int]]:
        """Token ids of the prompt and of the reply, encoded apart as they are when the model is served."""
        parts = (self.template.prompt(sample), self.template.reply(sample))
        prompt, reply = (self.tokenizer.encode(part, add_special_tokens=False).ids for part in parts)
        return prompt, reply
