"""The plugin module: the specs of this distribution. It imports no torch."""

from __future__ import annotations

from llmk.api import OK, ParserQuery, ParserSpec, Verdict, hookimpl, no


def claims(query: ParserQuery) -> Verdict:
    """Checkpoints whose chat template writes reasoning in double brackets."""
    template = query.checkpoint.chat_template or ""
    return OK if "[[think]]" in template else no("chat_template", wanted="[[think]]", hint="or choose it by name")


@hookimpl
def llmk_reasoning_parsers() -> list[ParserSpec]:
    """Reasoning parsers."""
    return [
        ParserSpec(
            id="acme.thoughts",
            name="acme-thoughts",
            implementation="llmk_acme.thoughts:Thoughts",
            claims=claims,
            markers=("[[think]]", "[[/think]]"),
            examples="llmk_acme.examples:THOUGHTS",
            summary="reasoning between [[think]] and [[/think]]",
        )
    ]
