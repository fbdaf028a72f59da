"""Valid and invalid wishes about how tokens are chosen: bans, stops, biases, log-probabilities, many choices."""

from __future__ import annotations

import json
from typing import Any

from hostile_cases.bodies import SIZE, field, listed
from hostile_cases.frame import CHAT, COMPLETIONS, MIB, PATIENCE, Case, post

VOCABULARY = 4096
"""The demo model's."""
LONG = "word " * 950
"""About as much as its context takes."""


def asked(**fields: Any) -> bytes:
    """A text completion."""
    return json.dumps({"prompt": "One day", "max_tokens": 16, "ignore_eos": True, **fields}).encode()


def _words(count: int, word: bytes = b'"w%d"') -> bytes:
    return b"[" + b",".join(word % at for at in range(count)) + b"]"


def _bias(count: int, key: bytes = b'"%d": -1') -> bytes:
    return b"{" + b",".join(key % at for at in range(count)) + b"}"


CASES: tuple[Case, ...] = (
    post("stops-40k", "A7: 40,000 stop strings", CHAT, lambda: field(b"stop", _words(40_000)), 200, 400),
    post("stops-1m", "a million stop strings", CHAT, lambda: field(b"stop", _words(1_000_000)), 200, 400),
    post("stop-15m", "a stop string of 15 MB", CHAT, lambda: field(b"stop", b'"' + b"a" * SIZE + b'"'), 200, 400),
    post("stop-loop", "a stop string of 8 MB that begins like itself", CHAT,
         lambda: field(b"stop", b'"' + b"ab" * 4 * MIB + b'a"'), 200, 400),
    post("stops-choices", "1,000 stop strings for each of 64 choices", COMPLETIONS,
         lambda: asked(stop=[f"w{at}" for at in range(1000)], n=64), 200, 400),
    post("bad-words-200k", "A3: 200,000 banned words", CHAT, lambda: field(b"bad_words", _words(200_000)), 200, 400),
    post("bad-word-4m", "A3: a banned word of 4 MB", CHAT,
         lambda: field(b"bad_words", b'["' + b"a" * 4 * MIB + b'"]'), 200, 400),
    post("bad-words-stream", "as many banned words as may be, for 8 choices", COMPLETIONS,
         lambda: asked(bad_words=[f"word{at} of it" for at in range(240)], n=8, max_tokens=64), 200, 400,
         patience=PATIENCE),
    post("stop-ids-2m", "2 million tokens that stop", CHAT,
         lambda: field(b"stop_token_ids", listed(b"[", b"4000", b"]", 10 * MIB)), 200, 400),
    post("allowed-2m", "2 million tokens that are allowed", CHAT,
         lambda: field(b"allowed_token_ids", listed(b"[", b"4000", b"]", 10 * MIB)), 200, 400),
    post("allowed-all", "the whole vocabulary allowed, for 32 choices", COMPLETIONS,
         lambda: asked(allowed_token_ids=list(range(VOCABULARY)), n=32), 200, 400, 429, patience=PATIENCE),
    post("allowed-none", "no token allowed", COMPLETIONS, lambda: asked(allowed_token_ids=[])),
    post("bias-all", "a bias of the whole vocabulary, for 32 choices", COMPLETIONS,
         lambda: asked(logit_bias={str(at): -1 for at in range(VOCABULARY)}, n=32), 200, 400, 429, patience=PATIENCE),
    post("bias-1m", "a bias of a million tokens", CHAT, lambda: field(b"logit_bias", _bias(1_000_000)), 200, 400),
    post("bias-words", "a bias of a million words", CHAT, lambda: field(b"logit_bias", _bias(900_000, b'"w%d": 1'))),
    post("bias-zeros", "a bias whose tokens have a million digits", CHAT,
         lambda: field(b"logit_bias", b'{"' + b"0" * 1_000_000 + b'": 1}')),
    post("processors", "a million logits processors that are not there", CHAT,
         lambda: field(b"logits_processors", _bias(500_000, b'"p%d": {}'))),
    post("min-tokens", "as many tokens as may be, with all that stops held back", COMPLETIONS,
         lambda: asked(max_tokens=256, min_tokens=256, stop_token_ids=list(range(VOCABULARY)), n=8), 200, 400, 429,
         patience=PATIENCE),
    post("logprobs-128", "128 choices with the log-probabilities of 20 tokens", COMPLETIONS,
         lambda: asked(n=128, logprobs=20, max_tokens=32), 200, 400, 429, patience=PATIENCE),
    post("logprobs-128-stream", "the same, streamed", COMPLETIONS,
         lambda: asked(n=128, logprobs=20, max_tokens=32, stream=True), 200, 400, 429, patience=PATIENCE),
    post("logprobs-echo", "the log-probabilities of a long prompt, echoed", COMPLETIONS,
         lambda: asked(prompt=LONG, echo=True, logprobs=20, max_tokens=1), 200, 400, patience=PATIENCE),
    post("logprobs-echo-50", "the same of 50 prompts at once", COMPLETIONS,
         lambda: asked(prompt=[f"{at} {LONG}" for at in range(50)], echo=True, logprobs=20, max_tokens=1), 200, 400,
         patience=PATIENCE),
    post("choices-128", "128 choices of a long prompt", COMPLETIONS,
         lambda: asked(prompt=LONG, n=128, max_tokens=64), 200, 400, 429, patience=PATIENCE),
    post("choices-1b", "a billion choices", COMPLETIONS, lambda: asked(n=10**9)),
    post("penalties", "all penalties, for 64 choices of a long prompt", COMPLETIONS,
         lambda: asked(prompt=LONG, n=64, presence_penalty=1.5, frequency_penalty=1.5, repetition_penalty=1.5,
                       temperature=1.5, top_p=0.9, top_k=50, min_p=0.01), 200, 400, 429, patience=PATIENCE),
)  # fmt: skip
