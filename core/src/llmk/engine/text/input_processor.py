"""From a prompt and parameters to sequences for the engine, checked against the model that will run them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from llmk.api import CheckpointError, ContextLengthExceeded, RequestError
from llmk.config.logs import request_id
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.grammar_params import PARAM
from llmk.engine.wire.prompt import EmbeddedPrompt, token_ids_of
from llmk.engine.wire.request import EngineRequest, RequestContext, Returns
from llmk.engine.wire.sampling_params import SamplingParams, parameters
from llmk.kernel.first_party import how_to_install

if TYPE_CHECKING:
    from llmk.engine.text.tokenizer import Tokenizer

_SEED_BITS = 63
_MAX_WORDS = 1000
_MAX_WORD_TOKENS = 100
_MAX_WORD_CHARACTERS = 10_000
_HEAD, _SLACK = 8, 1024
"""Characters for each token that there is room for, in the first part of a text that is tokenized to see whether it is
too long, and tokens by which the end of a part may differ from the same place in the whole."""


class InputProcessor:
    """Turns prompts into sequences for the engine that ``info`` describes. Requests without a seed draw one from the
    generator that ``seed`` starts. With ``isolate_tenants``, no tenant's prefix is a hit for another's. ``adapters``
    are the names of the configured adapters.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        info: EngineInfo,
        *,
        seed: int,
        isolate_tenants: bool = False,
        adapters: Iterable[str] = (),
    ) -> None:
        self.info = info
        self._adapters = {name: number for number, name in enumerate(adapters, 1)}
        self._isolate_tenants = isolate_tenants
        self._tokenizer = tokenizer
        self._random = Random(seed)

    def sequences(
        self,
        prompt: str | list[int] | EmbeddedPrompt,
        params: SamplingParams,
        context: RequestContext,
        returns: Returns = "tokens",
    ) -> list[EngineRequest]:
        """``params.n`` sequences for one prompt; a text is tokenized with the tokenizer's special tokens around it.

        Raises:
            ContextLengthExceeded: where the prompt leaves no room for a token.
            RequestError: where the prompt is empty, a token id is not the model's, what is to be returned needs token
                ids that the prompt does not have or a head that the model does not have, or there is no such adapter.
        """
        check_head(self.info, returns)
        if (adapter := context.adapter) and adapter not in self._adapters:
            known = ", ".join(self._adapters) or "none"
            raise RequestError(f"there is no adapter {adapter!r} (configured: {known})", param="model")
        if isinstance(prompt, str):
            check_text(self._tokenizer, prompt, self.info.max_model_len)
            prompt = self._tokenizer.encode_prompt(prompt)
        self.check_prompt(prompt)
        embeddings = prompt.runs if isinstance(prompt, EmbeddedPrompt) else []
        if embeddings and (params.prompt_logprobs is not None or returns == "prompt_logprobs"):
            what = "log-probabilities of a prompt are those of its tokens, which embeddings have not"
            raise RequestError(what, param="prompt_logprobs")
        params = self.checked(params)
        seed = self._random.getrandbits(_SEED_BITS) if params.seed is None else params.seed
        salt = f"{context.tenant}/{context.cache_salt}" if self._isolate_tenants else context.cache_salt
        own = replace(context, log_id=context.log_id or request_id.get() or context.id, cache_salt=salt)
        return [
            EngineRequest(
                id=sequence_id(context.id, index),
                context=own,
                prompt_token_ids=token_ids_of(prompt),
                embeddings=embeddings,
                params=params,
                eos_token_ids=self._tokenizer.eos_token_ids,
                seed=derived_seed(seed, index),
                returns=returns,
                adapter=self._adapters[adapter] if adapter else 0,
            )
            for index in range(params.n)
        ]

    def checked(self, params: SamplingParams) -> SamplingParams:
        """Parameters as the engine takes them, with ``bad_words`` as token sequences.

        Raises :class:`~llmk.api.RequestError`, naming the field.
        """
        for parameter in parameters():
            if parameter.name in self.info.lacks and getattr(params, parameter.name) != parameter.default:
                what = f"{parameter.name} can't be used here: {self.info.executor}, which runs the model, can't do it"
                raise RequestError(what, param=parameter.name, hint=f"leave it at {parameter.default!r}")
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        self._check_ids("allowed_token_ids", params.allowed_token_ids or ())
        for id in params.logits_processors:
            if id not in self.info.logits_processors:
                known = ", ".join(self.info.logits_processors) or "none"
                raise RequestError(
                    f"there is no logits processor {id!r} (installed: {known})", param="logits_processors"
                )
        self._check_grammar(params)
        if not (params.bad_words or params.bad_word_ids):
            return params
        if max(len(params.bad_words), len(params.bad_word_ids)) > _MAX_WORDS:
            raise RequestError(f"no more than {_MAX_WORDS} words can be banned", param="bad_words")
        if max(map(len, params.bad_words), default=0) > _MAX_WORD_CHARACTERS:
            raise RequestError(f"a banned word has {_MAX_WORD_CHARACTERS} characters at most", param="bad_words")
        words = dict.fromkeys(params.bad_word_ids)
        for text in params.bad_words:
            words |= {word: None for word in self._spellings(text) if word}
        if len(words) > _MAX_WORDS or max(map(len, words), default=0) > _MAX_WORD_TOKENS:
            what = f"no more than {_MAX_WORDS} token sequences of {_MAX_WORD_TOKENS} tokens can be banned"
            raise RequestError(what, param="bad_words")
        self._check_ids("bad_words", tuple(token for word in words for token in word))
        return replace(params, bad_words=(), bad_word_ids=tuple(words))

    def _check_grammar(self, params: SamplingParams) -> None:
        """Whether there is a compiler for it; only that knows whether its text is valid."""
        grammar, kinds = params.structured_outputs, self.info.grammars
        if grammar is not None and grammar.kind not in kinds:
            what = f"can't be a {grammar.kind} (there are {', '.join(kinds)})" if kinds else "can't be enforced here"
            hint = (
                "" if kinds else how_to_install("grammar") or "no wheel compiles grammars, or [select.grammar] is off"
            )
            raise RequestError(f"{PARAM} {what}", param=PARAM, hint=hint)

    def _spellings(self, text: str) -> Iterator[tuple[int, ...]]:
        """How the tokenizer writes a word at the start of a text, after a space, and after something else."""
        word, line = text.strip(" "), self._encode("\n")
        yield self._encode(text)
        if word:
            yield self._encode(word)
            yield self._encode(f" {word}")
            after = self._encode(f"\n{word}")
            if after[: len(line)] == line and len(after) > len(line):
                yield after[len(line) :]

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def check_prompt(self, prompt: list[int] | EmbeddedPrompt) -> None:
        """Raises where the prompt is empty, leaves no room for a token, or has one that is not the model's."""
        if not len(prompt):
            raise RequestError("the prompt has no tokens", param="prompt")
        check_length(len(prompt), self.info.max_model_len)
        if isinstance(prompt, list):
            self._check_ids("prompt", prompt)

    def _check_ids(self, param: str, ids: Collection[int]) -> None:
        check_ids(param, ids, self.info.vocab_size)


