"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, CommandSpec, GrammarSpec, PageSpec, ParserQuery, ParserSpec, Verdict, hookimpl, no


def writes_flowers(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template writes calls as Qwen-Agent does."""
    template = query.checkpoint.chat_template or ""
    return OK if "✿FUNCTION✿" in template else no("chat_template", wanted="✿FUNCTION✿", hint="or choose it by name")


def writes_sections(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template has the sections of OpenThinker."""
    template, wanted = query.checkpoint.chat_template or "", "<|begin_of_thought|>"
    return OK if wanted in template else no("chat_template", wanted=wanted, hint="or choose it by name")


@hookimpl
def llmk_reasoning_parsers() -> list[ParserSpec]:
    """Reasoning parsers."""
    return [
        ParserSpec(
            id="stork.sections",
            name="stork-sections",
            implementation="llmk_lagoon.stork_sections:Sections",
            claims=writes_sections,
            markers=("<|begin_of_thought|>", "<|end_of_thought|>"),
            examples="llmk_lagoon.stork_parser_examples:THOUGHTS",
            summary="sections of thoughts and of the solution, as OpenThinker and Sky-T1 write them",
        )
    ]


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Tool parsers."""
    return [
        ParserSpec(
            id="stork.flowers",
            name="stork-flowers",
            implementation="llmk_lagoon.stork_flowers:Flowers",
            claims=writes_flowers,
            writer="llmk_lagoon.stork_flowers:WRITER",
            examples="llmk_lagoon.stork_parser_examples:CALLS",
            summary="names behind ✿FUNCTION✿, and JSON objects behind ✿ARGS✿",
        )
    ]


@hookimpl
def llmk_grammars() -> list[GrammarSpec]:
    """Compilers of grammars."""
    return [
        GrammarSpec(
            id="stork.patterns",
            name="stork-patterns",
            implementation="llmk_lagoon.stork_grammar:Patterns",
            kinds=("regex", "choice"),
            examples="llmk_lagoon.stork_grammar_examples:PATTERNS",
            summary="regular expressions and choices, by automata over bytes whose masks are kept",
        )
    ]


@hookimpl
def llmk_pages() -> list[PageSpec]:
    """Pages for browsers."""
    return [
        PageSpec(
            id="stork.desk",
            path="/translate",
            package="llmk_lagoon",
            folder="stork_page",
            summary="translates a text while the model writes, and keeps the last translations",
        )
    ]


@hookimpl
def llmk_commands() -> list[CommandSpec]:
    """Commands."""
    return [
        CommandSpec(
            id="stork.gguf_info",
            name="gguf-info",
            implementation="llmk_lagoon.stork_command:GgufInfo",
            examples="llmk_lagoon.stork_command_examples:INFO",
            summary="what a GGUF file says of itself, and what its tensors take",
        )
    ]
