"""Multiple choice: which of several answers a model finds the most likely behind a question.

A body is ``{"question": "...", "choices": ["...", "..."]}``, and may have

- ``separator``: what stands between question and choice, a space unless it is given;
- ``normalize``: ``"sum"``, ``"tokens"`` or ``"bytes"``: a choice's score is its log-probability as it is (without
  ``normalize``, too), or over its number of tokens, or of bytes in UTF-8, since long texts are less likely than short
  ones;
- ``baseline``: a text in place of the question, such as ``"Answer:"``. The log-probability of the choice behind it is
  taken off, so that choices which are likely anywhere have no advantage (domain-conditional PMI, arXiv:2104.08315).

The answer is ``{"choice": index, "scores": [{"logprob", "tokens", "score", "probability"}, ...]}``: the index of the
greatest score, of equal ones the first; ``logprob`` is that of the choice behind the question, ``tokens`` the number of
its tokens, and probabilities are the softmax of scores. A token counts for no less than :data:`LEAST_LOGPROB`, since
JSON has no infinity. The option ``max_choices`` bounds the choices of a request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from math import exp, fsum
from typing import Any, TypeGuard

from llmk.api import ConfigError, IOContext, IOOutput, IOPrompt, IOTokenizer, RequestError

LEAST_LOGPROB = -1e4
MAX_CHOICES = 64
_FIELDS = ("question", "choices", "separator", "normalize", "baseline")
_NORMALIZE = ("sum", "tokens", "bytes")


class MultipleChoice:
    """Follows ``llmk.api.IOProcessor``."""

    def __init__(self, context: IOContext) -> None:
        self._tokenizer = context.tokenizer
        self._leading = leading_tokens(context.tokenizer)
        most = context.options.get("max_choices", MAX_CHOICES)
        if not isinstance(most, int) or isinstance(most, bool) or most < 2:
            raise ConfigError("max_choices of [plugin.heron] must be an integer, and 2 at least")
        self._max_choices = most

    def open(self, body: Mapping[str, Any]) -> ChoiceRequest:
        """Checks a body, and makes its prompts: each choice behind the question, then each behind the baseline."""
        unknown = next((name for name in body if name not in _FIELDS), None)
        if unknown is not None:
            raise RequestError(f"there is no field {unknown[:40]!a}; there are {', '.join(_FIELDS)}", param=unknown)
        question, choices = _text(body, "question"), self._choices(body)
        separator = body.get("separator", " ")
        if not _is_text(separator):
            raise RequestError("separator must be a text", param="separator")
        normalize = body.get("normalize", "sum")
        if not isinstance(normalize, str) or normalize not in _NORMALIZE:
            raise RequestError(f"normalize must be one of {', '.join(_NORMALIZE)}", param="normalize")
        contexts = [self._context(question, "question")]
        if "baseline" in body:
            contexts.append(self._context(_text(body, "baseline"), "baseline"))
        continuations: list[list[int]] = []
        for index, choice in enumerate(choices):
            ids = self._tokenizer.encode(f"{separator}{choice}", add_special_tokens=False)
            if not ids:
                raise RequestError("a choice must have tokens", param=f"choices[{index}]")
            continuations.append(ids)
        units = {
            "sum": [1] * len(choices),
            "tokens": [len(ids) for ids in continuations],
            "bytes": [len(choice.encode()) for choice in choices],
        }[normalize]
        return ChoiceRequest(contexts, continuations, units)

    def _choices(self, body: Mapping[str, Any]) -> list[str]:
        choices = body.get("choices")
        if not isinstance(choices, list) or not 2 <= len(choices) <= self._max_choices:
            raise RequestError(f"choices must be a list of 2 to {self._max_choices} texts", param="choices")
        for index, choice in enumerate(choices):
            if not _is_text(choice) or not choice:
                raise RequestError("a choice must be a text that is not empty", param=f"choices[{index}]")
        return choices

    def _context(self, text: str, param: str) -> list[int]:
        ids = [*self._leading, *self._tokenizer.encode(text, add_special_tokens=False)]
        if not ids:
            raise RequestError(f"{param} must have tokens", param=param)
        return ids


class ChoiceRequest:
    """Follows ``llmk.api.IORequest``. ``units`` are what each choice's log-probability is divided by."""

    def __init__(self, contexts: Sequence[list[int]], continuations: Sequence[list[int]], units: Sequence[int]) -> None:
        self.prompts = [
            IOPrompt(prompt=[*context, *ids], returns="logprobs", param=f"choices[{index}]")
            for context in contexts
            for index, ids in enumerate(continuations)
        ]
        self._starts = [len(context) for context in contexts for _ in continuations]
        self._lengths = [len(ids) for ids in continuations]
        self._units = units
        self._logprobs: list[list[float]] = [[] for _ in self.prompts]

    def take(self, output: IOOutput) -> None:
        """Notes the log-probabilities of a choice's tokens; those of what is before it don't count."""
        skipped = max(0, self._starts[output.prompt] - output.start)
        known = self._logprobs[output.prompt]
        for logprob in islice(output.logprobs, skipped, None):
            known.append(LEAST_LOGPROB if logprob is None else max(LEAST_LOGPROB, logprob))

    def answer(self) -> dict[str, Any]:
        """The most likely choice, and the scores of all."""
        sums = [fsum(known) for known in self._logprobs]
        count = len(self._units)
        behind_question, behind_baseline = sums[:count], sums[count:] or [0.0] * count
        scores = [
            (logprob - baseline) / unit
            for logprob, baseline, unit in zip(behind_question, behind_baseline, self._units, strict=True)
        ]
        greatest = max(scores)
        weights = [exp(score - greatest) for score in scores]
        total = fsum(weights)
        return {
            "choice": scores.index(greatest),
            "scores": [
                {"logprob": logprob, "tokens": length, "score": score, "probability": weight / total}
                for logprob, length, score, weight in zip(behind_question, self._lengths, scores, weights, strict=True)
            ],
        }


def leading_tokens(tokenizer: IOTokenizer) -> list[int]:
    """The special tokens that the tokenizer puts before a text. Those that it puts behind one would end the question
    before its answer."""
    probe = "a"
    whole, bare = tokenizer.encode(probe), tokenizer.encode(probe, add_special_tokens=False)
    for at in range(len(whole) - len(bare) + 1):
        if whole[at : at + len(bare)] == bare:
            return whole[:at]
    return []


def _text(body: Mapping[str, Any], name: str) -> str:
    text = body.get(name)
    if not _is_text(text) or not text:
        raise RequestError(f"{name} must be a text that is not empty", param=name)
    return text


def _is_text(value: object) -> TypeGuard[str]:
    """Whether a value of JSON is a text that has bytes in UTF-8: half of a surrogate pair has none."""
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)
