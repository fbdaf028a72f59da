"""Schemas of the responses of routes that pool."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from llmk.serve.protocol.answers import Answer


class PooledUsage(Answer):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class PooledAnswer(Answer):
    """Fields of all lists."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: PooledUsage


class EmbeddingEntry(Answer):
    """An embedding: numbers, or base64 of 32-bit floating-point numbers."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsAnswer(PooledAnswer):
    """Embeddings, in the order of the inputs."""

    data: list[EmbeddingEntry]


class PoolingEntry(Answer):
    """Numbers of an input, or of each of its tokens."""

    object: Literal["pooling"]
    index: int
    data: list[float] | list[list[float]] | str


class PoolingAnswer(PooledAnswer):
    """What was pooled, in the order of the inputs."""

    data: list[PoolingEntry]


class ScoreEntry(Answer):
    """The score of a text."""

    object: Literal["score"]
    index: int
    score: float


class ScoresAnswer(PooledAnswer):
    """Scores, in the order of the texts."""

    data: list[ScoreEntry]


class ClassEntry(Answer):
    """The most likely label, and the probabilities of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassesAnswer(PooledAnswer):
    """Labels, in the order of the inputs."""

    data: list[ClassEntry]


class RankedDocument(Answer):
    """A document's text."""

    text: str


class RankEntry(Answer):
    """A document's number in the request, and its score."""

    index: int
    relevance_score: float
    document: RankedDocument | None = Field(default=None, json_schema_extra={"description": "Where it is returned."})


class RankMeta(Answer):
    """What Cohere's clients read."""

    api_version: dict[str, str]
    billed_units: dict[str, int]


class RanksAnswer(Answer):
    """The best documents, the best first."""

    id: str
    model: str
    results: list[RankEntry]
    usage: PooledUsage
    meta: RankMeta
