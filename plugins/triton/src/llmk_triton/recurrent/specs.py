"""The kernels of recurrent layers. Imports neither torch nor Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from llmk.api import FIRST_FIELDS, OK, KernelSpec, OpQuery, Verdict, no
from llmk_triton.kernel_spec import HALVES, WIDEST_ROW, has_large_tiles, kernel_spec

_LATER_FACTS = {
    "state_space_mixer": frozenset({"max_drafts", "state_dtype", "gating"}),
    "gated_delta_net": frozenset({"max_drafts", "state_dtype", "channel_decays", "decay_bound", "gate_activation"}),
    "selective_scan": frozenset({"state_dtype"}),
    "lightning_attention": frozenset({"max_drafts", "state_dtype"}),
}
"""By op, the facts that were added after the first release and that its kernels know."""
_WIDEST_CHANNEL = 128
"""Most elements of the state of one channel that has decays of its own."""
_WIDEST_STATE = 512
"""Most elements of a row of a recurrent layer's state."""


def recurrent_specs() -> Iterator[KernelSpec]:
    """All of them."""
    for layer in _LAYERS:
        yield from _of_layer(*layer)
    yield kernel_spec(
        "short_conv",
        "op",
        "recurrent.short_conv:short_conv",
        op="short_conv",
        knows=FIRST_FIELDS | {"max_drafts"},
        supports=supports_conv,
        deterministic=True,
        summary="Convolution and states in one launch, two for prompts.",
    )


def supports_scan(query: OpQuery) -> Verdict:
    """States of which a program holds a few rows, and norms that fit in one program."""
    facts = query.facts
    size, inner = facts.get("state_size", 0), facts.get("num_heads", 0) * facts.get("head_dim", 0)
    norm = inner // max(1, facts.get("num_groups", 1))
    verdict = OK
    if size > _WIDEST_STATE:
        verdict &= no("state_size", wanted=size, found=f"up to {_WIDEST_STATE}")
    if norm > WIDEST_ROW:
        verdict &= no("num_groups", wanted=f"norms of {norm} elements", found=f"up to {WIDEST_ROW}")
    return verdict


def supports_delta(query: OpQuery) -> Verdict:
    """States of which a program holds a few rows."""
    size = query.facts.get("key_dim", 0)
    return OK if size <= _WIDEST_STATE else no("key_dim", wanted=size, found=f"up to {_WIDEST_STATE}")


def supports_channels(query: OpQuery) -> Verdict:
    """States of which a program holds those of a few channels."""
    size = query.facts.get("state_size", 0)
    return OK if size <= _WIDEST_CHANNEL else no("state_size", wanted=size, found=f"up to {_WIDEST_CHANNEL}")


def supports_conv(query: OpQuery) -> Verdict:
    """Convolutions that are activated by SiLU, or not at all."""
    activation = query.facts.get("activation", "")
    return OK if activation in ("", "silu") else no("activation", wanted=activation, found="silu")


def supports_chunks(query: OpQuery) -> Verdict:
    """GPUs whose programs have enough registers for a chunk."""
    platform = query.platform
    return OK if has_large_tiles(platform) else no("arch", wanted=platform.arch, found="NVIDIA and CDNA GPUs")


_LAYERS = (
    ("state_space_mixer", "recurrent.state_space", supports_scan),
    ("gated_delta_net", "recurrent.delta_net", supports_delta),
    ("selective_scan", "recurrent.selective_scan", supports_channels),
    ("lightning_attention", "recurrent.lightning", supports_scan),
)
"""Recurrent layers: op, module, and what is supported."""
_SUMMARIES = {
    "selective_scan": "Scan and gate in one launch, token by token.",
    "lightning_attention": "SiLU and recurrence in one launch, token by token.",
}
"""Of ops that are not a whole layer."""


def _of_layer(op: str, module: str, supports: Callable[[OpQuery], Verdict]) -> tuple[KernelSpec, KernelSpec]:
    """The kernel that computes prompts in chunks, and the one that goes token by token."""
    by_token = kernel_spec(
        f"{op}_by_token",
        "op",
        f"{module}:{op}_by_token",
        op=op,
        supports=supports,
        knows=FIRST_FIELDS | _LATER_FACTS[op],
        deterministic=True,
        summary=_SUMMARIES.get(
            op, "Convolution and recurrence in one launch, norm and gate in another; token by token."
        ),
    )
    chunked = replace(
        by_token,
        id=f"triton.{op}",
        implementation=f"llmk_triton.{module}:{op}",
        score=50,
        needs=HALVES,
        supports=lambda query: supports(query) & supports_chunks(query),
        deterministic=False,
        summary="The same, with prompts in chunks.",
    )
    return chunked, by_token
