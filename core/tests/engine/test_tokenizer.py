"""The tokenizer and its chat templates give what ``transformers`` gives for the same checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from fakes import write_checkpoint
from trained import CORPUS
from transformers import AutoTokenizer

from llmk.api import Checkpoint, CheckpointError, RequestError
from llmk.api.checkpoint import LONGEST_TEMPLATE
from llmk.engine.text.tokenizer import Tokenizer
from llmk.planning.checkpoint.folder import read_checkpoint

PLAIN = """{{ bos_token }}{% for message in messages %}
    {% if message.role == 'system' and not loop.first %}{{ raise_exception('System goes first') }}{% endif %}
<|im_start|>{{ message['role'] }}
{{ message.content | trim }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

TOOLS = """{%- set ns = namespace(calls=0) %}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{{ tools | tojson(indent=2) }}<|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if message.content is string %}{{ message.role }}: {{ message.content }}{% else %}{{ message.role }} says
    nothing{% endif %} {%- for call in message.tool_calls or [] %}
        {%- set ns.calls = ns.calls + 1 %}
        {%- if loop.index > 1 %}{% break %}{% endif %}
<tool_call>{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}</tool_call>
    {%- endfor %}
{% endfor %}{{ ns.calls }}{% if documents %}{{ documents[0]['title'] }}{% endif %}"""

DATE = """{% set day = strftime_now('%d %b %Y') %}Today: {{ day }}
{% for message in messages %}
    {%- if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
    {%- else %}{% if loop.index0 is odd %}{% continue %}{% endif %}{{ message.content }}{% endif %}
{%- endfor %}"""

REASONING = """{% for message in messages %}{{ message.role }}{% if message.reasoning_content is defined %}
<think>{{ message.reasoning_content }}</think>{% endif %}
{{ message.content }}{% if message.name is defined %}{{ message.name }}{% endif %}
{% endfor %}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"""

TURNS = [
    {"role": "system", "content": "Be <b>brief</b> & kind — “größe” 日本"},
    {"role": "user", "content": "  Hi! \n"},
    {"role": "assistant", "content": "Hello.", "reasoning": "They greet.", "name": None},
    {"role": "user", "content": "And now?"},
]
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"function": {"name": "f", "arguments": {"a": "<é>"}}},
        {"function": {"name": "g", "arguments": {}}},
    ],
}
FUNCTION = {
    "type": "function",
    "function": {"name": "f", "description": "Größe <x> & 'y'", "parameters": {"b": 1, "a": [None]}},
}


def load(tmp_path, kind: str = "byte_level", template: Any = None, **config: Any):
    options = {"eos_token": "</s>", "bos_token": {"content": "<s>", "__type": "AddedToken"}, **config}
    if template is not None:
        options["chat_template"] = template
    folder = write_checkpoint(
        tmp_path, kind, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", **options}
    )
    return Tokenizer.load(read_checkpoint(folder)), AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize("template", [PLAIN, TOOLS, DATE, REASONING])
@pytest.mark.parametrize("messages", [TURNS[:2], TURNS, [*TURNS, CALL]])
@pytest.mark.parametrize("tools", [None, [FUNCTION]])
@pytest.mark.parametrize(
    "options", [{"add_generation_prompt": True}, {"add_generation_prompt": False, "enable_thinking": False}]
)
def test_prompts_are_those_of_transformers(tmp_path, template, messages, tools, options):
    if template is PLAIN and messages[-1] is CALL:
        messages = messages[:-1]
    ours, theirs = load(tmp_path, template=template)
    documents = [{"title": "T", "text": "x"}]
    expected = theirs.apply_chat_template(messages, tools=tools, documents=documents, tokenize=False, **options)
    assert ours.render_chat(messages, tools=tools, documents=documents, **options) == expected


def test_a_final_message_is_continued(tmp_path):
    ours, theirs = load(tmp_path, template=PLAIN)
    messages = [*TURNS, {"role": "assistant", "content": "The answer is"}]
    expected = theirs.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert ours.render_chat(messages, continue_final_message=True) == expected
    assert expected.endswith("The answer is")


def test_templates_by_name(tmp_path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    ours, theirs = load(tmp_path, template=named)
    for tools in (None, [FUNCTION]):
        assert ours.render_chat(TURNS, tools) == theirs.apply_chat_template(TURNS, tools=tools, tokenize=False)
    assert ours.chat_template == "plain"


def test_a_template_file_goes_before_the_config(tmp_path):
    write_checkpoint(tmp_path, tokenizer_config={"chat_template": "config", "eos_token": "</s>"})
    (tmp_path / "chat_template.jinja").write_text("file")
    own = tmp_path / "own.jinja"
    own.write_text("own")
    checkpoint = read_checkpoint(tmp_path)
    assert Tokenizer.load(checkpoint).chat_template == "file"
    assert Tokenizer.load(checkpoint, chat_template=str(own)).render_chat(TURNS) == "own"


@pytest.mark.parametrize("named", [None, "plain", [{"name": "default", "template": "plain"}]], ids=str)
def test_the_template_of_another_format_is_the_default_one(tmp_path, named):
    class Reader:
        def tokenizer(self) -> str:
            return (write_checkpoint(tmp_path) / "tokenizer.json").read_text()

    config = {"chat_template": named, "eos_token": "</s>"} if named else {}
    made = Checkpoint(path=tmp_path, config={}, tokenizer_config=config, chat_template="own", reader=Reader())
    assert Tokenizer.load(made).render_chat(TURNS) == "own"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (PLAIN, "System goes first"),
        ("{{ messages[9].content.x }}", "has no element 9"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        (None, "no chat template"),
    ],
)
def test_a_template_that_refuses_is_a_bad_request(tmp_path, template, message):
    ours, _ = load(tmp_path, template=template)
    with pytest.raises(RequestError, match=message) as caught:
        ours.render_chat([TURNS[1], TURNS[0]])
    assert caught.value.http_status == 400


