"""Cases of what checkpoints a parser claims: those whose chat template has the texts of its dialect, wherever, and none
of other dialects."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmk.api import CallWriter, Checkpoint, ParserQuery, ParserSpec, WrittenCall
from llmk.kernel.loader import load_object
from llmk_testing.case import Case, Skip
from llmk_testing.purity import check_pure

TEMPLATES = (
    None,
    "",
    " ",
    "{{",
    "{% if x %}",
    "\x00\ud83d",
    "{{ messages[0].content }}",
    "<think>" * 999,
    "}}{{" * 999,
)
CONFIGS: tuple[dict[str, Any], ...] = ({}, {"architectures": None}, {"architectures": ["X"], "model_type": 7})
UNKNOWN: tuple[dict[str, Any], ...] = ({}, {"model_type": "unheard_of", "architectures": ["UnheardOfForCausalLM"]})

_LOOP = "{%- for message in messages %}{{ '<|turn|>' + message.role + '\\n' + message.content }}{%- endfor %}"
FOREIGN = (
    None,
    "",
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant\n",
    "{{ bos_token }}{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}",
    "<|user|>{{ messages[0].content }}<|assistant|>",
    "{%- if messages[0]['content'] is string %}{{ messages[0]['content'] | string }}{%- endif %}" + _LOOP,
    "{%- if tools %}{{ 'Each tool is a function. Call it with a name and arguments as JSON, after thinking.' }}"
    "{%- for tool in tools %}{{ tool.function.parameters | tojson(indent=4) }}{%- endfor %}{%- endif %}{%- for m in "
    "messages %}{%- if m.tool_calls %}{{ m.tool_calls[0].function.name }}{%- endif %}{{ m.reasoning }}{%- endfor %}",
    "{# write to me@call.org; see #1 / a|b \\ <b> [x] (y) $z %w ~v ^u &t; `s` *r* _q_ = + - ? ! : \" ' #}" + _LOOP,
)
"""Templates that have no dialect of reasoning or calls, though words that markers are made of."""
_TOKENIZERS: tuple[Any, ...] = (
    None,
    _LOOP,
    [{"name": "default", "template": _LOOP}, {"name": "tool_use", "template": FOREIGN[2]}],
    [],
)
"""What tokenizer_config.json may have in place of a template; it counts where the checkpoint has no file of its own,
and the checkpoint's ``chat_template`` is the one that counts."""
_TAG = re.compile(r"<\w+>")
_WORD = re.compile(r"[^\W_]{3,}")


def claim_cases(spec: ParserSpec, texts: Callable[[], Sequence[str]], case: Callable[..., Case]) -> Iterator[Case]:
    """The cases of one parser; ``texts`` are its examples'."""
    yield case("its claims are verdicts on any checkpoint", check_pure, spec.claims, _queries())
    yield case("its claims refuse checkpoints that don't have its dialect", check_refused, spec)
    yield case("its claims find the dialect wherever the template has it", check_found, spec, texts)


def check_refused(spec: ParserSpec) -> str:
    """Templates without a dialect, or with the words of its markers alone, and no template at all."""
    words = " ".join(f"{word} {word}s pre{word} {word.upper()}" for word in _words(spec))
    templates = [*FOREIGN, f"{{{{ '{words}' }}}}{_LOOP}", *(near + _LOOP for near in _near(spec))]
    stale = "\n".join(_marks(spec))
    for template in templates:
        for config in UNKNOWN:
            claimed = spec.claims(_query(template, config))
            assert not claimed, f"it claims a checkpoint with {config} and the chat template {template!r}"
            replaced = template and stale and spec.claims(_query(template, config, stale))
            assert not replaced, f"it claims {template!r}, which replaces the tokenizer_config.json's {stale!r}"
    return f"{len(templates)} templates"


def check_found(spec: ParserSpec, texts: Callable[[], Sequence[str]]) -> str:
    """What is around the dialect's texts in a template changes nothing."""
    dialect = "\n".join(_marks(spec) or texts())
    around = {
        "in lines of their own": ("{%- if tools %}\n", "\n{%- endif %}\n" + _LOOP),
        "at the start": ("", _LOOP),
        "at the end": (_LOOP, ""),
        "in a string": (f"{_LOOP}{{{{- '", "' }}"),
        "between words": (f"{_LOOP}Write", "then."),
        "behind a long text": (_LOOP * 300, _LOOP),
        "alone": ("", ""),
    }
    claimed = {
        where: bool(spec.claims(_query(before + dialect + after, config)))
        for where, (before, after) in around.items()
        for config in UNKNOWN
    }
    if not any(claimed.values()):
        anywhere = any(spec.claims(_query(dialect, config, dialect)) for config in UNKNOWN)
        assert not anywhere, "it claims a template of tokenizer_config.json, and not the same in a file of its own"
        raise Skip("a template with the dialect's texts alone is not enough for a claim")
    missed = [where for where, found in claimed.items() if not found]
    assert not missed, f"it does not claim a template that has {dialect!r} {', '.join(missed)}, and others that have it"
    opens = spec.markers[0]
    if opens and spec.claims(_query("\n".join(spec.markers), {})):
        assert spec.claims(_query(_LOOP + opens, {})), f"no claim of a template that only opens a block, {opens!r}"
    for old in _TOKENIZERS:
        assert spec.claims(_query(dialect, {}, old)), (
            f"{dialect!r} counts no more with {old!r} in tokenizer_config.json"
        )
    return f"{len(around)} templates"


def _marks(spec: ParserSpec) -> list[str]:
    """Texts of the dialect that templates have."""
    calls = []
    if spec.writer:
        writer: CallWriter = load_object(spec.writer)
        calls = [writer.trigger, writer.render([WrittenCall("now", {}, "call_now")])]
    return [text for text in (*spec.markers, *calls) if text]


def _near(spec: ParserSpec) -> list[str]:
    """What is not a marker: in other case, and the end of another tag, as ``<string>`` has that of ``<ring>``."""
    marks = _marks(spec)
    near = ["\n".join(marks).swapcase(), "\n".join(f"<st{mark[1:]}" for mark in marks if _TAG.fullmatch(mark))]
    return [text for text in near if text and not any(mark in text for mark in marks)]


def _words(spec: ParserSpec) -> list[str]:
    """The words of the dialect's markers."""
    found = [word for text in _marks(spec) for word in _WORD.findall(text) if word != "now"]
    return list(dict.fromkeys(found))


def _query(template: str | None, config: Mapping[str, Any], old: Any = None) -> ParserQuery:
    """A checkpoint with a template, and an ``old`` one in its tokenizer_config.json."""
    tokenizer = {} if old is None else {"chat_template": old}
    return ParserQuery(
        checkpoint=Checkpoint(path=Path("/nowhere"), config=config, chat_template=template, tokenizer_config=tokenizer)
    )


def _queries() -> list[ParserQuery]:
    """Checkpoints with odd templates and configurations."""
    queries = [*(_query(None, config) for config in CONFIGS), *(_query(template, {}) for template in TEMPLATES)]
    return [*queries, *(_query(template, {}, old) for old in _TOKENIZERS for template in (None, _LOOP))]
