"""The worker that prepares requests: converts an unparsed body to the engine's input, or to an error."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from pydantic import ValidationError

from llmk.api import CachedPrefix, RequestError, TranslatedRequest
from llmk.config import logs
from llmk.engine.text.input_processor import check_head
from llmk.engine.text.tokenizer import Tokenizer
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.plugin_mark import PluginMark
from llmk.engine.wire.request import RequestContext
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.serve.generation.api_routes import PluginRoute, translated
from llmk.serve.generation.choice_deltas import Job
from llmk.serve.generation.jobs import Jobs
from llmk.serve.generation.pooling_jobs import POOLING, PoolingJob, PoolingJobs, check_inputs
from llmk.serve.http import errors
from llmk.serve.protocol.base import Body
from llmk.serve.protocol.batches import BatchLine, BatchRequest
from llmk.serve.protocol.chat import ChatRequest, shown
from llmk.serve.protocol.completions import CompletionRequest
from llmk.serve.protocol.pins import PinRequest
from llmk.serve.protocol.sampling import SamplingFields
from llmk.serve.protocol.tokens import DetokenizeRequest, TokenizeRequest
from llmk.serve.responses.route import CORE_ROUTES
from llmk.serve.workers import served_model
from llmk.serve.workers.body_counts import check_bad_words, check_counts, check_embeddings
from llmk.serve.workers.frames import encode, framed, receive
from llmk.serve.workers.prepared_request import (
    BATCH,
    INVOCATION,
    ROUTE,
    Admitted,
    Generation,
    Pinning,
    Prepared,
    PreparedReply,
    Refused,
    Rendered,
    Work,
    packed,
    packed_embeddings,
)
from llmk.serve.workers.served_model import ServedModel

MAKER, ENTRY = f"{__name__}:make", f"{__name__}:run"
GROWTH = 16 << 20
"""A worker that took so many bytes more than at its start ends, so that they are given back."""
_MOST_NAMES, _LONGEST_NAME = 20, 64
"""Limits of the names that a response's header has, and of the characters of each."""
_MOST_TEXT = 2000
"""Characters of an error's message: it may quote what was sent."""
_FIRST = (
    ("chat", b'{"messages": [{"role": "user", "content": "Hi"}]}'),
    ("text", b'{"prompt": "Hi", "stop": "."}'),
)
"""Small requests."""
_decode_json = msgspec.json.Decoder().decode
_decode_work = msgspec.msgpack.Decoder(Work).decode


def make(given: bytes) -> ServedModel:
    """:func:`llmk.serve.workers.served_model.make`, and :func:`warm_up`."""
    return warm_up(served_model.make(given))


def warm_up(served: ServedModel) -> ServedModel:
    """Prepares requests: what the first ones cache (compiled templates, validators, imports) is there for all workers
    that are forked then. Returns the model. Embeddings are not among them: numpy, which checks them, starts threads.
    Nor are grammars: few servers get any, and a worker loads their library in some tens of milliseconds."""
    facts = served.boot.facts
    info = EngineInfo(
        max_model_len=facts.max_model_len,
        vocab_size=facts.vocab_size,
        block_size=1,
        num_blocks=0,
        plan={},
        grammars=served.grammars.kinds,
    )
    preparing = RequestPreparer(served)
    for kind, body in _FIRST:
        preparing.prepare(Work(kind, RequestContext("first"), info), body)
    return served


def run(served: ServedModel, connection: socket.socket, mark: PluginMark) -> None:
    """Runs the worker until the front end has ended. Prepares one request at a time."""
    preparing = RequestPreparer(served)
    before = _peak_memory()
    while True:
        prepared = preparing.prepare(_decode_work(receive(connection)), receive(connection))
        last = _peak_memory() - before > GROWTH
        connection.sendall(framed(encode(PreparedReply(prepared, last))))
        if last:
            return