def check_head(info: EngineInfo, returns: Returns) -> None:
    """Raises :class:`WrongHead` where the model's head does not compute what a sequence is to return."""
    needed = {"tokens": "tokens", "prompt_logprobs": "tokens", "labels": "labels"}.get(returns, info.head)
    if needed != info.head:
        what = {"tokens": "generates text", "labels": "classifies", "": "computes embeddings"}
        does, hint = what[info.head], "use another route" if info.head == "tokens" else "use /v1/embeddings or /pooling"
        hint = "use /v1/classify, /v1/score or /v1/rerank" if info.head == "labels" else hint
        raise WrongHead(f"the model {does}; it has no head that {what[needed]}", hint=hint)


class WrongHead(RequestError):
    """The model has no head for what is requested."""

    code = "unsupported_by_model"


def check_ids(param: str, ids: Collection[int], vocab_size: int) -> None:
    """Raises :class:`~llmk.api.RequestError` where the field ``param`` has an id that is not the model's."""
    for token in (min(ids), max(ids)) if ids else ():
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"{param} names token {token}; the model's tokens are 0 to {vocab_size - 1}", param=param
            )


def check_length(count: int, max_model_len: int) -> None:
    """Raises :class:`~llmk.api.ContextLengthExceeded` where so many tokens of a prompt leave no room for another."""
    if count >= max_model_len:
        raise ContextLengthExceeded(
            f"this model's maximum context length is {max_model_len} tokens, at least one of which is for the answer,"
            f" but the prompt has {count} tokens",
            hint="shorten the prompt",
        )


def check_text(tokenizer: Tokenizer, text: str, most: int, limit: str = "") -> None:
    """Raises :class:`~llmk.api.ContextLengthExceeded` where ``text`` has far more than ``most`` tokens, which is the
    model's context, or the setting ``limit``. Such a text is not tokenized in full: its first part is, then a part
    twice as long.
    """
    allowed = most + _SLACK
    size = _HEAD * allowed
    while size < len(text):
        if len(tokenizer.encode(text[:size], add_special_tokens=False)) > allowed:
            bound = limit or "this model's maximum context length"
            what = f"{bound} is {most} tokens, but a text of {len(text)} characters has more"
            raise ContextLengthExceeded(what, hint="shorten the prompt")
        size *= 2


def is_long(num_characters: int, most: int) -> bool:
    """Whether :func:`check_text` would look at a text of so many characters."""
    return num_characters > _HEAD * (most + _SLACK)


def sequence_id(request_id: str, index: int) -> str:
    """What the engine calls choice ``index`` of a request."""
    return f"{request_id}/{index}"


def derived_seed(seed: int, index: int) -> int:
    """The seed of choice ``index``: ``seed`` itself for the first, unrelated ones for the others. 0 to 2**63 - 1."""
    if index:
        digest = blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
        seed = int.from_bytes(digest, "little")
    return seed % (1 << _SEED_BITS)


def default_params(generation_config: Mapping[str, Any]) -> SamplingParams:
    """What a checkpoint's generation config says on sampling, for requests that leave it open.

    Raises :class:`~llmk.api.CheckpointError` where it says what can't be done.
    """
    named = [parameter.name for parameter in parameters() if parameter.from_checkpoint]
    given = {name: generation_config[name] for name in named if generation_config.get(name) is not None}
    if generation_config.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)
    except (RequestError, TypeError) as error:
        what = f"generation_config.json can't be used: {error}"
        raise CheckpointError(what, hint="correct or remove the value") from error
