"""IO processors of plugins: made when a request first names one, and kept from harming others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, cast, get_args

import msgspec
from msgspec.structs import asdict, replace

from llmk.api import (
    IOContext,
    IOOutput,
    IOProcessor,
    IOProcessorSpec,
    IOPrompt,
    LlmkError,
    PluginError,
    RequestError,
    Verdict,
)
from llmk.api.io import Returns
from llmk.api.matching import evaluate
from llmk.engine.wire.request import EngineRequest, HiddenRows, RequestContext
from llmk.engine.wire.request import Returns as EngineReturns
from llmk.engine.wire.sampling_params import SamplingParams
from llmk.kernel.contracts import check_made
from llmk.kernel.first_party import how_to_install
from llmk.kernel.loader import load_object

if TYPE_CHECKING:
    from torch import Tensor

    from llmk.engine.text.input_processor import InputProcessor
    from llmk.engine.text.output_processor import GenerationDelta
    from llmk.engine.text.tokenizer import Tokenizer
    from llmk.engine.wire.engine_info import EngineInfo
    from llmk.kernel.registry import Registered
    from llmk.planning.boot import Boot

_RETURNS: Mapping[str, EngineReturns] = dict(zip(get_args(Returns), get_args(EngineReturns), strict=False))


class UnknownIOProcessor(RequestError):
    """The request names an IO processor that is not installed."""

    code, http_status = "io_processor_not_found", 404


class ProcessLost(Exception):
    """A processor's process ended in a call for another request: this one can be run again."""


class IORunProtocol(Protocol):
    """A request of an IO processor, wherever that runs."""

    @property
    def sequences(self) -> list[EngineRequest]:
        """What the engine is to run for it."""
        ...

    async def add(self, delta: GenerationDelta) -> None:
        """Passes on the next delta of one of the sequences."""
        ...

    async def answer(self) -> bytes:
        """The answer as JSON, once all sequences have ended."""
        ...

    def close(self) -> None:
        """Drops it: its client is gone."""
        ...


class IOHost(Protocol):
    """Where IO processors run."""

    async def open(self, id: str, name: str, body: bytes, info: EngineInfo, context: RequestContext) -> IORunProtocol:
        """Starts a request to the processor ``id``, which errors call ``name``. Raises :class:`ProcessLost`, here and
        in the run, where it can be run again."""
        ...


class IOProcessors:
    """The processors that are installed, for one model. ``served_name`` is what requests call it. ``returned`` is
    called when a processor has returned and work of our own goes on, however often."""

    def __init__(
        self,
        boot: Boot,
        tokenizer: Tokenizer,
        served_name: str,
        default_params: SamplingParams,
        returned: Callable[[], object] = lambda: None,
    ) -> None:
        self._boot = boot
        self._tokenizer = tokenizer
        self._served_name = served_name
        self._default_params = default_params
        self._returned = returned
        self._made: dict[str, IOProcessor] = {}

    def describe(self) -> list[dict[str, Any]]:
        """For each, what it is, whose, and whether it can serve this model."""
        described = []
        for found in self._found:
            verdict = evaluate(found.spec.supports, self._boot.checkpoint)
            about = {"id": found.spec.id, "name": found.spec.name, "wheel": found.plugin.wheel}
            described.append(about | {"summary": found.spec.summary, "supported": verdict.ok, "reasons": _why(verdict)})
        return described

    def resolve(self, name: str) -> tuple[str, str]:
        """The id of the processor of that name or id, and what errors call it. Raises what :meth:`open` does."""
        found = self._named(name)
        return found.spec.id, _called(found)

    def open(
        self, name: str, body: Mapping[str, Any], input_processor: InputProcessor, context: RequestContext
    ) -> IORun:
        """Starts a request, whose prompts ``input_processor`` makes sequences of.

        Raises:
            UnknownIOProcessor: where none of that name or id is installed.
            RequestError: where it does not serve this model, or the body or a prompt can't be served.
            PluginError: where the processor can't be made, or fails.
        """
        found = self._named(name)
        run = IORun(_called(found))
        with run.guard():
            run.request = self._processor(found).open(body)
            check_made(run.request, "io_request")
            prompts, most = run.request.prompts, self._boot.settings.config.limits.prompts
            if len(prompts) > most:
                what = f"the request comes to {len(prompts)} prompts; no more than {most} may be (limits.prompts)"
                raise RequestError(what, hint="send fewer in one request")
            for number, prompt in enumerate(prompts):
                self._returned()
                run.sequences.append(self._sequence(input_processor, prompt, number, context))
            if not run.sequences:
                raise ValueError("it made no prompt of the request")
        return run

    @property
    def _found(self) -> list[Registered[IOProcessorSpec]]:
        return self._boot.registry.of(IOProcessorSpec)

    def _named(self, name: str) -> Registered[IOProcessorSpec]:
        by_name = [found for found in self._found if found.spec.name == name]
        chosen = [found for found in self._found if found.spec.id == name] or by_name
        ids = ", ".join(found.spec.id for found in chosen or self._found)
        if not chosen:
            raise UnknownIOProcessor(
                f"there is no IO processor {name!r} (installed: {ids or 'none'})", hint=how_to_install(name)
            )
        if len(chosen) > 1:
            raise RequestError(f"several IO processors are called {name!r}", hint=f"name one by its id: {ids}")
        if not (verdict := evaluate(chosen[0].spec.supports, self._boot.checkpoint)):
            why = "; ".join(_why(verdict))
            raise RequestError(f"the IO processor {ids} does not serve {self._served_name}: {why}")
        return chosen[0]

    def _processor(self, found: Registered[IOProcessorSpec]) -> IOProcessor:
        if found.spec.id not in self._made:
            boot, plugin = self._boot, found.plugin
            options = boot.settings.config.plugin.get(plugin.name, {})
            kind: type[IOProcessor] = load_object(
                found.spec.implementation, plugin=plugin, kind="io_processor", id=found.spec.id
            )
            context = IOContext(boot.checkpoint, boot.facts, self._tokenizer, self._served_name, options)
            self._made[found.spec.id] = kind(context)
        return self._made[found.spec.id]

    def _sequence(
        self, input_processor: InputProcessor, prompt: IOPrompt, number: int, context: RequestContext
    ) -> EngineRequest:
        params = self._params(prompt)
        tokens = prompt.prompt if isinstance(prompt.prompt, str) else [int(token) for token in prompt.prompt]
        own = replace(context, id=f"{context.id}/{number}")
        try:
            (sequence,) = input_processor.sequences(tokens, params, own, _RETURNS[prompt.returns])
        except RequestError as error:
            if error.param in ("prompt", None):
                error.param = prompt.param or None
            raise
        return sequence

    def _params(self, prompt: IOPrompt) -> SamplingParams:
        if prompt.returns not in _RETURNS:
            raise ValueError(f"returns = {prompt.returns!r}; there are {', '.join(_RETURNS)}")
        if unknown := prompt.sampling.keys() - (set(SamplingParams.__struct_fields__) - {"n"}):
            raise ValueError(f"sampling names {', '.join(sorted(unknown))}")
        if prompt.returns == "text":
            return msgspec.convert(asdict(self._default_params) | dict(prompt.sampling), SamplingParams)
        if prompt.sampling:
            raise ValueError(f"sampling is given, but returns = {prompt.returns!r}")
        return SamplingParams(max_tokens=1, prompt_logprobs=0 if prompt.returns == "logprobs" else None)


