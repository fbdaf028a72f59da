"""An IO processor that compares texts: which of several continuations the model finds likeliest after a context.

``POST /v1/io/compare`` takes ::

    {"context": "The capital of France is", "candidates": [" Paris", " Lyon"], "normalize": "mean", "prior": "Answer:"}

and answers with a score and a probability for each candidate. A score is the log-probability of the candidate's
tokens, whole (``"sum"``), by token (``"mean"``) or by byte of its UTF-8 (``"bytes"``, which compares texts that are
cut into tokens unlike each other). With a ``prior``, what the candidate scores behind that text is subtracted, so that
texts which are common anywhere gain nothing by it (PMI). Nothing is generated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

from llmk.api import ConfigError, IOContext, IOOutput, IOProcessor, IOPrompt, IORequest, IOTokenizer, RequestError

NORMALIZE = ("mean", "sum", "bytes")

LEAST = -1e4
"""What impossible tokens count: JSON has no infinity."""


class Options(BaseModel, extra="forbid"):
    """``[plugin.pier]``."""

    max_candidates: int = Field(64, ge=2, description="Candidates of one request.")


class CompareProcessor(IOProcessor):
    """Opens requests; it keeps nothing of them."""

    def __init__(self, context: IOContext) -> None:
        self._tokenizer = context.tokenizer
        self._model = context.model_name
        try:
            self._most = Options.model_validate(dict(context.options)).max_candidates
        except ValueError as error:
            raise ConfigError(f"[plugin.pier] is not valid: {error}", hint="max_candidates is an integer") from error

    def open(self, body: Mapping[str, Any]) -> IORequest:
        """Checks a body field by field, and cuts it into prompts."""
        for name in body:
            if name not in ("context", "candidates", "normalize", "prior", "model"):
                raise RequestError(f"unknown field {name[:64]!r}", param=name[:64])
        context = _text(body, "context")
        candidates = self._checked_candidates(body.get("candidates"))
        normalize = NORMALIZE[0] if body.get("normalize") is None else body["normalize"]
        if not isinstance(normalize, str) or normalize not in NORMALIZE:
            raise RequestError(f"normalize must be one of {', '.join(NORMALIZE)}", param="normalize")
        if body.get("model") not in (None, self._model):
            raise RequestError(f"the model here is {self._model}", param="model")
        prior = None if body.get("prior") is None else _text(body, "prior")
        return _Comparison(self._model, candidates, normalize, self._prompts(context, candidates, prior))

    def _checked_candidates(self, candidates: Any) -> list[str]:
        if not isinstance(candidates, list) or not 2 <= len(candidates) <= self._most:
            raise RequestError(f"candidates must be a list of 2 to {self._most} texts", param="candidates")
        for at, candidate in enumerate(candidates):
            if not isinstance(candidate, str) or not candidate or not _encodable(candidate):
                raise RequestError("a candidate must be a text that isn't empty", param=f"candidates.{at}")
        return candidates

    def _prompts(self, context: str, candidates: Sequence[str], prior: str | None) -> list[tuple[int, int, IOPrompt]]:
        """Each with the number of its candidate and that of the tokens before the candidate's."""
        heads = [_opening(self._tokenizer, context, "context")]
        if prior is not None:
            heads.append(_opening(self._tokenizer, prior, "prior"))
        tails = [self._tokenizer.encode(candidate, add_special_tokens=False) for candidate in candidates]
        prompts = []
        for head in heads:
            for at, tail in enumerate(tails):
                param = f"candidates.{at}"
                if not tail:
                    raise RequestError("a candidate has no tokens", param=param)
                prompts.append((at, len(head), IOPrompt(prompt=head + tail, returns="logprobs", param="candidates")))
        return prompts


class _Comparison(IORequest):
    """One request: sums of log-probabilities, to which each output adds."""

    def __init__(
        self, model: str, candidates: list[str], normalize: str, prompts: list[tuple[int, int, IOPrompt]]
    ) -> None:
        self.prompts = [prompt for _, _, prompt in prompts]
        self._model, self._candidates, self._normalize = model, candidates, normalize
        self._starts = [start for _, start, _ in prompts]
        self._lengths = [len(prompt.prompt) for prompt in self.prompts]
        self._sums = [0.0] * len(prompts)

    def take(self, output: IOOutput) -> None:
        """Adds what is known of the candidate's tokens; those of the context don't count."""
        skipped = max(0, self._starts[output.prompt] - output.start)
        for value in output.logprobs[skipped:]:
            if value is not None:
                self._sums[output.prompt] += max(LEAST, value)

    def answer(self) -> dict[str, Any]:
        """Scores by candidate, the best one, and what was computed."""
        count = len(self._candidates)
        scores = [self._scaled(at, at) for at in range(count)]
        if len(self._sums) > count:
            scores = [score - self._scaled(at, count + at) for at, score in enumerate(scores)]
        best = max(range(count), key=scores.__getitem__)
        shares = [math.exp(score - scores[best]) for score in scores]
        whole = sum(shares)
        return {
            "object": "comparison",
            "model": self._model,
            "best": best,
            "candidates": [
                {
                    "index": at,
                    "text": text,
                    "score": scores[at],
                    "probability": shares[at] / whole,
                    "tokens": self._lengths[at] - self._starts[at],
                }
                for at, text in enumerate(self._candidates)
            ],
            "usage": {"prompt_tokens": sum(self._lengths), "total_tokens": sum(self._lengths)},
        }

    def _scaled(self, candidate: int, prompt: int) -> float:
        if self._normalize == "sum":
            return self._sums[prompt]
        if self._normalize == "bytes":
            return self._sums[prompt] / len(self._candidates[candidate].encode())
        return self._sums[prompt] / (self._lengths[prompt] - self._starts[prompt])


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value or not _encodable(value):
        raise RequestError(f"{name} must be a text that isn't empty", param=name)
    return value


def _encodable(text: str) -> bool:
    """Whether it is Unicode: JSON may have halves of surrogate pairs, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _opening(tokenizer: IOTokenizer, text: str, param: str) -> list[int]:
    """The tokens of a text that goes on: without the special tokens that the tokenizer puts behind a whole one."""
    plain = tokenizer.encode(text, add_special_tokens=False)
    if not plain:
        raise RequestError(f"{param} has no tokens", param=param)
    tokens = tokenizer.encode(text)
    while len(tokens) > len(plain) and tokens[-len(plain) :] != plain and tokens[-1] in tokenizer.special_token_ids:
        tokens = tokens[:-1]
    return tokens
