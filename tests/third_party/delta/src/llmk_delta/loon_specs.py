"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, CommandSpec, GrammarSpec, PageSpec, ParserQuery, ParserSpec, Verdict, hookimpl, no


def claims_flowers(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template writes calls as Qwen-Agent does."""
    template = query.checkpoint.chat_template or ""
    return OK if "✿FUNCTION✿" in template else no("chat_template", wanted="✿FUNCTION✿", hint="or choose it by name")


def claims_stages(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template writes the stages of LLaVA-CoT, or opens the first."""
    template = query.checkpoint.chat_template or ""
    found = any(tag in template for tag in ("<SUMMARY>", "<CAPTION>", "<REASONING>"))
    return OK if found else no("chat_template", wanted="<REASONING>", hint="or choose it by name")


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Tool parsers."""
    return [
        ParserSpec(
            id="loon.flower",
            name="qwen_agent",
            implementation="llmk_delta.loon_flower:Flower",
            claims=claims_flowers,
            writer="llmk_delta.loon_flower:WRITER",
            examples="llmk_delta.loon_flower_examples:FLOWERS",
            summary="✿FUNCTION✿ and ✿ARGS✿, as Qwen-Agent prompts for them",
        )
    ]


@hookimpl
def llmk_reasoning_parsers() -> list[ParserSpec]:
    """Reasoning parsers."""
    return [
        ParserSpec(
            id="loon.stages",
            name="llava_cot",
            implementation="llmk_delta.loon_stages:Stages",
            claims=claims_stages,
            markers=("<SUMMARY>", "<CONCLUSION>"),
            examples="llmk_delta.loon_stages_examples:STAGES",
            summary="stages between <SUMMARY> and <CONCLUSION>, as LLaVA-CoT writes them",
        )
    ]


@hookimpl
def llmk_grammars() -> list[GrammarSpec]:
    """Compilers of grammars."""
    return [
        GrammarSpec(
            id="loon.regexes",
            name="derivatives",
            implementation="llmk_delta.loon_grammar:Regexes",
            kinds=("regex",),
            examples="llmk_delta.loon_grammar_examples:REGEXES",
            summary="regular expressions by derivatives: no automaton is built ahead",
        )
    ]


@hookimpl
def llmk_pages() -> list[PageSpec]:
    """Pages for browsers."""
    return [
        PageSpec(
            id="loon.odds",
            path="/odds",
            package="llmk_delta",
            folder="loon_odds",
            summary="how likely each token of a continuation was",
        )
    ]


@hookimpl
def llmk_commands() -> list[CommandSpec]:
    """Commands."""
    return [
        CommandSpec(
            id="loon.imatrix",
            name="imatrix",
            implementation="llmk_delta.loon_imatrix:ShowMatrix",
            examples="llmk_delta.loon_imatrix_examples:MATRICES",
            summary="show an importance matrix of llama.cpp",
        )
    ]
