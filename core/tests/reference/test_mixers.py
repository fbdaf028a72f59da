"""The ops of recurrent layers, and their norm, against ``transformers``."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from states import CUTS, Cached, error, run_steps
from torch import Tensor
from transformers import BailingHybridConfig, KimiLinearConfig, Mamba2Config, MiniMaxConfig, Qwen3NextConfig
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridDeltaAttention
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearDeltaAttention
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer, MambaRMSNormGated
from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet, Qwen3NextRMSNormGated

from llmk.api import DraftTails
from llmk.reference.recurrent.causal_conv import causal_conv
from llmk.reference.recurrent.delta_rule import gated_delta_rule, gated_delta_rule_by_token
from llmk.reference.recurrent.gated_norm import gated_rms_norm
from llmk.reference.recurrent.mixers import make_gated_delta_net, make_lightning_attention, make_state_space_mixer
from llmk.reference.recurrent.state_space_scan import state_space_scan, state_space_scan_by_token

COMMON = {"causal_conv": causal_conv, "gated_rms_norm": gated_rms_norm}
EPS = 1e-5


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """Every parameter random, with decays over which states last."""
    for name, parameter in module.named_parameters():
        parameter.data.normal_(-1.0 if name.endswith("A_log") else 0.0, 1.0)
    return module.requires_grad_(False)


def test_state_space_mixer_equals_transformers() -> None:
    config = Mamba2Config(
        hidden_size=24, num_heads=6, head_dim=8, n_groups=2, state_size=10, num_hidden_layers=1, layer_norm_epsilon=EPS
    )
    theirs = randomised(Mamba2Mixer(config, 0))
    mixer = make_state_space_mixer({**COMMON, "state_space_scan": state_space_scan})
    cached = Cached(64, (3, 88), (6, 8, 10))
    x = torch.randn(150, 24)
    out = mixer(theirs.in_proj(x), *mamba2_weights(theirs), EPS, cached.caches, cached.step([("a", 150)]))
    assert error(theirs.out_proj(out), theirs(x[None])[0].double()) < 2e-6


def test_gated_delta_net_equals_transformers() -> None:
    sizes = {"linear_num_key_heads": 2, "linear_key_head_dim": 12, "linear_value_head_dim": 8}
    config = Qwen3NextConfig(hidden_size=24, linear_num_value_heads=6, rms_norm_eps=EPS, **sizes)
    theirs = randomised(Qwen3NextGatedDeltaNet(config, 0))
    net = make_gated_delta_net({**COMMON, "gated_delta_rule": gated_delta_rule})
    cached = Cached(64, (3, 96), (6, 8, 12))
    x = torch.randn(1, 150, 24)
    q, k, v, gate, b, a = theirs.fix_query_key_value_ordering(theirs.in_proj_qkvz(x), theirs.in_proj_ba(x))
    q, k, v, gate, a, b = (part[0] for part in (q, k, v, gate, a, b))
    v, gate, a, b = (part.unflatten(1, (2, 3)) for part in (v, gate, a, b))
    out = net(q, k, v, gate, a, b, *delta_weights(theirs), EPS, cached.caches, cached.step([("a", 150)]))
    assert error(theirs.out_proj(out), theirs(x)[0].double()) < 2e-6


def kimi_linear() -> tuple[torch.nn.Module, Callable[[Tensor], tuple[Tensor, Tensor]], dict[str, Any]]:
    """A module of transformers, what gives the inputs of its decays and of its gates, and our op's options."""
    config = KimiLinearConfig(hidden_size=24, linear_num_heads=3, linear_head_dim=8, num_hidden_layers=1)
    theirs: Any = randomised(KimiLinearDeltaAttention(config, 0))
    gate = theirs.forget_gate
    chains = (gate.f_a_proj, gate.f_b_proj), (theirs.g_a_proj, theirs.g_b_proj)
    return theirs, lambda x: tuple(last(first(x)) for first, last in chains), {}


