"""Multiple-choice questions, as benchmarks put them: how likely the model finds each choice behind the context.

``{"questions": [{"context": "Bread is made of", "choices": [" flour", " stone"], "answer": 0}], "normalize": "bytes"}``
is answered with the log-likelihood of each choice, its score (by ``normalize``: ``"none"``, or per ``"token"`` or
``"byte"`` of the choice), the number of the best choice and probabilities, which are the softmax of the scores. Where
questions have an ``answer``, ``accuracy`` says how many of these the model got right. ``[plugin.ibis]`` may have a
``normalize`` that holds for requests without one, and ``max_choices``.

Context and choice are tokenized as one text, since a tokenizer may join what is on both sides of the border; the
choice's tokens are those from the first on that differ from the context's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from llmk.api import ConfigError, IOContext, IOOutput, IOPrompt, IOTokenizer, RequestError

LEAST = -1e4
"""What a token counts that the model rules out: JSON has no infinity."""
NORMALIZE = ("none", "token", "byte")


class Choices:
    """Follows ``llmk.api.IOProcessor``: one instance serves all requests."""

    def __init__(self, context: IOContext) -> None:
        options = dict(context.options)
        self._tokenizer = context.tokenizer
        self._normalize = options.pop("normalize", "none")
        self._max_choices = options.pop("max_choices", 64)
        if self._normalize not in NORMALIZE:
            raise ConfigError(f"plugin.ibis.normalize must be one of {', '.join(NORMALIZE)}")
        if isinstance(self._max_choices, bool) or not isinstance(self._max_choices, int) or self._max_choices < 2:
            raise ConfigError("plugin.ibis.max_choices must be a whole number from 2 on")
        if options:
            raise ConfigError(f"plugin.ibis.{min(options)} is unknown; there are normalize and max_choices")

    def open(self, body: Mapping[str, Any]) -> ChoicesRequest:
        """Creates the request for a body."""
        check_names(body, {"questions", "normalize"}, "")
        normalize = body.get("normalize", self._normalize)
        if not isinstance(normalize, str) or normalize not in NORMALIZE:
            raise RequestError(f"normalize must be one of {', '.join(NORMALIZE)}", param="normalize")
        questions = body.get("questions")
        if not isinstance(questions, list) or not questions:
            raise RequestError("questions must be a list of at least one", param="questions")
        for place, question in enumerate(questions):
            self._check(question, f"questions.{place}")
        return ChoicesRequest(self._tokenizer, questions, normalize)

    def _check(self, question: object, path: str) -> None:
        if not isinstance(question, dict):
            raise RequestError(f"{path} must be an object", param=path)
        check_names(question, {"context", "choices", "answer"}, f"{path}.")
        check_text(question.get("context"), f"{path}.context")
        choices = question.get("choices")
        if not isinstance(choices, list) or not 2 <= len(choices) <= self._max_choices:
            raise RequestError(f"{path}.choices must be 2 to {self._max_choices} texts", param=f"{path}.choices")
        for place, choice in enumerate(choices):
            check_text(choice, f"{path}.choices.{place}")
        answer = question.get("answer", 0)
        if answer not in range(len(choices)) or isinstance(answer, bool):
            raise RequestError(f"{path}.answer must be the number of a choice, from 0", param=f"{path}.answer")


def check_names(fields: Mapping[str, Any], known: set[str], path: str) -> None:
    """Refuses fields that there are not."""
    if unknown := sorted(set(fields) - known):
        names = ", ".join(sorted(known))
        raise RequestError(f"unknown field {unknown[0]!r}; there are {names}", param=path + unknown[0])


def check_text(text: object, path: str) -> None:
    """Refuses what is no text, empty, or half of a character."""
    if not isinstance(text, str) or not text:
        raise RequestError(f"{path} must be a text that is not empty", param=path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{path} is not valid Unicode", param=path) from None


def split_tokens(tokenizer: IOTokenizer, context: str, choice: str) -> tuple[list[int], int]:
    """The prompt for a choice, and where its tokens start. What the tokenizer adds before a text is kept; what it adds
    behind one is not part of the choice."""
    text = context + choice
    plain = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.encode(text)
    lead = next(
        (start for start in range(len(whole) - len(plain) + 1) if whole[start : start + len(plain)] == plain), 0
    )
    alone = tokenizer.encode(context, add_special_tokens=False)
    common = 0
    while common < min(len(alone), len(plain)) and alone[common] == plain[common]:
        common += 1
    if common == len(plain) or lead + common == 0:  # a token spans the border, and a side would have none
        plain, common = alone + tokenizer.encode(choice, add_special_tokens=False), len(alone)
    return whole[:lead] + plain, lead + common


class ChoicesRequest:
    """Follows ``llmk.api.IORequest``: the state of one request, which is dropped with it."""

    def __init__(self, tokenizer: IOTokenizer, questions: Sequence[Mapping[str, Any]], normalize: str) -> None:
        self.prompts: list[IOPrompt] = []
        self._questions = questions
        self._normalize = normalize
        self._starts: list[int] = []
        self._sums: list[list[float]] = []
        for number, question in enumerate(questions):
            for place, choice in enumerate(question["choices"]):
                path = f"questions.{number}.choices.{place}"
                tokens, start = split_tokens(tokenizer, question["context"], choice)
                if max(start, 1) >= len(tokens):
                    raise RequestError(f"{path} has no token of its own behind another", param=path)
                self.prompts.append(IOPrompt(prompt=tokens, returns="logprobs", param=path))
                self._starts.append(start)
                self._sums.append([])

    def take(self, output: IOOutput) -> None:
        """Keeps the log-probabilities of the choice's tokens; the first token of a prompt has none."""
        start = self._starts[output.prompt]
        for position, logprob in enumerate(output.logprobs, output.start):
            if position >= start and logprob is not None:
                self._sums[output.prompt].append(max(logprob, LEAST))

    def answer(self) -> dict[str, Any]:
        """The response."""
        sums = iter(self._sums)
        results = [self._result(question, [next(sums) for _ in question["choices"]]) for question in self._questions]
        known = [
            result["best"] == question["answer"]
            for result, question in zip(results, self._questions, strict=True)
            if "answer" in question
        ]
        return {"results": results, "accuracy": sum(known) / len(known) if known else None}

    def _result(self, question: Mapping[str, Any], logprobs: Sequence[Sequence[float]]) -> dict[str, Any]:
        scores = []
        choices = []
        for choice, known in zip(question["choices"], logprobs, strict=True):
            length = {"none": 1, "token": max(1, len(known)), "byte": len(choice.encode())}[self._normalize]
            scores.append(math.fsum(known) / length)
            choices.append({"text": choice, "tokens": len(known), "logprob": math.fsum(known), "score": scores[-1]})
        shares = [math.exp(score - max(scores)) for score in scores]
        for choice, share in zip(choices, shares, strict=True):
            choice["probability"] = share / sum(shares)
        return {"best": scores.index(max(scores)), "choices": choices}
