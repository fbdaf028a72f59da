"""Ops with one mistake each, which real engines had. Each comes with the good op whose spec it takes over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from defects import Defect
from llmk.api import OK, CacheStep, Verdict, no
from llmk.reference import activations, adapters, batch, embedding, norms
from llmk.reference.attention.compressed import compressed_attention, select_entries
from llmk.reference.attention.selected import select_tokens, selected_attention
from llmk.reference.composites import make_qk_norm_rope_attention, make_qk_norm_rope_write_kv
from llmk.reference.norm_linear import make_add_rms_norm_linear, make_add_rms_norm_router
from llmk.reference.recurrent.causal_conv import causal_conv
from llmk.reference.recurrent.mixers import (
    make_gated_delta_net,
    make_lightning_attention,
    make_state_space_mixer,
)
from llmk.reference.recurrent.selective_scan import selective_scan
from llmk.reference.recurrent.short_conv import short_conv
from llmk.reference.rope import rotation as rope
from llmk.reference.sampling import sample as sampling


def norm_in_half(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    narrow = x.half()
    return (weight * (narrow * torch.rsqrt(narrow.square().mean(-1, keepdim=True) + eps))).to(x.dtype)


def silu_row_by_row(x: Tensor) -> Tensor:
    return torch.stack([activations.silu_and_mul(row) for row in x])


def norm_of_all_pairs(x: Tensor, weight: Tensor, eps: float, **offset: float) -> Tensor:
    """Compares each row with each other one."""
    return norms.rms_norm(x.expand(len(x), *x.shape).clone()[0], weight, eps, **offset)


_SCRATCH: dict[object, Tensor] = {}


def norm_in_kept_memory(x: Tensor, weight: Tensor, eps: float, **offset: float) -> Tensor:
    kept = _SCRATCH.setdefault((x.shape, x.dtype), torch.empty_like(x)).copy_(x)
    return norms.rms_norm(kept, weight, eps, **offset)


def norm_without_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return norms.rms_norm(x, torch.ones_like(weight), eps)


def norm_without_offset(x: Tensor, weight: Tensor, eps: float, **offset: float) -> Tensor:
    return norms.rms_norm(x, weight, eps)


def layer_norm_not_centered(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, **offset: float
) -> Tensor:
    normed = norms.rms_norm(x, torch.ones(x.shape[-1]) if weight is None else weight, eps, **offset)
    return normed if bias is None else normed + bias


def layer_norm_without_bias(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, **offset: float
) -> Tensor:
    return norms.layer_norm(x, weight, None, eps, **offset)


def make_add_layer_norm_of_the_residual(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Norms the residual, not the sum."""

    def op(x: Tensor, residual: Tensor, *norm: Any, **options: Any) -> tuple[Tensor, Tensor]:
        _, total = norms.make_add_layer_norm(parts)(x, residual, *norm, **options)
        options.pop("residual_multiplier", None)
        return parts["layer_norm"](residual, *norm, **options), total

    return op


