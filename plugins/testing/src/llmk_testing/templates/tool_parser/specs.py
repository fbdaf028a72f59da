"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, ParserQuery, ParserSpec, Verdict, hookimpl, no


def claims(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template writes calls in double brackets."""
    template = query.checkpoint.chat_template or ""
    return OK if "[[call " in template else no("chat_template", wanted="[[call ", hint="or choose it by name")


@hookimpl
def llmk_tool_parsers() -> list[ParserSpec]:
    """Tool parsers."""
    return [
        ParserSpec(
            id="acme.brackets",
            name="acme-brackets",
            implementation="llmk_acme.brackets:Brackets",
            claims=claims,
            examples="llmk_acme.examples:BRACKETS",
            summary='[[call name {"argument": 1}]]',
        )
    ]