def ling(*, bounded: bool) -> tuple[torch.nn.Module, Callable[[Tensor], tuple[Tensor, Tensor]], dict[str, Any]]:
    """The same of Ling 3."""
    config = BailingHybridConfig(
        hidden_size=24, num_attention_heads=3, head_dim=8, num_hidden_layers=1, kda_safe_gate=bounded
    )
    theirs: Any = randomised(BailingHybridDeltaAttention(config, 0))
    options = {"decay_bound": -5.0} if bounded else {}
    return theirs, lambda x: (theirs.forget_gate.f_proj(x), theirs.g_proj(x)), options


@pytest.mark.parametrize("make", [kimi_linear, partial(ling, bounded=True), partial(ling, bounded=False)])
def test_kimi_delta_attention_equals_transformers(make: Callable[[], Any]) -> None:
    theirs, inputs, options = make()
    net = make_gated_delta_net({**COMMON, "gated_delta_rule": gated_delta_rule})
    cached = Cached(64, (3, 72), (3, 8, 8))
    x = torch.randn(150, 24)
    q, k, v = (linear(x).unflatten(1, (3, 8)) for linear in (theirs.q_proj, theirs.k_proj, theirs.v_proj))
    a, gate = (part.unflatten(1, (3, 1, 8)) for part in inputs(x))
    of_decay = -theirs.forget_gate.A_log.exp().flatten(), theirs.forget_gate.dt_bias.unflatten(0, (3, 8))
    weights = theirs.conv1d.weight.squeeze(1), *of_decay, theirs.o_norm.weight, theirs.o_norm.variance_epsilon
    b, step = theirs.b_proj(x).unsqueeze(2), cached.step([("a", 150)])
    out = net(q, k, v.unsqueeze(2), gate, a, b, *weights, cached.caches, step, gate_activation="sigmoid", **options)
    assert error(theirs.o_proj(out), theirs(x[None])[0].double()) < 5e-6


def test_lightning_attention_equals_transformers() -> None:
    """Prompts in chunks; the decays are transformers' of a layer in the middle."""
    config = MiniMaxConfig(hidden_size=24, num_attention_heads=3, head_dim=8, num_hidden_layers=4, block_size=32)
    theirs: Any = MiniMaxLightningAttention(config, 1).requires_grad_(False)
    op = make_lightning_attention({"state_space_scan": state_space_scan})
    cached, x = Cached(64, (3, 8, 8)), torch.randn(150, 24)
    q, k, v = theirs.qkv_proj(x).unflatten(1, (3, 24)).chunk(3, 2)
    y = op(q, k, v, -theirs.slope_rate.flatten(), cached.caches, cached.step([("a", 150)]))
    out = theirs.out_proj(theirs.norm(y) * torch.sigmoid(theirs.output_gate(x)))
    expected, _ = theirs(x[None], None, None)
    assert error(out, expected[0].double()) < 5e-6


def invariant(kind: str) -> tuple[Callable[..., Tensor], list[tuple[int, ...]], list[tuple[int, ...]]]:
    """A mixer with random weights, whose scan goes token by token; the shapes of its inputs and of its states."""
    weights: tuple[Any, ...]
    if kind == "mamba2":
        op = make_state_space_mixer({**COMMON, "state_space_scan": state_space_scan_by_token})
        weights = (torch.randn(88, 4), None, -torch.rand(6), *torch.randn(2, 6), (0.0, 1.0), torch.randn(48))
        shapes, states = [(142,)], [(3, 88), (6, 8, 10)]
    else:
        op = make_gated_delta_net({**COMMON, "gated_delta_rule": gated_delta_rule_by_token})
        decays = (12,) if kind == "kimi" else ()
        weights = (torch.randn(96, 4), -torch.rand(6), torch.randn(6, *decays), torch.randn(8))
        shapes, states = [(2, 12), (2, 12), (2, 3, 8), (2, 3, 8), (2, 3, *decays), (2, 3)], [(3, 96), (6, 8, 12)]

    def run(*arguments: Any) -> Tensor:
        rows, (conv, heads, *tails, step) = arguments[: len(shapes)], arguments[len(shapes) :]
        return op(*rows, *weights, EPS, (conv, heads, *tails), step)

    return run, shapes, states


