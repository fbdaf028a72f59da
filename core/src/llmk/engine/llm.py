"""The synchronous front end: a batch of prompts in, their completions out, with the engine in this thread."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import msgspec
from tqdm import tqdm

from llmk.api import LlmkError, RequestError
from llmk.engine.text.chat_template import Message
from llmk.engine.text.input_processor import InputProcessor, default_params
from llmk.engine.text.io_processors import IOProcessors, IORun
from llmk.engine.text.output_processor import CompletionOutput, GenerationDelta, RequestOutput, SequenceOutput
from llmk.engine.text.pooler import (
    PARAMS,
    ClassificationOutput,
    EmbeddingOutput,
    Pooler,
    embedding_of,
    probabilities,
    scores_of,
)
from llmk.engine.text.prompt_embeddings import Prompt, from_arrays, is_array
from llmk.engine.text.tokenizer import Tokenizer, tokenizer_options
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.request import EngineRequest, EngineStats, RequestContext
from llmk.engine.wire.sampling_params import SamplingParams

if TYPE_CHECKING:
    from llmk.engine.core import EngineCore
    from llmk.engine.wire.request import Returns


class LLM:
    """A model for batches of prompts.

    ``model`` is a checkpoint folder; empty, the demo model. Settings are named by section (``cache={"num_blocks":
    64}``), by dotted path (``**{"cache.num_blocks": 64}``), or by their own name where that is clear
    (``max_num_seqs=8``; those of the section ``model`` go first: ``dtype="float32"``). ``llmk.toml`` and the
    environment count as they do for the server.

    Raises :class:`~llmk.api.LlmkError` where the model can't be served.
    """

    def __init__(self, model: str = "", **settings: Any) -> None:
        from llmk.config import load
        from llmk.engine.launch import build_core
        from llmk.planning.boot import boot
        from llmk.planning.shadows import shadowed

        flags = dict(dotted(settings))
        if model:
            flags["model.path"] = model
        self.boot = shadowed(boot(load(flags)))
        config = self.boot.settings.config
        self.tokenizer = Tokenizer.load(self.boot.checkpoint, **tokenizer_options(config.model))
        core, self.info = build_core(self.boot)
        self.default_params = default_params(self.boot.checkpoint.generation_config)
        self._core: EngineCore | None = core
        self._ids = itertools.count()
        adapters = [adapter.name for adapter in self.boot.adapters]
        self._input_processor = InputProcessor(self.tokenizer, self.info, seed=config.engine.seed, adapters=adapters)
        name = config.model.served_name or self.boot.checkpoint.name
        self._io = IOProcessors(self.boot, self.tokenizer, name, self.default_params)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        adapter: str | Sequence[str] = "",
    ) -> list[RequestOutput]:
        """Completes prompts, all at once; returns one output per prompt, in their order.

        A prompt is a text, token ids, embeddings in their place (a torch tensor or NumPy array ``[length, hidden]`` of
        float32, float16 or bfloat16, which are not scaled), or a tuple of token ids and embeddings that follow on each
        other.

        ``sampling_params`` are for all prompts or one per prompt; ``None``: the checkpoint's own. So is ``adapter``,
        the name of a configured adapter; empty: none. Raises :class:`~llmk.api.RequestError` for a prompt, parameter or
        adapter that can't be served.
        """
        batch = _as_batch(prompts)
        params = self._params_for(len(batch), sampling_params)
        adapters = [adapter] * len(batch) if isinstance(adapter, str) else adapter
        if len(adapters) != len(batch):
            raise RequestError(f"there are {len(batch)} prompts and {len(adapters)} adapters")
        jobs = [
            _Job(self._input_processor, RequestContext(str(next(self._ids)), adapter=name), prompt, own)
            for prompt, own, name in zip(batch, params, adapters, strict=True)
        ]
        self._run(jobs, use_tqdm)
        return [job.output for job in jobs]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        adapter: str | Sequence[str] = "",
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation, or several at once, with an ``adapter`` as in :meth:`generate`.
        ``template_options`` go to the checkpoint's chat template."""
        several = not messages or not isinstance(messages[0], Mapping)
        conversations = cast("Sequence[Sequence[Message]]", messages if several else [messages])
        prompts = [self.tokenizer.encode_chat(c, tools, **template_options) for c in conversations]
        token_ids = [prompt.token_ids for prompt in prompts]
        outputs = self.generate(token_ids, sampling_params, use_tqdm, adapter=adapter)
        for output, prompt in zip(outputs, prompts, strict=True):
            output.prompt = prompt.text
        return outputs

    def embed(
        self,
        prompts: str | list[int] | Sequence[str | list[int]],
        use_tqdm: bool = True,
        *,
        dimensions: int | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        adapter: str = "",
    ) -> list[EmbeddingOutput]:
        """An embedding of each prompt, which is a text or token ids: its first ``dimensions`` numbers, with the norm 1
        where ``normalize`` or, if that is ``None``, the checkpoint says so. ``prompt_name`` is that of the checkpoint's
        prompts which goes before each text. Raises :class:`~llmk.api.RequestError` for what can't be served."""
        pooler = self._pooler()
        size, returns = pooler.dimensions(dimensions), pooler.returns(labels=False)
        normed = pooler.pooling.normalize if normalize is None else normalize
        batch = cast("list[str | list[int]]", _as_batch(cast("Any", prompts)))
        made = [pooler.prompt(prompt, named=prompt_name) for prompt in batch]
        return [
            EmbeddingOutput(job.tokens, embedding_of(job.row, size, normalize=normed).tolist(), job.num_cached_tokens)
            for job in self._pool(made, returns, use_tqdm, adapter)
        ]

    def classify(
        self, prompts: str | list[int] | Sequence[str | list[int]], use_tqdm: bool = True, *, adapter: str = ""
    ) -> list[ClassificationOutput]:
        """The probabilities of the labels of each prompt, by a classifier."""
        pooler = self._pooler()
        labels, activation, returns = pooler.pooling.labels, pooler.pooling.activation, pooler.returns(labels=True)
        made = [pooler.prompt(prompt) for prompt in cast("list[str | list[int]]", _as_batch(cast("Any", prompts)))]
        outputs = []
        for job in self._pool(made, returns, use_tqdm, adapter):
            probs = probabilities(job.row, activation)
            label = labels[probs.index(max(probs))]
            outputs.append(ClassificationOutput(job.tokens, label, probs, job.num_cached_tokens))
        return outputs

    def score(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        use_tqdm: bool = True,
        *,
        adapter: str = "",
    ) -> list[float]:
        """How well each document fits the query, or its own among as many: a reranker's score, or the cosine of their
        embeddings."""
        pooler = self._pooler()
        first, second = ([texts] if isinstance(texts, str) else list(texts) for texts in (queries, documents))
        prompts, num_queries = pooler.scored(first, second)
        jobs = self._pool(prompts, pooler.returns(labels=not num_queries), use_tqdm, adapter)
        return list(scores_of([job.row for job in jobs], num_queries, pooler.pooling.activation))

    def process(self, name: str, body: Mapping[str, Any]) -> Any:
        """What the IO processor of that name or id answers to ``body``, as ``POST /v1/io/{name}`` would.

        Raises :class:`~llmk.api.RequestError` for a body that can't be served, and :class:`~llmk.api.PluginError` where
        the processor fails.
        """
        run = self._io.open(name, body, self._input_processor, RequestContext(str(next(self._ids))))
        self._run([run], use_tqdm=False)
        return msgspec.json.decode(run.answer())

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters of the engine as they are now."""
        return self.core.stats

    def close(self) -> None:
        """Frees the model and its cache, and ends the processes that it is spread over. Idempotent."""
        if self._core is not None:
            self._core.close()
        self._core = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def core(self) -> EngineCore:
        """The engine itself. Raises :class:`~llmk.api.LlmkError` once this is closed."""
        if self._core is None:
            raise LlmkError("this LLM was closed")
        return self._core

    def _pooler(self) -> Pooler:
        return Pooler(self.boot.pooling, self.tokenizer, self.boot.facts.hidden_size, self.info.max_model_len)

    def _pool(self, prompts: Sequence[list[int]], returns: Returns, use_tqdm: bool, adapter: str) -> list[_PoolingJob]:
        jobs = []
        for tokens in prompts:
            context = RequestContext(str(next(self._ids)), adapter=adapter)
            jobs.append(_PoolingJob(self._input_processor.sequences(tokens, PARAMS, context, returns)))
        self._run(jobs, use_tqdm)
        return jobs

    def _params_for(
        self, count: int, params: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.default_params] * count
        if len(params) != count:
            raise RequestError(f"there are {count} prompts and {len(params)} sampling parameters")
        return params

    def _run(self, jobs: Sequence[_AnyJob], use_tqdm: bool) -> None:
        """Runs the sequences of ``jobs`` to their ends, and gives each job the deltas of its own."""
        core = self.core
        open_sequences: dict[str, tuple[_AnyJob, SequenceOutput]] = {}
        for job in jobs:
            for index, sequence in enumerate(job.sequences):
                detokenizer = self.tokenizer.detokenizer(sequence.params.skip_special_tokens)
                open_sequences[sequence.id] = job, SequenceOutput(sequence.params, detokenizer, index=index)
        progress = tqdm(total=len(open_sequences), desc="generating", unit="sequence", disable=not use_tqdm)
        try:
            for job in jobs:
                for sequence in job.sequences:
                    core.add(sequence)
            with progress:
                for job, delta in _stepped(core, open_sequences):
                    job.add(delta)
                    if delta.finish_reason is not None:
                        progress.update()
        finally:
            core.abort(open_sequences)
            while core.has_work:
                core.step()


class _Job:
    """A prompt that is being completed."""

    def __init__(
        self, input_processor: InputProcessor, context: RequestContext, prompt: Prompt, params: SamplingParams
    ) -> None:
        known = prompt if isinstance(prompt, str | list) else from_arrays(prompt, input_processor.info)
        self.sequences: list[EngineRequest] = input_processor.sequences(known, params, context)
        self.output = RequestOutput(
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=self.sequences[0].prompt_token_ids,
            outputs=[CompletionOutput(index) for index in range(params.n)],
        )

    def add(self, delta: GenerationDelta) -> None:
        """Adds what came next to one of the choices."""
        self.output.outputs[delta.index].add(delta)
        self.output.num_cached_tokens = max(self.output.num_cached_tokens, delta.num_cached_tokens)
        self.output.prompt_logprobs = self.output.prompt_logprobs or list(delta.prompt_logprobs) or None


class _PoolingJob:
    """A prompt that is being pooled. ``row`` is what is made of its hidden states."""

    def __init__(self, sequences: list[EngineRequest]) -> None:
        self.sequences = sequences
        self.tokens = sequences[0].prompt_token_ids
        self.row = array("f")
        self.num_cached_tokens = 0

    def add(self, delta: GenerationDelta) -> None:
        """Takes the row."""
        if delta.hidden is not None:
            self.row, self.num_cached_tokens = delta.hidden.floats(), delta.num_cached_tokens


_AnyJob = _Job | IORun | _PoolingJob


def _stepped(
    core: EngineCore, open_sequences: dict[str, tuple[_AnyJob, SequenceOutput]]
) -> Iterator[tuple[_AnyJob, GenerationDelta]]:
    """Steps until all sequences have ended, and takes each out when it has."""
    while open_sequences:
        outputs = core.step()
        for output in outputs.outputs:
            if output.finish_reason == "error":
                del open_sequences[output.id]
                raise Failure.in_output(output).error()
            job, sequence = open_sequences[output.id]
            delta = sequence.take(output, outputs.time)
            if delta.finish_reason is not None:
                del open_sequences[output.id]
                core.abort([output.id])
            yield job, delta


def _as_batch(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str) or is_array(prompts):
        return [prompts]
    several = cast("Sequence[Prompt]", prompts)
    return [cast("Prompt", prompts)] if several and isinstance(several[0], int) else list(several)


def dotted(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Settings by dotted path. A name alone is that of the section ``model``, or of the one section that has it."""
    from llmk.config.schema_tree import join, leaves

    paths = [path for path in leaves() if len(path) == 2]
    sections = {path[0] for path in leaves()}
    for name, value in settings.items():
        if name in sections and isinstance(value, Mapping):
            yield from _flat(name, value)
            continue
        having = sorted((path for path in paths if path[1] == name), key=lambda path: path[0] != "model")
        clear = having and (having[0][0] == "model" or len(having) == 1)
        yield (join(having[0]) if clear else name), value


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{path}.{name}", inner)
    else:
        yield path, value