class IORun:
    """A request of an IO processor called ``name`` in errors, as the engine runs it: its sequences, one for each
    prompt, and their outputs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.request: Any = None
        self.sequences: list[EngineRequest] = []
        self._lengths: dict[int, int] = {}

    def add(self, delta: GenerationDelta) -> None:
        """Passes on the next delta of one of the sequences. Raises PluginError, RequestError."""
        if delta.finish_reason in ("abort", "error"):
            raise LlmkError(f"the request was ended before it was done ({delta.finish_reason})")
        with self.guard():
            self.request.take(self._output(delta))

    def answer(self) -> bytes:
        """The answer as JSON, once all sequences have ended. Raises PluginError, RequestError."""
        with self.guard():
            return msgspec.json.encode(self.request.answer())

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Makes what the plugin raises the request's error, with the plugin's name."""
        try:
            yield
        except (RequestError, PluginError):
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(f"{self.name} failed: {type(error).__name__}: {error}") from error

    def _output(self, delta: GenerationDelta) -> IOOutput:
        at, prompt = delta.index, self.sequences[delta.index].prompt_token_ids
        end = cast("Any", delta.finish_reason)
        if delta.hidden is not None:
            start, stop = delta.hidden.start, delta.hidden.start + delta.hidden.num
            hidden = _tensor(delta.hidden)
            return IOOutput(prompt=at, start=start, token_ids=prompt[start:stop], hidden=hidden, finish_reason=end)
        if self.sequences[at].returns != "tokens":
            logprobs = [None if entry is None else entry.logprob for entry in delta.prompt_logprobs]
            return IOOutput(prompt=at, start=0, token_ids=prompt, logprobs=logprobs, finish_reason=end)
        start = self._lengths.get(at, len(prompt))
        self._lengths[at] = start + len(delta.token_ids)
        return IOOutput(prompt=at, start=start, token_ids=delta.token_ids, text=delta.text, finish_reason=end)


def _called(found: Registered[IOProcessorSpec]) -> str:
    return f"the IO processor {found.spec.id} of {found.plugin.wheel}"


def _why(verdict: Verdict) -> list[str]:
    return [str(reason) for reason in verdict.reasons]


def _tensor(rows: HiddenRows) -> Tensor:
    import torch  # only requests for hidden states need it

    dtype = getattr(torch, rows.dtype)
    return torch.frombuffer(bytearray(rows.data), dtype=dtype).view(rows.num, -1).float()
