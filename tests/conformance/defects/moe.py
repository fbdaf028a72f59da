"""Mixtures of experts with one mistake each, which real engines had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from defects import Defect
from llmk.api import FIRST_FIELDS, OK, MoEQuery, Verdict, no
from llmk.reference.moe import SCORINGS, MoEExamples, fused_moe


def supports_all(query: MoEQuery) -> Verdict:
    """Whatever is asked."""
    return OK


def _with(**changed: Any) -> Callable[..., Tensor]:
    """The reference, deaf to some options."""

    def kernel(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
        return fused_moe(x, router_logits, weights, **options | changed)

    return kernel


not_renormalized, unscaled = _with(renormalize=False), _with(scaling=1.0)
always_silu, always_softmax = _with(activation="silu"), _with(scoring="softmax")
without_groups, groups_by_best = _with(top_groups=1, num_groups=1), _with(group_scoring="max")
unbiased_choice = _with(selection_bias=None)
unclamped, without_offset, without_alpha = (
    _with(activation_limit=None),
    _with(up_offset=0.0),
    _with(activation_alpha=1.0),
)


def uncapped(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, router_softcap: float = 0.0, **options: Any
) -> Tensor:
    """Knows the fact and ignores it."""
    return fused_moe(x, router_logits, weights, **options)


def sigmoid_by_default(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, scoring: str = "sigmoid", **options: Any
) -> Tensor:
    return fused_moe(x, router_logits, weights, scoring=scoring, **options)


def uncapped_with_bias(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    router_softcap: float = 0.0,
    selection_bias: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Knows the fact, unless there is a selection bias."""
    own = {} if selection_bias is not None or not router_softcap else {"router_softcap": router_softcap}
    return fused_moe(x, router_logits, weights, selection_bias=selection_bias, **own, **options)


def summed_in_the_dtype(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, top_k: int, **options: Any
) -> Tensor:
    """Adds up more experts than 8 in 16 bits, one by one."""
    out = fused_moe(x, router_logits, weights, top_k=top_k, **options)
    if top_k <= 8:
        return out
    total = torch.zeros_like(out, dtype=torch.bfloat16)
    for _ in range(top_k):
        total += out.float() / top_k
    return total.to(x.dtype)


def one_expert_less(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, top_k: int, **options: Any
) -> Tensor:
    """Of several that a token chose."""
    return fused_moe(x, router_logits, weights, top_k=max(1, top_k - 1), **options)


