"""Pooled outputs: the prompts of inputs, and what is made of the rows that the engine returns for them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import mul
from typing import TYPE_CHECKING, Literal

from llmk.api import ContextLengthExceeded, RequestError
from llmk.engine.text.input_processor import WrongHead, check_length, check_text, is_long
from llmk.engine.wire.sampling_params import SamplingParams

if TYPE_CHECKING:
    from llmk.engine.text.tokenizer import Tokenizer
    from llmk.engine.wire.request import Returns
    from llmk.planning.pooling import Activation, Pooling

Head = Literal["tokens", "labels", ""]
PARAMS = SamplingParams(max_tokens=1)
"""Of requests that are not sampled."""
_QUERY, _DOCUMENTS = ("query",), ("document", "passage", "corpus")
"""The names that sentence-transformers' ``encode_query`` and ``encode_document`` look for among the prompts."""
_HEAD = 16
"""Characters for each token of the first part of a text that is to be truncated."""


@dataclass(slots=True)
class EmbeddingOutput:
    """A prompt and its embedding."""

    prompt_token_ids: list[int]
    embedding: list[float]
    num_cached_tokens: int = 0


@dataclass(slots=True)
class ClassificationOutput:
    """A prompt, the most likely label, and the probabilities of all, in their order."""

    prompt_token_ids: list[int]
    label: str
    probs: list[float]
    num_cached_tokens: int = 0


def head_of(pooling: Pooling | None) -> Head:
    """What a model's head computes: :attr:`llmk.engine.wire.engine_info.EngineInfo.head`."""
    if pooling is None or pooling.generates:
        return "tokens"
    return "labels" if pooling.labels else ""


