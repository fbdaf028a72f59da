"""The kernel of mixtures of experts. Imports neither torch nor Triton."""

from __future__ import annotations

from llmk.api import FIRST_FIELDS, OK, KernelSpec, MoEQuery, Verdict, no
from llmk_triton.kernel_spec import kernel_spec

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
_KNOWN = FIRST_FIELDS | {"activation_alpha", "activation_limit", "up_offset"}
_SCORINGS = ("softmax", "sigmoid")
_GROUP_SCORINGS = ("max", "top2_sum")
_MOST_GROUPS = 32
"""Most groups of experts, whose scores a program computes one after the other."""
_MOST_EXPERTS = 1024
"""Most experts whose logits one program holds for a few tokens."""


def moe_spec() -> KernelSpec:
    """Routing and experts."""
    summary = "Routing on the device; GEMVs for few tokens, grouped GEMM for more."
    where = "moe.fused:fused_moe"
    return kernel_spec("fused_moe", "moe", where, supports=supports_moe, knows=_KNOWN, summary=summary)


def supports_moe(query: MoEQuery) -> Verdict:
    """Unquantized experts."""
    verdict = OK
    if query.weight_format != "plain":
        verdict &= no("weight_format", wanted=query.weight_format, found="plain")
    if query.activation not in _ACTIVATIONS:
        verdict &= no("activation", wanted=query.activation, found=", ".join(_ACTIVATIONS))
    if query.scoring not in _SCORINGS:
        verdict &= no("scoring", wanted=query.scoring, found=", ".join(_SCORINGS))
    if query.group_scoring not in _GROUP_SCORINGS:
        verdict &= no("group_scoring", wanted=query.group_scoring, found=", ".join(_GROUP_SCORINGS))
    if query.num_groups > _MOST_GROUPS:
        verdict &= no("num_groups", wanted=query.num_groups, found=f"up to {_MOST_GROUPS}")
    if query.num_experts > _MOST_EXPERTS:
        verdict &= no("num_experts", wanted=query.num_experts, found=f"up to {_MOST_EXPERTS}")
    return verdict