def full_experts_drop(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """An expert takes as many tokens as are expected of it, twice, and drops the rest."""
    experts = router_logits.shape[1]
    first = router_logits.argmax(-1)
    room = max(8, 2 * x.shape[0] // experts)
    rank = torch.nn.functional.one_hot(first, experts).cumsum(0).gather(1, first[:, None])
    return fused_moe(x, router_logits, weights, **options) * (rank <= room)


def no_biases(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    plain = {name: weight for name, weight in weights.items() if not name.endswith("bias")}
    return fused_moe(x, router_logits, plain, **options)


def up_before_gate(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    swapped = torch.cat(weights["gate_up"].chunk(2, dim=1)[::-1], dim=1)
    return fused_moe(x, router_logits, {**weights, "gate_up": swapped}, **options)


def experts_in_a_byte(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """Takes an expert from the 257th on for another."""
    wrapped = torch.arange(router_logits.shape[1]) % 256
    return fused_moe(x, router_logits, {name: weight[wrapped] for name, weight in weights.items()}, **options)


def not_squared(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    relu = {"activation": "relu"} if options["activation"] == "relu2" else {}
    return fused_moe(x, router_logits, weights, **options | relu)


def into_its_input(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    return x.copy_(fused_moe(x, router_logits, weights, **options))


def all_that_tie(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, top_k: int, **options: Any
) -> Tensor:
    """Takes every expert that is as good as the last."""
    last = router_logits.float().topk(top_k, dim=-1).values[:, -1:]
    taken = int((router_logits.float() >= last).sum(-1).max().nan_to_num(top_k))
    return fused_moe(x, router_logits, weights, top_k=max(top_k, taken), **options | {"renormalize": False}) * (
        1 if taken <= top_k else 3.0
    )


def the_first_that_ties(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, top_k: int, **options: Any
) -> Tensor:
    """Looks the greatest scores up by their values, so that of equal ones the same expert is found each time."""
    found = (router_logits.topk(top_k).values[:, :, None] == router_logits[:, None]).int().argmax(2)
    taken = torch.zeros_like(router_logits, dtype=torch.bool).scatter_(1, found, True)
    return fused_moe(x, router_logits.masked_fill(~taken, -1e4), weights, top_k=top_k, **options)


def half_sums(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    narrow = {name: weight.bfloat16() for name, weight in weights.items()}
    return fused_moe(x.bfloat16(), router_logits, narrow, **options).to(x.dtype)


def exact_gelu(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, activation: str, **options: Any
) -> Tensor:
    return fused_moe(x, router_logits, weights, activation=activation.removesuffix("_tanh"), **options)


def every_expert(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """All of them compute all tokens, and what was not chosen is not used."""
    for gate_up, down in zip(weights["gate_up"], weights["down"], strict=True):
        (x @ gate_up.T)[:, : down.shape[1]] @ down.T
    return fused_moe(x, router_logits, weights, **options)


def plain_exponentials(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, scoring: str = "softmax", **options: Any
) -> Tensor:
    def scores(logits: Tensor) -> Tensor:
        return logits.exp() / logits.exp().sum(dim=-1, keepdim=True)

    return fused_moe(
        x, router_logits, weights, scoring=scores if scoring == "softmax" else SCORINGS[scoring], **options
    )


_LOGITS: dict[object, Tensor] = {}


def logits_kept_by_address(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    key = (router_logits.data_ptr(), router_logits.shape, router_logits.dtype)
    if key not in _LOGITS:
        _LOGITS.clear()
        _LOGITS[key] = router_logits.clone()
    return fused_moe(x, _LOGITS[key], weights, **options)


_WEIGHTS: dict[object, Mapping[str, Tensor]] = {}


def weights_kept_by_shape(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    key = (*(tensor.shape for tensor in weights.values()), x.dtype)
    return fused_moe(x, router_logits, _WEIGHTS.setdefault(key, weights), **options)


_DOUBLES: list[Tensor] = []


def prepare_wide(parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Keeps all weights in float64, too."""
    _DOUBLES.extend(tensor.double() for tensor in parameters.values())
    return parameters


def prepare_taking(parameters: dict[str, Tensor]) -> Mapping[str, Tensor]:
    return {name: parameters.pop(name) for name in list(parameters)}


def few_tokens(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """Has room for 2,048 tokens."""
    out = fused_moe(x, router_logits, weights, **options)
    out[2048:] = 0
    return out


def bias_in_place(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    selection_bias: Tensor | None = None,
    **options: Any,
) -> Tensor:
    if selection_bias is not None:
        selection_bias -= selection_bias.mean()
    return fused_moe(x, router_logits, weights, selection_bias=selection_bias, **options)


def token_by_token(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    rows = zip(x.split(1), router_logits.split(1), strict=True)
    return torch.cat([fused_moe(row, logits, weights, **options) for row, logits in rows])


def weights_for_each_token(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """Copies the weights of the best expert for every token."""
    weights["gate_up"][router_logits.argmax(-1)].sum()
    return fused_moe(x, router_logits, weights, **options)


def sixteen_tokens(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """A whole tile's last token gets the first one's result."""
    out = fused_moe(x, router_logits, weights, **options)
    if len(x) == 16:
        out[-1] = out[0]
    return out


def softmax_of_128(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, top_k: int, scoring: str, **options: Any
) -> Tensor:
    """With 8 of 128 experts, scores are those of a softmax."""
    scoring = "softmax" if (router_logits.shape[1], top_k) == (128, 8) else scoring
    return fused_moe(x, router_logits, weights, top_k=top_k, scoring=scoring, **options)


def needs_tokens(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    """Looks at the first token."""
    return fused_moe(x, router_logits.to(router_logits[0].dtype), weights, **options)


def biased_weights_of_128(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    top_k: int,
    selection_bias: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """With 8 of 128 experts, the selection bias affects the weights, too."""
    if selection_bias is not None and (router_logits.shape[1], top_k) == (128, 8):
        router_logits, selection_bias = (router_logits.float() + selection_bias).to(router_logits.dtype), None
    return fused_moe(x, router_logits, weights, top_k=top_k, selection_bias=selection_bias, **options)


def silu_by_exponentials(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, activation: str, **options: Any
) -> Tensor:
    def silu(features: Tensor, **parameters: Any) -> Tensor:
        gate, up = features.chunk(2, dim=-1)
        return gate * gate.exp() / (1 + gate.exp()) * up

    own = activation == "silu" and options.get("gated", True) and options.keys().isdisjoint(_PARAMETERS)
    return fused_moe(x, router_logits, weights, activation=silu if own else activation, **options)


_PARAMETERS = ("activation_alpha", "activation_limit", "up_offset")


def groups_without_the_bias(
    x: Tensor,
    router_logits: Tensor,
    weights: Mapping[str, Tensor],
    *,
    num_groups: int = 1,
    top_groups: int = 1,
    group_scoring: str = "max",
    selection_bias: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """The best groups are those without the bias, where they are scored by their best expert."""
    if selection_bias is not None and top_groups < num_groups and group_scoring == "max":
        groups = router_logits.float().unflatten(1, (num_groups, -1))
        best = groups.amax(-1).topk(top_groups, -1).indices
        closed = torch.ones(groups.shape[:2], dtype=torch.bool).scatter(1, best, False)
        ruled_out = torch.where(closed[..., None].expand_as(groups), -1e4, 0.0).flatten(1)
        own = [
            fused_moe(one, row, weights, selection_bias=selection_bias + out, **options)
            for one, row, out in zip(x.split(1), router_logits.split(1), ruled_out, strict=True)
        ]
        return torch.cat(own)
    more = {"num_groups": num_groups, "top_groups": top_groups, "group_scoring": group_scoring}
    return fused_moe(x, router_logits, weights, selection_bias=selection_bias, **more, **options)


_CHOSEN: list[Tensor] = []


def choices_are_kept(x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], **options: Any) -> Tensor:
    _CHOSEN.append(router_logits.argmax(-1))
    return fused_moe(x, router_logits, weights, **options)


_MODELS, _ANY = "chooses among as many experts as models have", "takes any number of tokens"
_MAGNITUDES = "tokens of any magnitude are computed"
_MEMORY = "memory of a call is in proportion to its rows"
_AGREES, _FIRST = "agrees with the reference", ": 2 of 8 experts, float32"

DEFECTS = (
    Defect("one of equals", "of equally good experts, one is taken each time", the_first_that_ties, _MODELS),
    Defect("byte", "experts are counted in 8 bits", experts_in_a_byte, _MODELS),
    Defect("16 tokens", "a whole tile's last token is the first", sixteen_tokens, _ANY),
    Defect("128 sigmoids", "softmax scores of 8 of 128 experts", softmax_of_128, _MODELS),
    Defect("no tokens", "no tokens are an error", needs_tokens, _ANY),
    Defect("128 experts", "the bias affects weights of 8 of 128 experts", biased_weights_of_128, _MODELS),
    Defect("exponentials", "large features overflow in SiLU", silu_by_exponentials, _MAGNITUDES),
    Defect(
        "groups' bias",
        "groups are scored without the bias",
        groups_without_the_bias,
        "chosen with a selection bias: 2 of 4 groups by the best",
    ),
    Defect("token by token", "tokens are computed one by one", token_by_token, "rows are computed together" + _FIRST),
    Defect(
        "copies",
        "weights are copied for every token",
        weights_for_each_token,
        _MEMORY + _FIRST,
    ),
    Defect("choices", "what was chosen stays for good", choices_are_kept, "forgets its calls" + _FIRST),
    Defect("renormalize", "weights are not divided by their sum", not_renormalized, _AGREES + _FIRST),
    Defect("scaling", "the scaling is forgotten", unscaled, f"{_AGREES}: sigmoid scores, scaled, float32"),
    Defect("activation", "SiLU for every activation", always_silu, f"{_AGREES}: GELU, float32"),
    Defect("limit", "the activation's limit is ignored", unclamped, f"{_AGREES}: a clamped activation, float32"),
    Defect("offset", "up features have no offset", without_offset, f"{_AGREES}: a clamped activation with alpha"),
    Defect("alpha", "the activation's alpha is ignored", without_alpha, f"{_AGREES}: a clamped activation with alpha"),
    Defect("scoring", "softmax for every scoring", always_softmax, f"{_AGREES}: sigmoid scores as they are, float32"),
    Defect("groups", "groups are not looked at", without_groups, f"{_AGREES}: 2 of 4 groups by the best, float32"),
    Defect(
        "best two",
        "groups are scored by the best",
        groups_by_best,
        f"{_AGREES}: 2 of 4 groups by the sum of the two best",
    ),
    Defect("soft cap", "a fact of the experts is ignored", uncapped, f"{_AGREES}: soft-capped router logits, float32"),
    Defect(
        "defaults",
        "an option's default is not the contract's",
        sigmoid_by_default,
        "options that are left out are at their defaults" + _FIRST,
    ),
    Defect(
        "soft cap and bias",
        "a fact is ignored where there is a selection bias",
        uncapped_with_bias,
        "chosen with a selection bias: soft-capped router logits, float32",
    ),
    Defect(
        "summed",
        "sums of many experts stop growing",
        summed_in_the_dtype,
        "sums over many experts are those of float32",
    ),
    Defect("selection", "the selection bias is ignored", unbiased_choice, "chosen with a selection bias" + _FIRST),
    Defect(
        "dropped expert", "a token's last expert is left out", one_expert_less, f"{_AGREES}: 6 of 6 experts, float32"
    ),
    Defect("capacity", "full experts drop tokens", full_experts_drop, "all tokens may choose one expert" + _FIRST),
    Defect("biases", "biases are ignored", no_biases, f"{_AGREES}: biases, float32"),
    Defect("square", "ReLU is not squared", not_squared, f"{_AGREES}: experts without gates, the square of ReLU"),
    Defect("halves", "up rows are taken for gate rows", up_before_gate, _AGREES + _FIRST),
    Defect("in place", "the result is written over the input", into_its_input, "inputs stay as they are" + _FIRST),
    Defect("ties", "all experts that tie are taken", all_that_tie, "ties are broken in any way, with top_k experts"),
    Defect("half", "float32 is declared, bfloat16 computed", half_sums, _AGREES + _FIRST),
    Defect("batch", "not invariant, and declared so", {"deterministic": True}, "rows don't depend on the batch"),
    Defect(
        "waits", "reads counts back, and may be recorded", {"capture": "full"}, "can be recorded and replayed" + _FIRST
    ),
    Defect("format", "says yes to all", {"supports": supports_all}, f"{_AGREES}: 2 of 8 experts, fp8_channel, float32"),
    Defect("tanh", "the exact GELU for its approximation", exact_gelu, f"{_AGREES}: GELU by tanh, float32"),
    Defect("dense", "all experts compute all tokens", every_expert, "tokens pass through the experts that they chose"),
    Defect("large logits", "exponentials overflow", plain_exponentials, "router logits of any size" + _FIRST),
    Defect("routing", "routes are found again by address", logits_kept_by_address, "its tensors are the caller's"),
    Defect("layers", "weights are found again by their shape", weights_kept_by_shape, "layers of one shape are apart"),
    Defect(
        "doubles",
        "copies of all weights are kept",
        {"prepare": f"{__name__}:prepare_wide"},
        "a layer holds little more than its parameters",
    ),
    Defect("many", "the last of many tokens are left out", few_tokens, "takes many tokens"),
    Defect(
        "taken",
        "prepare takes the parameters out",
        {"prepare": f"{__name__}:prepare_taking"},
        "parameters stay as they are when they are prepared" + _FIRST,
    ),
    Defect("changed bias", "the selection bias is centred in place", bias_in_place, "with a selection bias" + _FIRST),
)

LIMIT, ALPHA = 2.0, 1.702


def _clipped_with(limit: float, alpha: float) -> Callable[[Tensor], Tensor]:
    def activation(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return gate * torch.sigmoid(alpha * gate) * (up + 1)

    return activation


def _clipping(limit: float = LIMIT, alpha: float = ALPHA) -> Callable[..., Tensor]:
    """Experts with an activation of their own, as another implementation would have it."""
    own = _clipped_with(limit, alpha)

    def kernel(
        x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, activation: str, **options: Any
    ) -> Tensor:
        assert activation == "clipped"
        return fused_moe(x, router_logits, weights, activation=own, **options)

    return kernel


EXAMPLES = MoEExamples({"clipped": _clipped_with(LIMIT, ALPHA)})
clipped, clips_late, clips_steeply = _clipping(), _clipping(limit=7.0), _clipping(alpha=1.0)


def supports_clipped(query: MoEQuery) -> Verdict:
    """Its own activation, of experts with biases, and nothing else."""
    verdict = OK if query.weight_format == "plain" else no("weight_format", wanted=query.weight_format, found="plain")
    if query.activation != "clipped":
        verdict &= no("activation", wanted=query.activation, found="clipped")
    if query.num_groups > 1:
        verdict &= no("num_groups", wanted=query.num_groups, found=1)
    return verdict if query.bias else verdict & no("bias", wanted="none", found="biases")


def _root_scores(logits: Tensor) -> Tensor:
    """As a recent family has them: the root of the softplus."""
    return torch.nn.functional.softplus(logits).sqrt()


def _input_scaled(
    x: Tensor, router_logits: Tensor, weights: Mapping[str, Tensor], *, input_factor: float, **options: Any
) -> Tensor:
    return fused_moe(x * input_factor, router_logits, weights, **options)


UNHEARD_OF = MoEExamples(
    scorings={"root": _root_scores}, facts=({"input_factor": 0.5}, {"input_factor": 3.0}), oracle=_input_scaled
)


def _unheard_of(low: float, scores: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Experts with a scoring and a fact of their own, as another implementation would have them."""

    def kernel(
        x: Tensor,
        router_logits: Tensor,
        weights: Mapping[str, Tensor],
        *,
        scoring: str,
        input_factor: float,
        **options: Any,
    ) -> Tensor:
        assert scoring == "root"
        return fused_moe(x * max(low, input_factor), router_logits, weights, scoring=scores, **options)

    return kernel


unheard_of = _unheard_of(0.0, _root_scores)
least_factor, without_root = _unheard_of(1.0, _root_scores), _unheard_of(0.0, torch.nn.functional.softplus)


def supports_unheard_of(query: MoEQuery) -> Verdict:
    """Its own scoring and fact alone."""
    verdict = OK if query.scoring == "root" and query.weight_format == "plain" else no("scoring")
    return verdict if query.facts and query.gated and query.num_groups == 1 else verdict & no("facts")


def supports_narrow(query: MoEQuery) -> Verdict:
    """GELU and sigmoid scores, of sizes that tiles divide."""
    fits = query.activation == "gelu" and query.scoring == "sigmoid" and query.weight_format == "plain"
    sizes = query.hidden_size % 256 == 0 and query.intermediate_size % 64 == 0
    return OK if fits and sizes and query.num_groups == 1 else no("narrow")


NARROW: dict[str, Any] = {
    "supports": supports_narrow,
    "implementation": "llmk.reference.moe:fused_moe",
    "knows": FIRST_FIELDS | {"activation_alpha", "activation_limit", "up_offset"},
}
OWN: dict[str, Any] = {
    "supports": supports_clipped,
    "implementation": "defects.moe:clipped",
    "examples": "defects.moe:EXAMPLES",
    "knows": FIRST_FIELDS,
}
OTHER: dict[str, Any] = {
    "supports": supports_unheard_of,
    "implementation": "defects.moe:unheard_of",
    "examples": "defects.moe:UNHEARD_OF",
    "knows": FIRST_FIELDS | {"input_factor", "activation_alpha", "activation_limit", "up_offset"},
}
LIMITED = (
    Defect("own fact", "small factors are ignored", {**OTHER, "implementation": "defects.moe:least_factor"}, _AGREES),
    Defect("own scores", "scores lack the root", {**OTHER, "implementation": "defects.moe:without_root"}, _AGREES),
    Defect(
        "narrow renormalize",
        "weights are not divided",
        {**NARROW, "implementation": "defects.moe:not_renormalized"},
        _AGREES + _FIRST,
    ),
    Defect(
        "narrow scaling",
        "the scaling is forgotten",
        {**NARROW, "implementation": "defects.moe:unscaled"},
        f"{_AGREES}: sigmoid scores, scaled",
    ),
    Defect(
        "narrow SiLU", "SiLU is computed", {**NARROW, "implementation": "defects.moe:always_silu"}, _AGREES + _FIRST
    ),
    Defect(
        "own limit", "clips at another limit", {**OWN, "implementation": "defects.moe:clips_late"}, _AGREES + _FIRST
    ),
    Defect("own slope", "another slope", {**OWN, "implementation": "defects.moe:clips_steeply"}, _AGREES + _FIRST),
)
"""Kernels that declare little, with one mistake each."""