class Pooler:
    """Prompts for a model's pooled outputs, in a context of ``max_model_len`` tokens. ``hidden_size`` is that of its
    hidden states. All methods raise :class:`~llmk.api.RequestError`, with the field."""

    def __init__(self, pooling: Pooling | None, tokenizer: Tokenizer, hidden_size: int, max_model_len: int) -> None:
        if pooling is None:
            hint = "start it with --model.pooling last or mean"
            raise WrongHead("the model's hidden states are not pooled (model.pooling = 'none')", hint=hint)
        self.pooling = pooling
        self._hidden_size = hidden_size
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len

    def returns(self, *, labels: bool) -> Returns:
        """What sequences return for embeddings, or for the scores of ``labels``."""
        if labels != bool(self.pooling.labels):
            does = "classifies; it computes no embeddings" if not labels else "computes no scores of labels"
            hint = "use /v1/embeddings or /v1/score" if labels else "use /v1/classify, /v1/score or /v1/rerank"
            raise WrongHead(f"the model {does}", hint=hint)
        if labels:
            return "labels"
        return "last_hidden" if self.pooling.method == "last" else "mean_hidden"

    def dimensions(self, wanted: int | None) -> int:
        """The length of embeddings of which ``wanted`` numbers are requested."""
        size, allowed = self._hidden_size, self.pooling.dimensions
        if wanted is None:
            return size
        if allowed and wanted != size and wanted not in allowed:
            known = ", ".join(map(str, allowed))
            raise RequestError(
                f"the model was not trained for {wanted} dimensions, but for {known}", param="dimensions"
            )
        if not 1 <= wanted <= size:
            raise RequestError(f"dimensions must be a whole number from 1 to {size}", param="dimensions")
        return wanted

    def prompt(
        self,
        given: str | list[int],
        *,
        named: str | None = None,
        most: int | None = None,
        special: bool = True,
        param: str = "input",
    ) -> list[int]:
        """The tokens of an input, truncated to ``most`` (-1: those of the context). ``named`` is the prompt that goes
        before a text; ``None``: the checkpoint's default. ``special``: whether special tokens go around a text."""
        room = self._room(most)
        if isinstance(given, list):
            if named:
                raise RequestError("a prompt goes before texts, not before token ids", param="prompt_name")
            return self._fitting(given[:room], param)
        text = self._prefix(named) + given
        if room is None:
            check_text(self._tokenizer, text, self._max_model_len)
            return self._fitting(self._tokenizer.encode_prompt(text, special), param)
        around = len(self._tokenizer.surrounded([])) if special else 0
        tokens = self._cut(text, max(0, room - around))
        return self._fitting(self._tokenizer.surrounded(tokens) if special else tokens, param)

    def pair(self, first: str, second: str, most: int | None = None, most_second: int | None = None) -> list[int]:
        """The tokens of two texts for a classifier, as the tokenizer joins them; the second is truncated so that both
        have ``most`` tokens, and itself to ``most_second``."""
        room, ends = self._room(most), []
        for text in (first, second):
            if room is None:
                check_text(self._tokenizer, text, self._max_model_len)
            ends.append(self._tokenizer.encode_prompt(text, False) if room is None else self._cut(text, room))
        left = None if room is None else room - len(self._tokenizer.joined(ends[0], []))
        if left is not None and left < 1:
            what = f"the query leaves no room for a document in {room} tokens"
            raise ContextLengthExceeded(what, param="truncate_prompt_tokens", hint="shorten the query")
        kept = min((each for each in (left, most_second) if each is not None), default=None)
        return self._fitting(self._tokenizer.joined(ends[0], ends[1][:kept]), "documents")

    def scored(
        self,
        queries: Sequence[str],
        documents: Sequence[str],
        most: int | None = None,
        most_document: int | None = None,
    ) -> tuple[list[list[int]], int]:
        """Prompts for the scores of documents: for a classifier, one for each pair and 0; else those of the queries,
        which are one or as many as documents, those of the documents, and the number of queries."""
        if not queries or len(queries) not in (1, len(documents)):
            what = f"there are {len(queries)} queries and {len(documents)} documents; one query, or one for each"
            raise RequestError(what, param="text_1")
        if (count := len(self.pooling.labels)) > 1:
            raise WrongHead(f"the model classifies by {count} labels; a score is that of one", hint="use /v1/classify")
        if count:
            pairs = zip(queries if len(queries) > 1 else repeat(queries[0]), documents, strict=False)
            return [self.pair(query, document, most, most_document) for query, document in pairs], 0
        prompts = []
        for texts, names, limit in ((queries, _QUERY, None), (documents, _DOCUMENTS, most_document)):
            named = next((name for name in names if name in self.pooling.prompts), None)
            prompts += [self.prompt(text, named=named, most=limit or most) for text in texts]
        return prompts, len(queries)

    def _prefix(self, named: str | None) -> str:
        prompts = self.pooling.prompts
        name = self.pooling.default_prompt if named is None else named
        if name and name not in prompts:
            known = ", ".join(prompts) or "none"
            raise RequestError(f"the checkpoint has no prompt {name!r} (there are: {known})", param="prompt_name")
        return prompts[name] if name else ""

    def _room(self, most: int | None) -> int | None:
        """How many tokens of a prompt are kept; ``None``: all, and too many are an error."""
        longest = self._max_model_len - 1
        if most is not None and most > longest:
            what = f"truncate_prompt_tokens is {most}, but a prompt may have {longest} tokens"
            raise RequestError(what, param="truncate_prompt_tokens")
        return longest if most == -1 else most

    def _cut(self, text: str, most: int) -> list[int]:
        """The first ``most`` tokens of a text, of which no more is tokenized than they need."""
        size = _HEAD * (most + _HEAD)
        while True:
            part = text[:size] if is_long(len(text), most) else text
            tokens = self._tokenizer.encode_prompt(part, False)
            if len(part) == len(text) or len(tokens) > most + _HEAD:
                return tokens[:most]
            size *= 2

    def _fitting(self, tokens: list[int], param: str) -> list[int]:
        if not tokens:
            raise RequestError("the input has no tokens", param=param)
        check_length(len(tokens), self._max_model_len)
        return tokens


def embedding_of(row: array[float], dimensions: int, *, normalize: bool) -> array[float]:
    """The embedding in a row: its first ``dimensions`` numbers, with the norm 1 if ``normalize``."""
    kept = row[:dimensions]
    norm = math.hypot(*kept) if normalize else 1.0
    return array("f", [value / norm for value in kept]) if norm not in (0.0, 1.0) else kept


def probabilities(logits: array[float], activation: Activation) -> list[float]:
    """What a classifier's ``activation`` makes of logits."""
    if activation == "identity":
        return list(logits)
    if activation == "sigmoid":
        return [_sigmoid(logit) for logit in logits]
    top = max(logits)
    powers = [math.exp(logit - top) for logit in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]


def scores_of(rows: Sequence[array[float]], num_queries: int, activation: Activation) -> Iterator[float]:
    """The scores of :meth:`Pooler.scored`'s prompts, by their rows: of the label, or the cosine of two embeddings."""
    if not num_queries:
        yield from (probabilities(row, activation)[0] for row in rows)
        return
    queries, documents = rows[:num_queries], rows[num_queries:]
    for at, document in enumerate(documents):
        query = queries[at if num_queries > 1 else 0]
        norm = math.hypot(*query) * math.hypot(*document)
        yield math.fsum(map(mul, query, document)) / norm if norm else 0.0


def _sigmoid(logit: float) -> float:
    if logit >= 0:
        return 1.0 / (1.0 + math.exp(-logit))
    power = math.exp(logit)
    return power / (1.0 + power)
