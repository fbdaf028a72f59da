"""Converts requests that pool to jobs: token ids of prompts, and how to render what comes back."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace

from llmk.api import RequestError
from llmk.engine.text.input_processor import check_head, check_ids, check_length
from llmk.engine.text.pooler import Pooler
from llmk.engine.wire.request import RequestContext, Returns
from llmk.serve.protocol.pooling import (
    ClassifyRequest,
    EmbeddingRequest,
    InputFields,
    PooledFields,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)

if TYPE_CHECKING:
    from llmk.config.limits_section import LimitsSection
    from llmk.engine.text.tokenizer import Tokenizer
    from llmk.engine.wire.engine_info import EngineInfo
    from llmk.planning.boot import Boot
    from llmk.planning.pooling import Pooling

Form = Literal["embeddings", "pooling", "scores", "ranks", "classes"]
_LISTS = ("input", "documents", "queries", "text_1", "text_2")
_GENERATING = "completion"


class PoolingJob(msgspec.Struct, array_like=True, tag=True):
    """A request that pools: its prompts, packed, what their sequences return, and how the response is rendered.

    ``dimensions``, ``normalize`` and ``base64`` are of embeddings, ``activation`` of labels. ``num_queries`` of the
    prompts are queries (:meth:`~llmk.engine.text.pooler.Pooler.scored`), ``documents`` the texts that ranks return, the
    ``top_n`` best. ``options`` are those of a plugin's route, ``ignored`` unknown fields of the request.
    """

    context: RequestContext
    prompts: list[bytes]
    returns: Returns
    form: Form
    dimensions: int = 0
    normalize: bool = True
    base64: bool = False
    activation: Literal["identity", "sigmoid", "softmax"] = "identity"
    num_queries: int = 0
    top_n: int = 0
    documents: list[str] = []
    options: dict[str, Any] = {}
    ignored: list[str] = []


def capabilities_of(pooling: Pooling | None) -> list[str]:
    """What a model is for."""
    if pooling is None:
        return [_GENERATING]
    if pooling.labels:
        return ["classification", *(["rerank"] if len(pooling.labels) == 1 else [])]
    return [*([_GENERATING] if pooling.generates else []), "embedding"]


def check_inputs(body: Any, limits: LimitsSection, max_model_len: int) -> None:
    """The first and cheapest check of a body: how many inputs there are. Raises :class:`~llmk.api.RequestError`."""
    for name in _LISTS if isinstance(body, dict) else ():
        found = body.get(name)
        if not isinstance(found, list) or all(isinstance(item, int) for item in found[:1]):
            continue
        if len(found) > limits.prompts:
            what = f"'{name}' has {len(found)} entries; the limit is {limits.prompts} (limits.prompts)"
            raise RequestError(what, param=name, hint="send fewer in one request")
        if body.get("truncate_prompt_tokens") is None:
            check_length(max((len(item) for item in found if isinstance(item, list)), default=0), max_model_len)


@dataclass(frozen=True, slots=True)
class PoolingJobs:
    """Makes jobs for one model. All methods raise :class:`~llmk.api.RequestError`, with the field."""

    boot: Boot
    tokenizer: Tokenizer
    limits: LimitsSection
    info: EngineInfo

    def embed(self, request: EmbeddingRequest, context: RequestContext) -> PoolingJob:
        """The job of an embedding request."""
        return self._vectors(request, context, "embeddings", per_token=False)

    def pool(self, request: PoolingRequest, context: RequestContext) -> PoolingJob:
        """The job of a ``/pooling`` request."""
        task = request.task or ("classify" if self._pooler.pooling.labels else "embed")
        if task == "classify":
            return self._classes(request, context, "pooling", activated=request.use_activation)
        return self._vectors(request, context, "pooling", per_token=task == "token_embed")

    def classify(self, request: ClassifyRequest, context: RequestContext) -> PoolingJob:
        """The job of a classification."""
        return self._classes(request, context, "classes", activated=request.use_activation)

    def score(self, request: ScoreRequest, context: RequestContext) -> PoolingJob:
        """The job of a score request."""
        return self._scores(request, context, "scores", *request.pairs)

    def rerank(self, request: RerankRequest, context: RequestContext) -> PoolingJob:
        """The job of a rerank request."""
        texts = request.texts
        job = self._scores(request, context, "ranks", [request.query], texts, request.max_tokens_per_doc)
        returned = [] if request.return_documents is False else texts
        return replace(job, top_n=request.top_n or len(texts), documents=returned)

    def rerank_v2(self, request: RerankRequest, context: RequestContext) -> PoolingJob:
        """The job of a rerank request of version 2, by default without documents in its results."""
        job = self.rerank(request, context)
        return job if request.return_documents else replace(job, documents=[])

    @property
    def _pooler(self) -> Pooler:
        return Pooler(self.boot.pooling, self.tokenizer, self.boot.facts.hidden_size, self.info.max_model_len)

    def _vectors(
        self, request: EmbeddingRequest, context: RequestContext, form: Form, *, per_token: bool
    ) -> PoolingJob:
        pooler = self._pooler
        size, returns = pooler.dimensions(request.dimensions), pooler.returns(labels=False)
        prompts = self._inputs(pooler, request)
        normalize = pooler.pooling.normalize if request.normalize is None else request.normalize
        how: dict[str, Any] = {
            "dimensions": size,
            "normalize": normalize,
            "base64": request.encoding_format == "base64",
        }
        count = sum(map(len, prompts)) if per_token else len(prompts)
        return self._job(request, context, prompts, "hidden" if per_token else returns, form, size * count, **how)

    def _classes(
        self, request: ClassifyRequest | PoolingRequest, context: RequestContext, form: Form, *, activated: bool
    ) -> PoolingJob:
        pooler = self._pooler
        returns, prompts = pooler.returns(labels=True), self._inputs(pooler, request)
        activation = pooler.pooling.activation if activated else "identity"
        numbers = len(pooler.pooling.labels) * len(prompts)
        return self._job(request, context, prompts, returns, form, numbers, activation=activation)

    def _scores(
        self,
        request: PooledFields,
        context: RequestContext,
        form: Form,
        queries: Sequence[str],
        documents: Sequence[str],
        most_document: int | None = None,
    ) -> PoolingJob:
        pooler = self._pooler
        prompts, count = pooler.scored(queries, documents, request.truncate_prompt_tokens, most_document)
        if len(prompts) > self.limits.prompts + 1:
            what = f"the request comes to {len(prompts)} prompts; the limit is {self.limits.prompts} (limits.prompts)"
            raise RequestError(what, hint="send fewer in one request")
        how: dict[str, Any] = {"num_queries": count, "activation": pooler.pooling.activation}
        returns = pooler.returns(labels=not count)
        return self._job(request, context, prompts, returns, form, len(documents), **how)

    def _inputs(self, pooler: Pooler, request: InputFields) -> list[list[int]]:
        most, special, named = request.truncate_prompt_tokens, request.add_special_tokens, request.prompt_name
        return [pooler.prompt(given, named=named, most=most, special=special) for given in request.inputs]

    def _job(
        self,
        request: PooledFields,
        context: RequestContext,
        prompts: Iterable[list[int]],
        returns: Returns,
        form: Form,
        numbers: int,
        **how: Any,
    ) -> PoolingJob:
        """The job, once it was checked against the engine. ``numbers`` is how many its response has."""
        if numbers > self.limits.pooled_values:
            most = self.limits.pooled_values
            what = f"the response would have {numbers} numbers; the limit is {most} (limits.pooled_values)"
            raise RequestError(what, param="input", hint="send fewer inputs in one request")
        check_head(self.info, returns)
        packed = []
        for prompt in prompts:
            check_ids("input", prompt, self.info.vocab_size)
            packed.append(array("i", prompt).tobytes())
        own = replace(context, priority=request.priority, cache_salt=request.cache_salt)
        return PoolingJob(own, packed, returns, form, **how)


POOLING: Mapping[str, tuple[type[PooledFields], Callable[..., PoolingJob]]] = {
    "embed": (EmbeddingRequest, PoolingJobs.embed),
    "pool": (PoolingRequest, PoolingJobs.pool),
    "classify": (ClassifyRequest, PoolingJobs.classify),
    "score": (ScoreRequest, PoolingJobs.score),
    "rerank": (RerankRequest, PoolingJobs.rerank),
    "rerank_v2": (RerankRequest, PoolingJobs.rerank_v2),
}
"""Bodies and jobs, by kind of request."""