@pytest.mark.parametrize("kind", ["mamba2", "delta", "kimi"])
def test_results_are_invariant_to_chunking_and_batch(kind: str) -> None:
    """With the scan that goes token by token, the whole mixer is batch-invariant."""
    run, shapes, states = invariant(kind)
    inputs = {name: [torch.randn(150, *shape) for shape in shapes] for name in "abc"}
    whole = run_steps(run, [[(name, 150)] for name in inputs], Cached(64, *states), inputs)
    for block_size, steps in zip((1, 7, 64, 1000), CUTS, strict=True):
        found = run_steps(run, steps, Cached(block_size, *states), inputs)
        assert all(torch.equal(out, whole[request][: out.shape[0]]) for request, out in found.items())


@pytest.mark.parametrize("kind", ["mamba2", "delta", "kimi"])
@pytest.mark.parametrize("block_size", [1, 7, 64])
def test_drafts_change_no_result(kind: str, block_size: int) -> None:
    """With any drafts, of which any are accepted, tokens have the outputs that they have without drafts, bit by bit."""
    run, shapes, states = invariant(kind)
    inputs = {name: [torch.randn(150, *shape) for shape in shapes] for name in "abc"}
    whole = run_steps(run, [[(name, 150)] for name in inputs], Cached(64, *states), inputs)
    rng, cached, most = random.Random(block_size), Cached(block_size, *states), 3
    widths = {"mamba2": ((88,), (6,)), "delta": ((96,), (6,), (6,)), "kimi": ((96,), (72,), (6,))}[kind]
    tails = [torch.full((4, most, *width), torch.nan) for width in widths]
    done, late = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    while open_requests := [name for name in "abc" if done[name] < 140]:
        work = {name: (rng.choice((1, 1, 5)), rng.randrange(most + 1)) for name in open_requests if rng.random() < 0.8}
        if not work:
            continue
        accepted = {name: rng.randrange(drafts + 1) for name, (_, drafts) in work.items()}
        step = cached.step([(name, known + drafts) for name, (known, drafts) in work.items()], late=late)
        columns = [("abc".index(name), late[name], work[name][1]) for name in work]
        step.tails = DraftTails(*(torch.tensor(column) for column in zip(*columns, strict=True)))
        own = []
        for name, (known, drafts) in work.items():
            rows = [x[done[name] : done[name] + known + drafts].clone() for x in inputs[name]]
            for x in rows:
                x[known + accepted[name] :] += 1  # those are wrong
            own.append(rows)
        out = run(*(torch.cat(parts) for parts in zip(*own, strict=True)), *cached.caches, *tails, step)
        for name, part in zip(work, out.split([sum(counts) for counts in work.values()]), strict=True):
            known, drafts = work[name]
            kept = known + accepted[name]
            assert torch.equal(part[:kept], whole[name][done[name] : done[name] + kept])
            done[name] += kept
            late[name] = accepted[name]
            cached.lengths[name] -= drafts - accepted[name]


def mamba2_weights(module: Mamba2Mixer) -> tuple[Any, ...]:
    conv = module.conv1d
    heads = (-module.A_log.exp(), module.D, module.dt_bias)
    return conv.weight.squeeze(1), conv.bias, *heads, module.time_step_limit, module.norm.weight


def delta_weights(module: Qwen3NextGatedDeltaNet) -> tuple[Tensor, ...]:
    return module.conv1d.weight.squeeze(1), -module.A_log.exp(), module.dt_bias, module.norm.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (lambda: MambaRMSNormGated(48, 16, EPS), {"groups": 3}),
        (lambda: MambaRMSNormGated(48, 48, EPS), {}),
        (lambda: Qwen3NextRMSNormGated(48, EPS), {"norm_before_gate": True}),
    ],
)
def test_gated_rms_norm(make: Callable[[], torch.nn.Module], options: dict[str, Any], dtype: torch.dtype) -> None:
    theirs = randomised(make()).to(dtype)
    x, gate = torch.randn(2, 5, 3, 48).to(dtype)
    out = gated_rms_norm(x, gate, theirs.weight, EPS, **options)
    assert out.dtype == dtype
    assert error(out, theirs(x, gate).double()) < (1e-6 if dtype == torch.float32 else 4e-3)
    assert all(torch.equal(gated_rms_norm(x[i], gate[i], theirs.weight, EPS, **options), out[i]) for i in range(5))