class RequestPreparer:
    """Prepares requests for the served model."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        self._builder: _RequestBuilder | None = None

    def _builder_for(self, work: Work) -> _RequestBuilder:
        self._builder = self._builder or _RequestBuilder(self._served, work.info)
        return self._builder.of(work.info)

    def prepare(self, work: Work, raw: bytes) -> Prepared:
        """Prepares a request. Returns any error of the request as a response that says so."""
        logs.request_id.set(work.context.log_id)
        try:
            kind, body = work.kind, self._body(raw, work.info.max_model_len)
            if kind.startswith(BATCH):
                kind, body = kind.removeprefix(BATCH), BatchLine.model_validate(body).body
                check_counts(body, self._served.limits, work.info.max_model_len)
            if not kind.startswith(ROUTE):
                return self._made(kind, work, body)
            name = kind.removeprefix(ROUTE)
            route = CORE_ROUTES.get(name) or self._served.routes[name]
            wanted = translated(route, body, work.headers)
            body = self._body_of(wanted, work)
            options: dict[str, Any] = {"fit": True} if wanted.fit_max_tokens else {}
            options |= {"prefixes": wanted.prefixes} if wanted.prefixes else {}
            made = self._made(wanted.kind, work, body, **options) if wanted.kind != "info" else None
            return self._converted(route, wanted, made)
        except ValidationError as error:
            param, message, code = errors.explain(error.errors(include_url=False, include_input=False), body)
            return Refused(400, _object(message, 400, param, code), {})
        except RecursionError:
            # Parsers and templates have depth limits, but code between them may still exceed the recursion limit.
            return Refused(400, _object("a value is nested too deeply", 400, None, "invalid_value"), {})
        except Exception as error:
            status, body, headers = errors.describe(error)
            errors.log(error, status)
            details = body["error"]
            return Refused(status, _object(details["message"], status, details["param"], details["code"]), headers)

    def _body_of(self, wanted: TranslatedRequest, work: Work) -> dict[str, Any]:
        """The body for llmk's own route."""
        body = dict(wanted.body)
        errors.check_model(body.get("model"), self._served.model_name, self._served.adapters)
        check_counts(body, self._served.limits, work.info.max_model_len)
        if wanted.thinking is not None:
            switches = self._builder_for(work).wish(wanted.thinking)
            body["chat_template_kwargs"] = {**switches, **body.get("chat_template_kwargs", {})}
        return body

    def _made(self, kind: str, work: Work, body: Any, **options: Any) -> Admitted:
        if kind == INVOCATION:
            kind = "chat" if isinstance(body, dict) and "messages" in body else "text"
        schema, make = _KINDS[kind]
        if kind in POOLING:
            check_inputs(body, self._served.limits, work.info.max_model_len)
        elif kind not in _WITHOUT_ENGINE:
            check_head(work.info, "tokens")
        ignored: list[str] | None = [] if work.ignores else None
        request = schema.model_validate(body, context=ignored)
        model, adapters = getattr(request, "model", None), self._served.adapters
        errors.check_model(model, self._served.model_name, adapters)
        context = replace(work.context, adapter=model) if model in adapters else work.context
        made = make(self._builder_for(work), request, context, **options)
        made.ignored = _quoted(ignored or ())
        return made

    def _converted(self, route: PluginRoute, wanted: TranslatedRequest, made: Admitted | None) -> Prepared:
        """What was prepared for a plugin's route: with its options, or as its result."""
        if isinstance(made, Generation):
            made.stream, made.options = wanted.stream, dict(wanted.options)
            return made
        if isinstance(made, PoolingJob):
            made.options = dict(wanted.options)
            return made
        result = msgspec.json.decode(made.body) if isinstance(made, Rendered) else {}
        return Rendered(msgspec.json.encode(route.api.result(result, wanted.options, self._served.describe())))

    def _body(self, raw: bytes, max_model_len: int) -> Any:
        try:
            body = _decode_json(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidJson(f"the body is not valid JSON: {error}") from None
        if isinstance(body, dict):
            check_counts(body, self._served.limits, max_model_len)
        return body


class InvalidJson(RequestError):
    """The body is not JSON."""

    code = "invalid_json"


@dataclass(slots=True)
class _Model:
    """The model, for :class:`~llmk.serve.generation.jobs.Jobs`."""

    tokenizer: Tokenizer
    default_params: SamplingParams
    info: EngineInfo


class _RequestBuilder:
    """Converts valid bodies to requests for one model. ``info`` is about its engine."""

    def __init__(self, served: ServedModel, info: EngineInfo) -> None:
        self._boot = served.boot
        self._limits = served.limits
        self._model = _Model(served.tokenizer, served.default_params, info)
        self._jobs = Jobs(self._model, served.dialect, served.grammars, weakens=served.weakens)

    def of(self, info: EngineInfo) -> _RequestBuilder:
        """The builder, with the information about the engine updated."""
        self._model.info = info
        return self

    def wish(self, thinking: bool | str) -> dict[str, Any]:
        return self._jobs.template.wish(thinking)

    def chat(
        self,
        request: ChatRequest,
        context: RequestContext,
        *,
        fit: bool = False,
        prefixes: Sequence[CachedPrefix] = (),
    ) -> Generation:
        self._check_processors(request)
        job = self._jobs.chat(request, context, fit=fit, prefixes=prefixes)
        made = self._generation(job, request, logprobs=request.logprobs)
        made.chat = True
        return made

    def text(self, request: CompletionRequest, context: RequestContext, *, fit: bool = False) -> Generation:
        self._check_processors(request)
        check_embeddings(request.embeddings, request.n, self._limits)
        job = self._jobs.text(request, context, fit=fit)
        made = self._generation(job, request, logprobs=request.logprobs is not None)
        made.echo = self._jobs.echo(request) if request.echo else []
        return made

    def tokenize(self, request: TokenizeRequest, context: RequestContext) -> Rendered:
        tokens = self._tokens(request, self._limits.tokens)
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": self._model.info.max_model_len,
            "tokens": tokens,
        }
        if request.return_token_strs:
            text = cache(self._model.tokenizer.token_text)
            answer["token_strs"] = [text(token) for token in tokens]
        return Rendered(msgspec.json.encode(answer))

    def detokenize(self, request: DetokenizeRequest, context: RequestContext) -> Rendered:
        if beyond := next((token for token in request.tokens if token >= self._model.info.vocab_size), None):
            raise RequestError(f"token {beyond} is outside the vocabulary", param="tokens")
        text = self._model.tokenizer.decode(request.tokens, skip_special_tokens=False)
        return Rendered(msgspec.json.encode({"prompt": text}))

    def pin(self, request: PinRequest, context: RequestContext) -> Pinning:
        tokens = packed(self._tokens(request, None))
        own = replace(context, id=request.id, tenant=request.tenant, cache_salt=request.cache_salt)
        return Pinning(own, tokens, request.seconds)

    def batch(self, request: BatchRequest, context: RequestContext) -> Rendered:
        return Rendered(request.model_dump_json().encode())

    def batch_line(self, request: BatchLine, context: RequestContext) -> Rendered:
        return Rendered(msgspec.json.encode({"custom_id": request.custom_id, "url": request.url}))

    @property
    def pooling(self) -> PoolingJobs:
        return PoolingJobs(self._boot, self._model.tokenizer, self._limits, self._model.info)

    def _tokens(self, request: TokenizeRequest, most: int | None) -> list[int]:
        """The tokens of a request's prompt or conversation."""
        jobs = self._jobs
        if request.prompt is not None:
            return jobs.encode(request.prompt, add_special_tokens=request.add_special_tokens is not False, most=most)
        options = jobs.template.options(request.chat_template_kwargs, None)
        generation = request.add_generation_prompt
        prompt = jobs.render(request.messages or [], shown(request.tools), options, add_generation_prompt=generation)
        if most is not None and len(prompt.token_ids) > most:
            what = f"the conversation has {len(prompt.token_ids)} tokens; the limit is {most} (limits.tokens)"
            raise RequestError(what, param="messages")
        return self._model.tokenizer.surrounded(prompt.token_ids) if request.add_special_tokens else prompt.token_ids

    def _generation(self, job: Job, request: SamplingFields, *, logprobs: bool) -> Generation:
        check_bad_words(job.params, self._limits)
        return _generation(job, request, logprobs=logprobs)

    def _check_processors(self, request: SamplingFields) -> None:
        """Limits the size of logits processors' parameters, which are passed to the engine unchecked."""
        most = self._limits.logits_processors_bytes
        if request.logits_processors and (size := len(msgspec.json.encode(request.logits_processors))) > most:
            what = f"'logits_processors' has {size} bytes; the limit is {most} (limits.logits_processors_bytes)"
            raise RequestError(what, param="logits_processors")


