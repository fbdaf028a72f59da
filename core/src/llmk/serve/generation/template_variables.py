"""The variables of chat templates, found in their source, so that a request can't set one that would be ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmk.api import RequestError
from llmk.engine.text.chat_template import variables_of

THINKING_SWITCHES = ("enable_thinking", "thinking")
_OWN = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "tokenize", "return_dict"})


class TemplateVariables:
    """The variables of a model's chat templates. A template that can't be parsed counts as having every variable."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self.exists = bool(sources)
        each = [variables_of(source) for source in sources.values()]
        known = [variables for variables in each if variables is not None]
        self._variables = frozenset[str]().union(*known) if len(known) == len(each) else None

    def knows(self, name: str) -> bool:
        """Whether the template has the variable ``name``."""
        return self._variables is None or name in self._variables

    def options(self, given: Mapping[str, Any], effort: str | None, verbosity: str | None = None) -> dict[str, Any]:
        """The template's keyword arguments for a request's ``chat_template_kwargs``, and for ``reasoning_effort`` and
        ``verbosity``, which agents send to any model: without effect where the template has no such switch.

        Raises :class:`~llmk.api.RequestError` for other arguments that the template would ignore.
        """
        for name in given:
            if name in _OWN:
                raise RequestError(f"set '{name}' as a field of the request", param=f"chat_template_kwargs.{name}")
            if not self.knows(name):
                known = ", ".join(sorted((self._variables or frozenset()) - _OWN)) or "none"
                raise RequestError(
                    f"the model's chat template has no variable {name!r}; it has: {known}",
                    param=f"chat_template_kwargs.{name}",
                )
        wanted = self._effort(effort) if effort is not None else {}
        if any(given.get(name, value) != value for name, value in wanted.items()):
            raise RequestError("'reasoning_effort' contradicts 'chat_template_kwargs'", param="reasoning_effort")
        if verbosity is not None and self._variables is not None and "verbosity" in self._variables:
            wanted.setdefault("verbosity", verbosity)
        return {**wanted, **given}

    def thinking(self, options: Mapping[str, Any]) -> bool | None:
        """The request's switch for reasoning, ``None`` if it is not set."""
        return next((bool(options[name]) for name in THINKING_SWITCHES if name in options), None)

    def wish(self, thinking: bool | str) -> dict[str, Any]:
        """The keyword arguments that turn reasoning on or off, or set how much, as far as there are switches for it."""
        found: dict[str, Any] = {}
        switch = next((name for name in THINKING_SWITCHES if self._variables and name in self._variables), None)
        if switch is not None:
            found[switch] = bool(thinking)
        if self._variables and "reasoning_effort" in self._variables and isinstance(thinking, str):
            found["reasoning_effort"] = thinking
        return found

    def _effort(self, effort: str) -> dict[str, Any]:
        if self._variables is not None and "reasoning_effort" in self._variables:
            return {"reasoning_effort": effort}
        switch = next((name for name in THINKING_SWITCHES if self._variables and name in self._variables), None)
        return {} if switch is None else {switch: effort != "none"}
