"""The functions of AITER that are called, as its repository declares them, and whether the installed AITER has them.

AITER's functions change between versions, and its builds don't always have a version that orders them. So the files of
the installed package are read, not imported: a kernel is refused where a function is missing or has other arguments.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from llmk.api import OK, Verdict, no


@dataclass(frozen=True, slots=True)
class Function:
    """A function, at the commit of ROCm/aiter where it was read: its arguments without annotations, ``given`` the
    keywords that it is called with."""

    module: str
    name: str
    commit: str
    arguments: str
    given: tuple[str, ...]


_QUANTIZED = ("out", "input", "yscale", "weight", "epsilon")
_LATENT = (
    *("q", "kv_buffer", "out", "cu_seqlens_q", "seqused_k", "max_seqlen_kv", "block_tables", "softmax_scale"),
    *("kv_lora_rank", "qk_rope_head_dim", "causal", "q_descale", "kv_descale"),
)
_NORMS, _CACHE, _MLA = "aiter.ops.rmsnorm", "aiter.ops.cache", "aiter.ops.triton.attention.mla"

FUNCTIONS = (
    Function(
        "aiter.ops.gemm_op_a8w8",
        "gemm_a8w8_blockscale",
        "0006ebde",
        "XQ, WQ, x_scale, w_scale, dtype=dtypes.bf16, isBpreshuffled=False",
        ("XQ", "WQ", "x_scale", "w_scale", "dtype", "isBpreshuffled"),
    ),
    Function(
        "aiter.tuned_gemm",
        "gemm_a16w16",
        "0584e04d",
        "A, B, bias=None, otype=None, scale_a=None, scale_b=None, scale_c=None",
        ("A", "B", "bias", "otype"),
    ),
    Function(
        _NORMS,
        "rmsnorm2d_fwd",
        "0bc300f7",
        "input, weight, epsilon, use_model_sensitive_rmsnorm=0",
        ("input", "weight", "epsilon"),
    ),
    Function(
        _NORMS,
        "rmsnorm2d_fwd_with_add",
        "0bc300f7",
        "out, input, residual_in, residual_out, weight, epsilon, gemma_norm=False, use_model_sensitive_rmsnorm=0",
        ("out", "input", "residual_in", "residual_out", "weight", "epsilon"),
    ),
    Function(
        _NORMS,
        "rmsnorm2d_fwd_with_dynamicquant",
        "0bc300f7",
        "out, input, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0, group_size=0, shuffle_scale=False",
        _QUANTIZED,
    ),
    Function(
        _NORMS,
        "rmsnorm2d_fwd_with_add_dynamicquant",
        "0bc300f7",
        "out, input, residual_in, residual_out, yscale, weight, epsilon, use_model_sensitive_rmsnorm=0,"
        " group_size=0, shuffle_scale=False",
        ("residual_in", "residual_out", *_QUANTIZED),
    ),
    Function(
        _CACHE,
        "reshape_and_cache_flash",
        "0590d9a9",
        "key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale",
        ("key", "value", "key_cache", "value_cache", "slot_mapping", "kv_cache_dtype", "k_scale", "v_scale"),
    ),
    Function(
        _CACHE,
        "concat_and_cache_mla",
        "0590d9a9",
        "kv_c, k_pe, kv_cache, slot_mapping, kv_cache_dtype, scale",
        ("kv_c", "k_pe", "kv_cache", "slot_mapping", "kv_cache_dtype", "scale"),
    ),
    Function(
        "aiter.ops.triton.fusions.fused_kv_cache",
        "fused_qk_rope_reshape_and_cache",
        "056c02dd",
        "q, k, v, key_cache, value_cache, slot_mapping, pos, cos, sin, k_scale, v_scale, is_neox, flash_layout,"
        " apply_scale=True, offs=None, q_out=None, k_out=None, output_zeros=True, zeros_out=None",
        (
            *("q", "k", "v", "key_cache", "value_cache", "slot_mapping", "pos", "cos", "sin", "k_scale", "v_scale"),
            *("is_neox", "flash_layout", "apply_scale", "q_out", "output_zeros"),
        ),
    ),
    Function(
        "aiter.ops.triton.attention.unified_attention",
        "unified_attention",
        "02c43589",
        "q, k, v, out, cu_seqlens_q, max_seqlen_q, seqused_k, max_seqlen_k, softmax_scale, causal, window_size,"
        " block_table, softcap, q_descale, k_descale, v_descale, q_scales=None, alibi_slopes=None, output_scale=None,"
        " qq_bias=None, sinks=None, shuffled_kv_cache=False, skip_reduce=False, backend=None",
        (
            *("q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "softmax_scale"),
            *("causal", "window_size", "block_table", "softcap", "q_descale", "k_descale", "v_descale", "sinks"),
        ),
    ),
    Function(
        _MLA,
        "mla_decode_fwd",
        "2038b2df",
        "q, kv_buffer, out, cu_seqlens_q, seqused_k, max_seqlen_kv, block_tables, softmax_scale, kv_lora_rank,"
        " qk_rope_head_dim, causal, q_descale, kv_descale, q_scales=None, out_scale=None, shuffled_kv_cache=False,"
        " skip_reduce=False",
        _LATENT,
    ),
    Function(
        _MLA,
        "mla_prefill_fwd",
        "2038b2df",
        "q, kv_buffer, out, cu_seqlens_q, seqused_k, max_seqlen_kv, block_tables, softmax_scale, kv_lora_rank,"
        " qk_rope_head_dim, causal, q_descale, kv_descale, out_scale=None, shuffled_kv_cache=False",
        _LATENT,
    ),
    Function(
        "aiter.fused_moe",
        "fused_moe",
        "00062184",
        "hidden_states, w1, w2, topk_weight, topk_ids, expert_mask=None, activation=ActivationType.Silu,"
        " quant_type=QuantType.No, doweight_stage1=False, w1_scale=None, w2_scale=None, a1_scale=None, a2_scale=None,"
        " block_size_M=None, num_local_tokens=None, moe_sorting_dispatch_policy=0, dtype=None, hidden_pad=0,"
        " intermediate_pad=0, bias1=None, bias2=None, splitk=0",
        (
            *("hidden_states", "w1", "w2", "topk_weight", "topk_ids", "activation", "quant_type"),
            *("w1_scale", "w2_scale"),
        ),
    ),
    Function(
        "aiter.ops.shuffle",
        "shuffle_weight",
        "0122c481",
        "x, layout=(16, 16), use_int4=False, is_guinterleave=False, gate_up=False",
        ("x", "layout"),
    ),
)


@cache
def installed(*names: str) -> Verdict:
    """Whether the installed AITER has these functions with the arguments that they are called with; ``OK`` where none
    is installed, which is for ``Needs.packages`` to say."""
    spec = find_spec("aiter")
    if spec is None or not spec.submodule_search_locations:
        return OK
    folder = Path(spec.submodule_search_locations[0])
    verdict = OK
    for function in FUNCTIONS:
        if function.name in names:
            verdict &= _compare(function, folder)
    return verdict


def _compare(function: Function, folder: Path) -> Verdict:
    wanted = f"{function.module}.{function.name}({', '.join(function.given)})"
    hint = f"build AITER at commit {function.commit} or near it, from https://github.com/ROCm/aiter"
    file = folder.joinpath(*function.module.split(".")[1:]).with_suffix(".py")
    declared = _declared(file, function.name)
    if declared is None:
        found = "no such function" if file.exists() else "no such module"
        return no("function_missing", wanted=wanted, found=found, hint=hint)
    every, required = declared
    if set(function.given) <= every and required <= set(function.given):
        return OK
    return no("function_differs", wanted=wanted, found=f"({', '.join(sorted(every))})", hint=hint)


def _declared(file: Path, name: str) -> tuple[set[str], set[str]] | None:
    """The arguments of a module's function that keywords can give, and those without a default."""
    try:
        module = ast.parse(file.read_text())
    except (OSError, SyntaxError, ValueError):
        return None
    found = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        return None
    given = found[-1].args
    ordered = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    by_name = [argument.arg for argument in given.kwonlyargs]
    without = ordered[: len(ordered) - len(given.defaults)]
    without += [name for name, default in zip(by_name, given.kw_defaults, strict=True) if default is None]
    return {argument.arg for argument in given.args} | set(by_name), set(without)