def _pooling(make: Callable[..., PoolingJob]) -> Callable[..., Admitted]:
    return lambda builder, request, context: make(builder.pooling, request, context)


_WITHOUT_ENGINE = ("tokenize", "detokenize")
_KINDS: Mapping[str, tuple[type[Body], Callable[..., Admitted]]] = {
    "chat": (ChatRequest, _RequestBuilder.chat),
    "text": (CompletionRequest, _RequestBuilder.text),
    "tokenize": (TokenizeRequest, _RequestBuilder.tokenize),
    "detokenize": (DetokenizeRequest, _RequestBuilder.detokenize),
    "pin": (PinRequest, _RequestBuilder.pin),
    "batch": (BatchRequest, _RequestBuilder.batch),
    "batch_line": (BatchLine, _RequestBuilder.batch_line),
    **{kind: (schema, _pooling(make)) for kind, (schema, make) in POOLING.items()},
}


def _generation(job: Job, request: SamplingFields, *, logprobs: bool) -> Generation:
    return Generation(
        context=job.context,
        prompts=[packed(prompt) for prompt in job.prompts],
        embeddings=packed_embeddings(job.prompts),
        params=job.params,
        reading=job.reading,
        stream=request.stream,
        include_usage=request.include_usage,
        continuous_usage=request.continuous_usage,
        logprobs=logprobs,
        stop=list(job.stop),
        unenforced=_quoted(job.unenforced),
    )


def _quoted(names: Sequence[str]) -> list[str]:
    """Names that clients sent, for a header."""
    return [quote(name[:_LONGEST_NAME]) for name in list(dict.fromkeys(names))[:_MOST_NAMES]]


def _object(message: str, status: int, param: str | None, code: str | None) -> dict[str, Any]:
    """An error object that can always be encoded, even if it quotes invalid Unicode."""
    return errors.error_object(_plain(message), status, param=None if param is None else _plain(param), code=code)


def _plain(text: str) -> str:
    if len(text) > _MOST_TEXT:
        text = f"{text[: _MOST_TEXT // 2]}…{text[-_MOST_TEXT // 2 :]}"
    return text.encode("utf-8", "replace").decode()


def _peak_memory() -> int:
    """The peak memory of this process, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10
