"""From a prompt and parameters to sequences for the engine, checked against the model that will run them."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from random import Random
from typing import Any

from llmk.api import CheckpointError, ContextLengthExceeded, RequestError
from llmk.engine.request import EngineRequest, SamplingParams
from llmk.engine.tokenizer import Tokenizer

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SEED_BITS = 63


class Intake:
    """Turns prompts into sequences. ``seed`` is where requests without a seed of their own draw one from."""

    def __init__(self, tokenizer: Tokenizer, *, max_model_len: int, vocab_size: int, seed: int) -> None:
        self._tokenizer = tokenizer
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._random = Random(seed)

    def sequences(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        id: str,
        priority: int = 0,
        cache_salt: str = "",
        tenant: str = "",
    ) -> list[EngineRequest]:
        """``params.n`` sequences for one prompt; a text is tokenized with the tokenizer's special tokens around it.

        Raises:
            ContextLengthExceeded: where the prompt leaves no room for a token.
            RequestError: where the prompt is empty, or a token id is not the model's.
        """
        tokens = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        self._check_prompt(tokens)
        self._check_ids("stop_token_ids", params.stop_token_ids)
        self._check_ids("logit_bias", params.logit_bias)
        seed = self._random.getrandbits(_SEED_BITS) if params.seed is None else params.seed
        return [
            EngineRequest(
                id=f"{id}/{index}",
                prompt_token_ids=tokens,
                params=params,
                eos_token_ids=self._tokenizer.eos_token_ids,
                seed=derived_seed(seed, index),
                priority=priority,
                cache_salt=cache_salt,
                tenant=tenant,
            )
            for index in range(params.n)
        ]

    def _check_prompt(self, tokens: list[int]) -> None:
        if not tokens:
            raise RequestError("the prompt has no tokens", param="prompt")
        if len(tokens) >= self._max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has {len(tokens)} tokens, but the model's context is {self._max_model_len} tokens,"
                " at least one of which is for the answer",
                hint="shorten the prompt",
            )
        self._check_ids("prompt", (min(tokens), max(tokens)))

    def _check_ids(self, param: str, ids: Mapping[int, Any] | tuple[int, ...]) -> None:
        for token in ids:
            if not 0 <= token < self._vocab_size:
                raise RequestError(
                    f"{param} names token {token}; the model's tokens are 0 to {self._vocab_size - 1}", param=param
                )


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
    given = {name: generation_config[name] for name in _DEFAULTS if generation_config.get(name) is not None}
    if generation_config.get("do_sample") is False:
        given["temperature"] = 0.0
    try:
        return SamplingParams(**given)
    except (RequestError, TypeError) as error:
        what = f"generation_config.json can't be used: {error}"
        raise CheckpointError(what, hint="correct or remove the value") from error
