"""Runs jobs that pool, and renders their responses: OpenAI's embeddings, ranks as Cohere and Jina return them."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from llmk.api import LlmkError
from llmk.engine.cooperative import Yielder
from llmk.engine.text.pooler import embedding_of, probabilities, scores_of
from llmk.serve.generation.pooling_jobs import PoolingJob
from llmk.serve.http.json_response import encoded
from llmk.serve.service import Service
from llmk.serve.workers.prepared_request import Prompts

_API_VERSION = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
"""What Cohere's clients read of a response's ``meta``."""


async def pooled(service: Service, job: PoolingJob, *, encode: bool = True) -> dict[str, Any]:
    """The response to a job, as plain data. With ``encode``, its entries are encoded already.

    Numbers are converted a row at a time, so that a large response doesn't hold the event loop. Raises what
    :meth:`~llmk.engine.async_llm.AsyncLLM.pool` raises.
    """
    rows, num_tokens, yielder = await _rows(service, job)
    if service.ledger is not None:
        service.ledger.charge(job.context.tenant, num_tokens)
    head = service.head(job.context)
    shared = {"id": head["id"], "model": head["model"]}
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    entries: list[Any] = []
    if job.form in ("scores", "ranks"):
        made = await _scores(rows, job, yielder)
    else:
        made = _entries(service, rows, job)
    for entry in made:
        entries.append(encoded(entry) if encode else entry)
        await yielder.step()
    if job.form == "ranks":
        return {**shared, "results": entries, "usage": usage, "meta": _API_VERSION}
    return {**shared, "object": "list", "created": head["created"], "data": entries, "usage": usage}


async def _rows(service: Service, job: PoolingJob) -> tuple[list[array[float]], int, Yielder]:
    """What the engine returns for each prompt, and the number of their tokens."""
    rows, num_tokens, yielder = [array("f") for _ in job.prompts], 0, Yielder()
    async with aclosing(service.engine.pool(Prompts(job.prompts), job.returns, job.context)) as deltas:
        async for delta in deltas:
            if delta.finish_reason in ("abort", "error"):
                raise LlmkError(f"the request was ended before it finished ({delta.finish_reason})")
            if delta.hidden is not None:
                rows[delta.index].extend(delta.hidden.floats())
            if delta.finish_reason is not None:
                num_tokens += delta.num_prompt_tokens
            await yielder.step()
    return rows, num_tokens, yielder


async def _scores(rows: list[array[float]], job: PoolingJob, yielder: Yielder) -> Iterator[dict[str, Any]]:
    """The entries of scores, or those of ranks."""
    scores = []
    for score in scores_of(rows, job.num_queries, job.activation):
        scores.append(score)
        await yielder.step()
    if job.form == "ranks":
        return _ranked(scores, job)
    return ({"object": "score", "index": at, "score": score} for at, score in enumerate(scores))


def _entries(service: Service, rows: list[array[float]], job: PoolingJob) -> Iterator[dict[str, Any]]:
    """The entries of ``data``, in the order of the inputs."""
    pooling = service.engine.boot.pooling
    labels = pooling.labels if pooling is not None else ()
    for at, row in enumerate(rows):
        if job.form == "classes":
            probs = probabilities(row, job.activation)
            label = labels[probs.index(max(probs))]
            yield {"index": at, "label": label, "probs": probs, "num_classes": len(probs)}
        elif job.form == "embeddings":
            yield {"object": "embedding", "index": at, "embedding": _numbers(_vector(row, job), job)}
        elif job.returns == "labels":
            yield {"object": "pooling", "index": at, "data": probabilities(row, job.activation)}
        else:
            yield {"object": "pooling", "index": at, "data": _pooled_data(service, row, job)}


def _pooled_data(service: Service, row: array[float], job: PoolingJob) -> Any:
    """An embedding, or those of all tokens."""
    if job.returns != "hidden":
        return _numbers(_vector(row, job), job)
    width = service.engine.boot.facts.hidden_size
    tokens = (_vector(row[at : at + width], job) for at in range(0, len(row), width))
    if not job.base64:
        return [vector.tolist() for vector in tokens]
    joined = array("f")
    for vector in tokens:
        joined.extend(vector)
    return _numbers(joined, job)


def _vector(row: array[float], job: PoolingJob) -> array[float]:
    return embedding_of(row, job.dimensions, normalize=job.normalize)


def _numbers(vector: array[float], job: PoolingJob) -> list[float] | str:
    """Numbers as a list, or as the bytes of little-endian floats in base64."""
    if not job.base64:
        return vector.tolist()
    if sys.byteorder == "big":
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()


def _ranked(scores: list[float], job: PoolingJob) -> Iterator[dict[str, Any]]:
    """The best documents, the best first."""
    best = sorted(range(len(scores)), key=lambda at: -scores[at])[: job.top_n]
    for at in best:
        entry: dict[str, Any] = {"index": at, "relevance_score": scores[at]}
        yield {**entry, "document": {"text": job.documents[at]}} if job.documents else entry