def norm_by_the_batch(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One mean for all rows."""
    return weight * (x * torch.rsqrt(x.square().mean() + eps))


def norm_by_the_number(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Of many rows, by another algorithm."""
    if len(x) < 256:
        return norms.rms_norm(x, weight, eps)
    return norms.rms_norm(x.double(), weight.double(), eps * (1 + 1e-3)).to(x.dtype)


def norm_of_even_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Two rows per program."""
    out, kept = torch.empty_like(x), max(1, x.shape[0] // 2 * 2)
    out[:kept] = norms.rms_norm(x[:kept], weight, eps)
    return out


def norm_of_the_usual_eps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return norms.rms_norm(x, weight, 1e-6)


def norm_of_matrices(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Heads that are cut from a packed projection are no view."""
    return norms.rms_norm(x.view(-1, x.shape[-1]), weight, eps).view(x.shape)


def norm_of_scaled_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Divides by the largest element, be it zero."""
    most = x.abs().amax(-1, keepdim=True)
    wide = (x / most).float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps / most.square())).to(x.dtype)


def norm_by_one(x: Tensor, weight: Tensor, eps: float, *, norm_offset: float = 0.0) -> Tensor:
    """Adds one to the weight where the model adds anything."""
    return norms.rms_norm(x, weight, eps, norm_offset=float(norm_offset != 0))


def supports_even_sizes(query: Any) -> Verdict:
    """Asks for a fact that norms that are parts of attention lack."""
    return OK if query.facts["size"] % 2 == 0 else no("size", wanted="an odd size", found="even sizes")


_RESULTS: dict[Any, Tensor] = {}
_KEPT: list[Tensor] = []
_WEIGHTS: dict[int, Tensor] = {}


def norm_into_one_result(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns the same tensor for all rows of one shape."""
    return _RESULTS.setdefault((x.shape, x.dtype), torch.empty_like(x)).copy_(norms.rms_norm(x, weight, eps))


def norm_of_a_kept_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Widens a weight once, and finds it by its address."""
    return norms.rms_norm(x, _WEIGHTS.setdefault(weight.data_ptr(), weight.clone()), eps)


def norm_that_keeps(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    _KEPT.append(x)
    return norms.rms_norm(x, weight, eps)


def halves_of_the_second_dimension(x: Tensor) -> Tensor:
    size = x.shape[-1] // 2
    return torch.nn.functional.silu(x[:, :size]) * x[:, size:]


def add_norm_in_place(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As kernels elsewhere do."""
    residual += x
    return norms.rms_norm(residual, weight, eps), residual


def add_norm_swapped(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return total, norms.rms_norm(total, weight, eps)


def residual_in_half(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = (x + residual).bfloat16()
    return norms.rms_norm(total.to(x.dtype), weight, eps), total.float()


def gate_after_up(x: Tensor) -> Tensor:
    up, gate = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def gelu_by_tanh(x: Tensor) -> Tensor:
    return activations.gelu_tanh_and_mul(x)


def xielu_of_raw_parameters(x: Tensor, alpha_p: Tensor, alpha_n: Tensor, beta: Tensor, eps: Tensor) -> Tensor:
    """Without their softplus."""
    wide = x.float()
    below = (torch.expm1(torch.minimum(wide, eps)) - wide) * (beta + alpha_n)
    return (torch.where(wide > 0, alpha_p * wide * wide, below) + beta * wide).to(x.dtype)


def rope_of_halves(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Whatever the site says."""
    options.pop("neighbours", None)
    return rope.rope(q, k, positions, cos_sin, **options)


def rope_of_neighbours(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    return rope.rope_interleaved(q, k, positions, cos_sin)


def rope_one_late(q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor) -> tuple[Tensor, Tensor]:
    return rope.rope(q, k, positions + 1, torch.cat((cos_sin, cos_sin[:1])))


def last_id_missing(ids: Tensor, weight: Tensor) -> Tensor:
    return embedding.embedding(ids.clamp(max=weight.shape[0] - 2), weight)


def sample_by_row(logits: Tensor, *controls: Any) -> Tensor:
    """Seeds by the row in the batch."""
    *others, seeds, positions = controls
    return sampling.sample(logits, *others, seeds + torch.arange(logits.shape[0]), positions)


def sample_without_top_p(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, *rest: Any) -> Tensor:
    return sampling.sample(logits, temperature, top_k, None, *rest)


def logprobs_of_ties(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, ...]:
    """Counts equals as likelier."""
    logprob, _, ids, top = sampling.logprobs(logits, token_ids, num_top)
    chosen = logits.float().gather(1, token_ids[:, None])
    return logprob, (logits.float() >= chosen).sum(-1), ids, top


def penalties_of_prompts(
    logits: Tensor, rows: Tensor, tokens: Tensor, slots: Tensor, prompts: Tensor, *rest: Any
) -> Tensor:
    """Counts the prompt as output."""
    return sampling.apply_penalties(logits, rows, tokens, slots, torch.zeros_like(prompts), *rest)


def bias_once(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    """Of several for one token, the last."""
    return logits.index_put_((rows, ids), logits[rows, ids] + values)


def bias_on_a_copy(logits: Tensor, rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    return sampling.apply_bias(logits.clone(), rows, ids, values)


def accept_without_taking_back(tokens: Tensor, computed: Tensor, *rest: Any) -> Tensor:
    return batch.accept_drafts(tokens, computed.clone(), *rest)


def mask_by_order(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """The first masks are for the first rows."""
    return sampling.apply_mask(logits, torch.arange(rows.shape[0], device=rows.device), bits)


def mask_without_last_word(logits: Tensor, rows: Tensor, bits: Tensor) -> Tensor:
    """A vocabulary has whole words of tokens."""
    whole = logits.shape[1] // 32
    sampling.apply_mask(logits[:, : 32 * whole], rows, bits[:, :whole])
    return logits


def adapters_of_the_first_token(y: Tensor, x: Tensor, index: Tensor, *rest: Any) -> Tensor:
    return adapters.add_adapters(y, x, index[:1].expand_as(index), *rest)


def adapter_for_none(y: Tensor, x: Tensor, index: Tensor, a: Tensor, *rest: Any) -> Tensor:
    """-1 is the last adapter, to Python."""
    return adapters.add_adapters(y, x, index % a.shape[0], a, *rest)


def one_matrix_for_all_parts(y: Tensor, x: Tensor, index: Tensor, a: Tensor, *rest: Any) -> Tensor:
    return adapters.add_adapters(y, x, index, a[:, :1].expand_as(a), *rest)


def adapters_unscaled(
    y: Tensor, x: Tensor, index: Tensor, a: Tensor, b: Tensor, scale: Tensor, sizes: tuple[int, ...]
) -> Tensor:
    return adapters.add_adapters(y, x, index, a, b, torch.ones_like(scale), sizes)


def adapters_on_a_copy(y: Tensor, *rest: Any) -> Tensor:
    return adapters.add_adapters(y.clone(), *rest)


def append_padding(tokens: Tensor, computed: Tensor, slots: Tensor, sampled: Tensor) -> None:
    """-1 is the last slot, to Python."""
    tokens[slots, computed[slots]] = sampled.to(tokens.dtype)


def uncounted(tokens: Tensor, computed: Tensor, *rest: Any) -> Any:
    """Doesn't advance ``computed``."""
    return batch.build_step(tokens, computed.clone(), *rest)


def state_of_the_last_request(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor, step: CacheStep, **options: Any
) -> Tensor:
    """Begins new requests with what their block holds."""
    cache.nan_to_num_(0.5)
    return causal_conv(x, weight, bias, cache, step, **options)


def no_snapshots(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor, step: CacheStep, **options: Any
) -> Tensor:
    """Keeps a request's last state alone, not that of blocks that were filled on the way."""
    before = cache.clone()
    out = causal_conv(x, weight, bias, cache, step, **options)
    last = step.block_table.gather(1, ((step.seq_lens - 1) // step.block_size)[:, None].long()).flatten().long()
    before[last] = cache[last]
    cache.copy_(before)
    return out


def drafts_in_the_state(
    x: Tensor, weight: Tensor, bias: Tensor | None, cache: Tensor, step: CacheStep, **options: Any
) -> Tensor:
    """Stores the state after the last token, whether it is a draft or not."""
    return causal_conv(x, weight, bias, cache, replace(step, tails=None), **options)


def make_forgotten_drafts(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Leaves accepted drafts out of the state."""
    good = make_state_space_mixer(parts)

    def mixer(*arguments: Any, **options: Any) -> Tensor:
        *rest, step = arguments
        if step.tails is not None:
            step = replace(step, tails=replace(step.tails, accepted=torch.zeros_like(step.tails.accepted)))
        return good(*rest, step, **options)

    return mixer


def make_gated_first(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Gates before the norm, whatever the site's facts say."""
    good = make_state_space_mixer(parts)
    return lambda *arguments, **options: good(*arguments)


def make_one_decay_per_head(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Takes the first element's decay for all of a head's."""
    good = make_gated_delta_net(parts)

    def net(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, a: Tensor, *arguments: Any, **options: Any) -> Tensor:
        return good(q, k, v, gate, a[..., :1].expand_as(a) if a.dim() == 4 else a, *arguments, **options)

    return net


def make_unbounded_decays(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Forgets that decays have a bound."""
    good = make_gated_delta_net(parts)
    return lambda *arguments, decay_bound=None, **options: good(*arguments, **options)


def make_lightning_without_decay(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Keeps all of the state."""
    good = make_lightning_attention(parts)
    return lambda q, k, v, decay, *arguments: good(q, k, v, torch.zeros_like(decay), *arguments)


def select_by_equal_heads(q: Tensor, k: Tensor, weights: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Gives all heads the same weight."""
    return select_tokens(q, k, torch.ones_like(weights), *arguments, **options)


def attend_to_the_first(query: Tensor, row: Tensor, selected: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Takes -1 for the first token."""
    return selected_attention(query, row, selected.clamp(min=0), *arguments, **options)


def select_entries_by_equal_heads(q: Tensor, weights: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Gives all heads the same weight."""
    return select_entries(q, torch.ones_like(weights), *arguments, **options)


def attend_without_sinks(*arguments: Any, **options: Any) -> Tensor:
    """Leaves the sinks out of the softmax."""
    *given, sinks, caches, step = arguments
    return compressed_attention(*given, torch.full_like(sinks, float("-inf")), caches, step, **options)


def attend_to_a_narrow_window(*arguments: Any, window: int, **options: Any) -> Tensor:
    """Does not count the token itself."""
    return compressed_attention(*arguments, window=window - 1, **options)


def conv_gated_once(x: Tensor, *arguments: Any, gated: bool = False, **options: Any) -> Tensor:
    """Forgets the gate after the convolution."""
    if gated:
        before, _, x = x.chunk(3, dim=1)
        x = before * x
    return short_conv(x, *arguments, **options)


def scan_of_one_decay(x: Tensor, dt: Tensor, a: Tensor, *arguments: Any) -> Tensor:
    """Has one decay for each channel, as Mamba-2 has one for each head."""
    return selective_scan(x, dt, a[:, :1].expand_as(a), *arguments)


def scan_in_one_dtype(*arguments: Any) -> Tensor:
    """Computes in the dtype in which states are kept."""
    *inputs, cache, step = arguments
    if cache.dtype == torch.float32:
        return selective_scan(*inputs, cache, step)
    return selective_scan(*(values.to(cache.dtype) for values in inputs), cache, step).to(inputs[0].dtype)


def make_unnormed_queries(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Takes the keys' weight for both."""
    good = make_qk_norm_rope_write_kv(parts)
    return lambda q, k, v, q_weight, k_weight, *rest, **scaled: good(q, k, v, k_weight, k_weight, *rest, **scaled)


def make_norm_before_rope(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Whatever the site says."""
    good = make_qk_norm_rope_write_kv(parts)

    def op(*arguments: Any, **options: Any) -> Tensor:
        options.pop("norm_after_rope", None)
        return good(*arguments, **options)

    return op


def make_attention_before_write(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Attends, then writes: the newest token is not seen."""
    write, attend = parts["qk_norm_rope_write_kv"], parts["attention.run"]

    def op(*arguments: Any, **scaled: Any) -> Tensor:
        *given, cache, meta = arguments
        rotated = write(*given, cache.clone(), meta, **scaled)
        out: Tensor = attend(rotated, cache, meta, **scaled)
        make_qk_norm_rope_attention(parts)(*arguments, **scaled)
        return out

    return op


def make_write_of_whole_tiles(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., Tensor]:
    """Of a step of several tiles, tokens behind the last whole one stay as they are."""
    good = make_qk_norm_rope_write_kv(parts)

    def op(q: Tensor, *arguments: Any, **options: Any) -> Tensor:
        rotated = good(q, *arguments, **options)
        whole = len(q) // 512 * 512
        if whole:
            rotated[whole:] = q[whole:]
        return rotated

    return op


def make_residual_dropped(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Hands on what came, not the sum."""
    good = make_add_rms_norm_linear(parts)
    return lambda x, residual, *rest: (good(x, residual, *rest)[0], x)


def make_router_before_norm(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    """Hands the experts the sum, not what was normed."""
    good = make_add_rms_norm_router(parts)

    def op(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        logits, _, total = good(*arguments)
        return logits, total, total

    return op


def make_one_result(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Returns the same tensor for all rows of one shape."""
    good = make_add_rms_norm_linear(parts)

    def op(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        out, total = good(*arguments, **options)
        return _RESULTS.setdefault(("linear", out.shape, out.dtype), torch.empty_like(out)).copy_(out), total

    return op


def make_whole_tiles(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Leaves out what no whole tile of 1,024 outputs has."""
    good = make_add_rms_norm_linear(parts)

    def op(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        out, total = good(*arguments, **options)
        if (size := out.shape[-1]) > 2048:
            out[..., size // 1024 * 1024 :] = 0.0
        return out, total

    return op


def make_norm_of_large_rows(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Clamps what float16 would not hold."""
    good = make_add_rms_norm_linear(parts)
    return lambda x, *rest, **options: good(x.clamp(-100.0, 100.0), *rest, **options)


def make_linear_by_the_batch(parts: Mapping[str, Callable[..., Any]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Fills a tile with rows of the batch, whose sum is added and taken away again."""
    good = make_add_rms_norm_linear(parts)

    def op(*arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        out, total = good(*arguments, **options)
        every = out.sum(0)
        return (out + every) - every, total

    return op


def norm_of_whole_tiles(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Takes another way for a tile of exactly 16 rows, whose last one is wrong."""
    out = norms.rms_norm(x, weight, eps)
    if len(x) == 16:
        out[-1] = out[0]
    return out


def norm_that_needs_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Looks at the first row."""
    return norms.rms_norm(x, weight.to(x[0].dtype), eps)


def norm_of_few_rows(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rows are counted in 16 bits."""
    out = norms.rms_norm(x, weight, eps)
    out[1 << 16 :] = 0
    return out


def norm_of_a_block(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """One block of threads holds 8,192 elements of a row."""
    wide = x.float()
    most = wide[..., :8192].square().mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(most + eps)).to(x.dtype)


def silu_by_exponentials(x: Tensor, **options: Any) -> Tensor:
    if options:
        return activations.silu_and_mul(x, **options)
    gate, up = x.float().chunk(2, dim=-1)
    return (gate * gate.exp() / (1 + gate.exp()) * up).to(x.dtype)


def cap_of_gemma(x: Tensor, cap: float) -> Tensor:
    return activations.softcap(x, 30.0)


def short_ids(ids: Tensor, weight: Tensor) -> Tensor:
    return embedding.embedding(ids % (1 << 16), weight)


def logprobs_by_the_least(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, ...]:
    """Subtracts the least logit, which may be infinite."""
    wide = logits.float()
    return sampling.logprobs(wide - wide.amin(-1, keepdim=True), token_ids, num_top)


def penalties_of_every_token(logits: Tensor, rows: Tensor, tokens: Tensor, *rest: Any) -> Tensor:
    """Takes what stands for an embedding for the last token."""
    return sampling.apply_penalties(logits, rows, tokens.clamp(max=logits.shape[1] - 1), *rest)


_AGREES = "agrees with the reference"
_MANY = f"{_AGREES} on many tokens"
_STAYS = "results stay when"
_DEEP = "takes rows of any dimensions"

DEFECTS: tuple[tuple[str, Defect], ...] = (
    (
        "rms_norm",
        Defect(
            "size",
            "it asks each norm for its size",
            {"supports": supports_even_sizes},
            "supports is pure and answers every query",
        ),
    ),
    (
        "silu_and_mul",
        Defect("row by row", "rows are computed one by one", silu_row_by_row, "rows are computed together"),
    ),
    ("rms_norm", Defect("pairs", "memory is that of all pairs of rows", norm_of_all_pairs, "memory of a call")),
    ("rms_norm", Defect("kept", "a tensor stays of each shape", norm_in_kept_memory, "forgets its calls")),
    ("rms_norm", Defect("16 rows", "a whole tile's last row is the first", norm_of_whole_tiles, "takes any number")),
    ("rms_norm", Defect("none", "no rows are an error", norm_that_needs_rows, "takes no rows")),
    ("rms_norm", Defect("few", "rows are counted in 16 bits", norm_of_few_rows, "takes many rows")),
    ("rms_norm", Defect("block", "long rows are normed by a part", norm_of_a_block, f"{_AGREES}: size 16392")),
    ("silu_and_mul", Defect("exponentials", "large gates overflow", silu_by_exponentials, "takes rows of odd numbers")),
    ("softcap", Defect("cap", "the usual cap, not the given one", cap_of_gemma, _AGREES)),
    ("embedding", Defect("short ids", "ids are counted in 16 bits", short_ids, f"{_AGREES}: vocab_size 66001")),
    ("logprobs", Defect("ruled out", "what is ruled out makes all NaN", logprobs_by_the_least, _AGREES)),
    ("apply_penalties", Defect("embeddings", "count as the last token", penalties_of_every_token, _AGREES)),
    ("rms_norm", Defect("eps", "the usual eps, not the given one", norm_of_the_usual_eps, _AGREES)),
    ("rms_norm", Defect("packed", "heads of a packed projection are an error", norm_of_matrices, _DEEP)),
    ("rms_norm", Defect("zeros", "rows of zeros become NaN", norm_of_scaled_rows, "takes rows of odd numbers")),
    ("rms_norm", Defect("offset of one", "any offset is one", norm_by_one, "size 40, norm_offset 0.25")),
    ("rms_norm", Defect("one result", "results are overwritten", norm_into_one_result, "results stay when")),
    ("rms_norm", Defect("kept weight", "weights are found by address", norm_of_a_kept_weight, "results stay when")),
    ("rms_norm", Defect("keeps", "arguments are kept", norm_that_keeps, "keeps nothing of its calls")),
    ("silu_and_mul", Defect("second", "halves are of the second dimension", halves_of_the_second_dimension, _DEEP)),
    ("rms_norm", Defect("half", "float32 is declared, float16 computed", norm_in_half, _AGREES)),
    ("rms_norm", Defect("weight", "the weight is ignored", norm_without_weight, _AGREES)),
    (
        "rms_norm",
        Defect("offset", "what is added to the weight is ignored", norm_without_offset, f"{_AGREES}: size 72, norm_o"),
    ),
    ("rms_norm", Defect("batch", "a row is normed by all", norm_by_the_batch, "rows don't affect each other")),
    (
        "rms_norm",
        Defect("invariance", "a row's bits depend on all", norm_by_the_batch, "rows don't depend on the batch"),
    ),
    (
        "rms_norm",
        Defect("by number", "many rows have another algorithm", norm_by_the_number, "rows don't depend on the batch"),
    ),
    (
        "rms_norm",
        Defect("even", "the last of an odd number of rows is left out", norm_of_even_rows, f"{_AGREES}: size 128"),
    ),
    ("add_rms_norm", Defect("in place", "the residual is changed", add_norm_in_place, _AGREES)),
    ("add_rms_norm", Defect("swapped", "results come in another order", add_norm_swapped, _AGREES)),
    ("add_rms_norm_fp32_residual", Defect("residual", "the sum is rounded", residual_in_half, _AGREES)),
    ("layer_norm", Defect("mean", "the mean is not subtracted", layer_norm_not_centered, _AGREES)),
    ("layer_norm", Defect("bias", "the bias is ignored", layer_norm_without_bias, _AGREES)),
    ("add_layer_norm", Defect("addend", "the residual is normed alone", make_add_layer_norm_of_the_residual, _AGREES)),
    ("xielu", Defect("softplus", "parameters are used as stored", xielu_of_raw_parameters, _AGREES)),
    ("silu_and_mul", Defect("halves", "up is taken for gate", gate_after_up, _AGREES)),
    ("gelu_and_mul", Defect("tanh", "the other GELU", gelu_by_tanh, _AGREES)),
    ("rope", Defect("pairs", "neighbours are turned, not halves", rope_of_neighbours, _AGREES)),
    ("rope", Defect("neighbours", "halves are turned, not neighbours", rope_of_halves, f"{_AGREES}: num_heads 3")),
    ("rope", Defect("position", "positions are one too high", rope_one_late, _AGREES)),
    ("embedding", Defect("last id", "the last token's row is out of reach", last_id_missing, _AGREES)),
    ("sample", Defect("seed", "draws depend on the row's place", sample_by_row, "rows don't depend on the batch")),
    ("sample", Defect("top-p", "top-p is forgotten", sample_without_top_p, _AGREES)),
    ("logprobs", Defect("rank", "equals don't share a rank", logprobs_of_ties, _AGREES)),
    ("apply_penalties", Defect("prompt", "prompts count as output", penalties_of_prompts, _AGREES)),
    ("apply_bias", Defect("twice", "one of two biases is lost", bias_once, _AGREES)),
    ("apply_bias", Defect("copy", "what is to be changed in place is not", bias_on_a_copy, _AGREES)),
    ("apply_mask", Defect("mask rows", "masks go to other rows", mask_by_order, _AGREES)),
    ("apply_mask", Defect("last word", "tokens of the last word are not masked", mask_without_last_word, _AGREES)),
    ("add_adapters", Defect("tokens", "all have the first one's", adapters_of_the_first_token, _AGREES)),
    ("add_adapters", Defect("none", "tokens without adapter get the last one", adapter_for_none, _AGREES)),
    ("add_adapters", Defect("parts", "q's matrix is used for k and v", one_matrix_for_all_parts, f"{_AGREES}: in")),
    ("add_adapters", Defect("scale", "the scale is forgotten", adapters_unscaled, _AGREES)),
    ("add_adapters", Defect("adapters copy", "the layer's result stays", adapters_on_a_copy, _AGREES)),
    ("append_tokens", Defect("padding", "padding writes to the last slot", append_padding, _AGREES)),
    ("accept_drafts", Defect("rejected", "rejected drafts stay computed", accept_without_taking_back, _AGREES)),
    ("build_step", Defect("count", "tokens are not counted as computed", uncounted, _AGREES)),
    ("causal_conv", Defect("state", "new requests inherit a state", state_of_the_last_request, _AGREES)),
    ("causal_conv", Defect("snapshots", "full blocks are not kept", no_snapshots, _AGREES)),
    ("causal_conv", Defect("drafts", "states take in drafts", drafts_in_the_state, _AGREES)),
    ("state_space_mixer", Defect("accepted", "accepted drafts are forgotten", make_forgotten_drafts, _AGREES)),
    ("state_space_mixer", Defect("gating", "gates before the norm in any model", make_gated_first, _AGREES)),
    ("gated_delta_net", Defect("channels", "elements of a key decay alike", make_one_decay_per_head, _AGREES)),
    ("gated_delta_net", Defect("bound", "decays have no bound", make_unbounded_decays, f"{_AGREES}: num_heads")),
    ("lightning_attention", Defect("constant", "states don't decay", make_lightning_without_decay, _AGREES)),
    ("select_tokens", Defect("weights", "heads count alike", select_by_equal_heads, _AGREES)),
    ("selected_attention", Defect("nothing", "no token is taken for the first", attend_to_the_first, _AGREES)),
    ("select_entries", Defect("weights", "heads count alike", select_entries_by_equal_heads, _AGREES)),
    ("compressed_attention", Defect("sinks", "sinks take no part", attend_without_sinks, _AGREES)),
    ("compressed_attention", Defect("window", "the window is narrow", attend_to_a_narrow_window, _AGREES)),
    ("short_conv", Defect("gate", "the second gate is forgotten", conv_gated_once, _AGREES)),
    ("selective_scan", Defect("decays", "a channel has one decay", scan_of_one_decay, _AGREES)),
    ("selective_scan", Defect("narrow", "computes as states are kept", scan_in_one_dtype, _AGREES)),
    ("qk_norm_rope_write_kv", Defect("norms", "one weight norms queries and keys", make_unnormed_queries, _AGREES)),
    ("qk_norm_rope_write_kv", Defect("late norm", "norms come first", make_norm_before_rope, _AGREES)),
    ("qk_norm_rope_write_kv", Defect("whole tiles", "the last tile is left out", make_write_of_whole_tiles, _MANY)),
    ("qk_norm_rope_attention", Defect("order", "attends before it writes", make_attention_before_write, _AGREES)),
    ("add_rms_norm_linear", Defect("sum", "hands on the input, not the sum", make_residual_dropped, _AGREES)),
    ("add_rms_norm_linear", Defect("one result of a GEMM", "results are overwritten", make_one_result, _STAYS)),
    ("add_rms_norm_linear", Defect("tiles", "the last tile is left out", make_whole_tiles, f"{_AGREES}: 128 to 8200")),
    (
        "add_rms_norm_linear",
        Defect("large", "large numbers are clamped", make_norm_of_large_rows, "numbers 100 times as large: 512 to 256"),
    ),
    (
        "add_rms_norm_linear",
        Defect("GEMM of all", "a row's bits depend on all", make_linear_by_the_batch, "rows don't depend on the batch"),
    ),
    ("add_rms_norm_router", Defect("normed", "experts get the sum, not its norm", make_router_before_norm, _AGREES)),
)
"""The op, and what is wrong with it."""
