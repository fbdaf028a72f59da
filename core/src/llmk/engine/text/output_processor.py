"""From a sequence's tokens to its text: incremental decoding, stop strings, log-probabilities, the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from llmk.engine.text.detokenizer import Detokenizer
from llmk.engine.text.stop_strings import StopStrings
from llmk.engine.wire.request import FinishReason, HiddenRows, TokenLogprobs, TokenOutput
from llmk.engine.wire.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SequenceTimes:
    """Seconds in which a sequence waited to be admitted, its prompt was computed up to its first token, and the others
    were made, by the engine's clock."""

    queue: float
    prefill: float
    decode: float


@dataclass(slots=True)
class GenerationDelta:
    """What came to choice ``index`` of a request.

    ``text`` may lag behind ``token_ids`` where it could still become a stop string or a character is incomplete.
    ``stop_reason`` is the stop string or stop token that ended the text, ``None`` for the end-of-sequence token.
    """

    index: int
    text: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: Sequence[TokenLogprobs] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()
    """One for each token of the prompt, ``None`` for the first, where they are wanted; in a choice's first delta."""
    hidden: HiddenRows | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_pinned_tokens: int = 0
    """How much of a prompt that was to be pinned is."""
    pinned_prefixes: Sequence[int] = ()
    """How many tokens of each prefix that was to be pinned are, in the first delta."""
    times: SequenceTimes | None = None
    """In the last delta of a choice that ended by itself."""
    joined: list[tuple[int, int]] = field(default_factory=list)
    """Characters and tokens of each delta that is a part of this one, if there are several."""

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Characters and tokens of each part."""
        return self.joined or [(len(self.text), len(self.token_ids))]

    def split(self) -> Iterator[GenerationDelta]:
        """The deltas that were joined."""
        text = tokens = 0
        for number, (length, size) in enumerate(self.joined, 1):
            part = replace(self, text=self.text[text : text + length], joined=[])
            part.token_ids = self.token_ids[tokens : tokens + size]
            part.logprobs = self.logprobs[tokens : tokens + size]
            if number > 1:
                part.prompt_logprobs, part.num_prompt_tokens, part.num_cached_tokens = (), 0, 0
            if number < len(self.joined):
                part.finish_reason = part.stop_reason = part.times = None
            text, tokens = text + length, tokens + size
            yield part
        if not self.joined:
            yield self

    def joins(self, later: GenerationDelta) -> bool:
        """Whether ``later``, the next delta of the choice, can be made a part of this one."""
        ended = later.finish_reason in ("abort", "error")  # what came before is sent first
        return self.hidden is None and later.hidden is None and not ended

    def join(self, later: GenerationDelta) -> None:
        """Makes ``later``, the next delta of the choice, a part of this one."""
        self.joined = [*self.parts, *later.parts]
        self.text += later.text
        self.token_ids = [*self.token_ids, *later.token_ids]
        self.logprobs = (*self.logprobs, *later.logprobs)
        self.prompt_logprobs = self.prompt_logprobs or later.prompt_logprobs
        self.finish_reason, self.stop_reason, self.times = later.finish_reason, later.stop_reason, later.times


@dataclass(slots=True)
class CompletionOutput:
    """One finished choice."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def add(self, delta: GenerationDelta) -> None:
        """Adds what came next."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its completions. ``prompt`` is ``None`` where tokens were given. ``prompt_logprobs`` has one entry
    for each token of the prompt where they were requested, ``None`` for the first."""

    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs | None] | None = None


class SequenceOutput:
    """Assembles one sequence's output."""

    def __init__(
        self, params: SamplingParams, detokenizer: Detokenizer, *, index: int = 0, num_prompt_tokens: int = 0
    ) -> None:
        self._params = params
        self._detokenizer = detokenizer
        self._stops = StopStrings(params.stop, include=params.include_stop) if params.stop else None
        self._index = index
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0
        self._started = (0.0, 0.0, 0.0)

    def take(self, output: TokenOutput, time: float) -> GenerationDelta:
        """What the engine's output of ``time`` adds. Where a stop string ends the text, the delta says so and the
        engine doesn't know yet.
        """
        delta = self._take(output)
        if output.arrived is not None and output.admitted is not None:
            self._started = output.arrived, output.admitted, time
        if delta.finish_reason == "stop" or delta.finish_reason == "length":
            arrived, admitted, first = self._started
            delta.times = SequenceTimes(admitted - arrived, first - admitted, time - first)
        return delta

    def _take(self, output: TokenOutput) -> GenerationDelta:
        delta = GenerationDelta(
            index=self._index,
            text="",
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            finish_reason=output.finish_reason,
            stop_reason=output.stop_token_id,
            hidden=output.hidden,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=output.num_cached_tokens,
            num_pinned_tokens=output.num_pinned_tokens,
            pinned_prefixes=output.pinned_prefixes,
        )
        first = not self._num_tokens and (output.token_ids or output.finish_reason == "stop")
        if first and self._params.prompt_logprobs is not None:
            delta.prompt_logprobs = [None, *output.prompt_logprobs]
        silent_end = output.finish_reason == "stop" and not self._params.include_stop
        spoken = output.token_ids[:-1] if silent_end else output.token_ids
        for count, token in enumerate(spoken, start=1):
            self._num_tokens += 1
            if self._add(delta, self._detokenizer.push((token,))):
                delta.token_ids = output.token_ids[:count]
                delta.logprobs = output.logprobs[:count]
                return delta
        if output.finish_reason is not None and not self._add(delta, self._detokenizer.finish()) and self._stops:
            delta.text += self._stops.finish()
        return delta

    def _add(self, delta: GenerationDelta, text: str) -> bool:
        """Adds ``text`` as far as it can be no stop string; returns whether it was one."""
        if self._stops is None:
            delta.text += text
            return False
        certain, stop = self._stops.push(text, may_stop=self._num_tokens >= self._params.min_tokens)
        delta.text += certain
        if stop is not None:
            delta.finish_reason, delta.stop_reason = "stop", stop
        return stop is not None