@pytest.mark.parametrize("kind", ["byte_level", "llama", "metaspace"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": True},
        {"pad_token": "<pad-that-is-new>"},
        {"added_tokens_decoder": {"600": {"content": "<|new|>", "special": False, "normalized": False}}},
    ],
)
def test_tokens_and_text_are_those_of_transformers(tmp_path, kind, config):
    ours, theirs = load(tmp_path, kind, **config)
    for text in [*CORPUS[:6], "<s>two words<|im_end|> <|new|> <pad-that-is-new>", ""]:
        for special in (False, True):
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
        for skip in (False, True):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_eos_ids_come_from_the_generation_config_and_the_tokenizer(tmp_path):
    folder = write_checkpoint(tmp_path, generation_config={"eos_token_id": [3, 1]}, config={"eos_token_id": 7})
    assert Tokenizer.load(read_checkpoint(folder)).eos_token_ids == (3, 1)
    folder = write_checkpoint(tmp_path, generation_config={}, config={"eos_token_id": 7})
    assert Tokenizer.load(read_checkpoint(folder)).eos_token_ids == (7, 1)


def test_an_older_tokenizer_is_converted(tmp_path):
    folder = write_checkpoint(tmp_path)
    state = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(state["model"]["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in state["model"]["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": "</s>"}))
    tokenizer = Tokenizer.load(read_checkpoint(folder))
    assert tokenizer.decode(tokenizer.encode("The lazy dog")) == "The lazy dog"


def test_a_missing_or_broken_tokenizer_is_named(tmp_path):
    folder = write_checkpoint(tmp_path)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json can't be read"):
        Tokenizer.load(read_checkpoint(folder))
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match="has no tokenizer"):
        Tokenizer.load(read_checkpoint(folder))


def test_a_template_that_can_not_be_compiled_is_refused_at_the_start(tmp_path):
    folder = write_checkpoint(tmp_path, tokenizer_config={"chat_template": "a\n{% for"})
    with pytest.raises(CheckpointError, match=r"'default' of .* can't be compiled, line 2: .*end of template"):
        Tokenizer.load(read_checkpoint(folder))
    (folder / "chat_template.jinja").write_bytes("{{ messages }}".encode("utf-16"))
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja is not UTF-8 text"):
        read_checkpoint(folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "additional_chat_templates/tools.jinja", "special_tokens_map.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_tokenizer_files_are_regular_files_of_the_folder(tmp_path, name, kind):
    folder = write_checkpoint(tmp_path / "model")
    checkpoint = read_checkpoint(folder)
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    secret = tmp_path / "secret"
    secret.write_text("swordfish")
    {"link": lambda: file.symlink_to(secret), "pipe": lambda: os.mkfifo(file), "folder": file.mkdir}[kind]()
    with pytest.raises(CheckpointError, match=r"is a link to a file outside|it is a pipe|it is a folder") as caught:
        Tokenizer.load(checkpoint)
    assert str(file) in str(caught.value)
    assert "swordfish" not in str(caught.value)


def test_what_transformers_would_read_is_looked_at_first(tmp_path):
    folder = write_checkpoint(tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").symlink_to("/etc/hostname")
    with pytest.raises(CheckpointError, match=r"vocab\.json is a link to a file outside"):
        Tokenizer.load(read_checkpoint(folder))


@pytest.mark.parametrize("file", ["/dev/zero", "pipe", ".", "long", "utf16", "absent"])
def test_a_named_template_is_a_regular_file_of_a_sane_size(tmp_path, file):
    checkpoint = read_checkpoint(write_checkpoint(tmp_path / "model"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "long").write_bytes(b" " * (LONGEST_TEMPLATE + 1))
    (tmp_path / "utf16").write_bytes("{{ messages }}".encode("utf-16"))
    with pytest.raises(CheckpointError, match=r"regular file|longer than|not UTF-8|No such file"):
        Tokenizer.load(checkpoint, chat_template=str(tmp_path / file))


def test_a_named_template_may_lie_anywhere(tmp_path):
    checkpoint = read_checkpoint(write_checkpoint(tmp_path / "model"))
    (tmp_path / "store").write_text("somewhere")
    (tmp_path / "link").symlink_to(tmp_path / "store")
    assert Tokenizer.load(checkpoint, chat_template=str(tmp_path / "link")).chat_template == "somewhere"


def test_the_front_end_imports_neither_torch_nor_transformers():
    modules = "async_llm processes.engine_process text.tokenizer llm processes.in_process_client"
    imports = ";".join(f"import llmk.engine.{name}" for name in modules.split())
    check = "import sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{imports};{check}"], check=True)
