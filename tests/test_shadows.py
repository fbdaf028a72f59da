"""Shadows: kernels of an installed wheel that run beside the chosen ones on live traffic, are compared, and change
nothing."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from equal_tokens import KINDS
from installed import installed
from served import Served, until

from llmk import LLM, SamplingParams
from llmk.api import SelectionError
from llmk.engine.wire.request import ShadowCount
from llmk.nn.build import Switch
from llmk.nn.shadow import Shadowed
from llmk_testing.checkpoints import write_checkpoint

SPECS = """
from llmk.api import OK, KernelSpec, Tier, TokenBand, hookimpl, no

def spec(name, kind, attribute="", **others):
    where = f"odd_kernels:{attribute or name}"
    return KernelSpec(id=f"odd.{name}", kind=kind, implementation=where, tier=Tier.NATIVE, **others)

@hookimpl
def llmk_attention_backends():
    return [spec("attention", "attention", "Transposed", layout="odd"), spec("forgets", "attention", layout="odd")]

@hookimpl
def llmk_linear_kernels():
    return [
        spec("linear", "linear", "double_stored", prepare="odd_kernels:halved", layout="odd"),
        spec("skewed", "linear"),
        spec("crash", "linear"),
        spec("greedy", "linear"),
        spec("small", "linear", "skewed", bands=(TokenBand(1, 3),)),
        spec("refuses", "linear", "skewed", supports=lambda query: no("width", wanted="narrow", found="wide")),
        spec("hidden", "linear", "skewed", supports=lambda query: no("site") if "head" in query.site else OK),
    ]

@hookimpl
def llmk_moe_kernels():
    return [spec("moe", "moe")]

@hookimpl
def llmk_ops():
    return [
        spec("rms_norm", "op", op="rms_norm"), spec("wild", "op", op="rms_norm"), spec("sample", "op", op="sample"),
        spec("build_step", "op", op="build_step"),
        spec("outer", "op", "rms_norm", op="rms_norm", supports=lambda query: OK if "." in query.site else no("site")),
    ]
"""
KERNELS = """
import torch
from llmk.api import CacheLayout
from llmk.reference.attention.paged import ReferenceAttention
from llmk.reference.batch import build_step as right_step
from llmk.reference.moe import fused_moe
from llmk.reference.norms import rms_norm as right_norm

class Transposed(ReferenceAttention):
    '''Right, with the dimensions of its cache in another order.'''
    def cache_layout(self, num_blocks):
        own = super().cache_layout(num_blocks)
        return CacheLayout("odd", (*own.shape[:-2], own.shape[-1], own.shape[-2]), own.dtype, own.block_dim)

    def write(self, key, value, cache, meta, **options):
        super().write(key, value, cache.transpose(-1, -2), meta, **options)
        key.fill_(7.0)

    def run(self, query, cache, meta, *args, **options):
        return super().run(query, cache.transpose(-1, -2), meta, *args, **options)

class forgets(Transposed):
    '''Stores no keys of steps that compute few tokens.'''
    def write(self, key, value, cache, meta, **options):
        if key.shape[0] > 4:
            super().write(key, value, cache, meta, **options)

def halved(parameters):
    return {"half": parameters["weight"] / 2}

def double_stored(x, weight, bias):
    return torch.nn.functional.linear(x, weight["half"] * 2, bias)

def skewed(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias) * 1.25

def crash(x, weight, bias):
    raise RuntimeError("out of luck")

def greedy(x, weight, bias):
    out = torch.nn.functional.linear(x, weight, bias)
    x.zero_()
    return out

def moe(x, logits, weights, **options):
    return fused_moe(x, logits.neg(), weights, **options)

def rms_norm(x, weight, eps):
    return right_norm(x, weight, eps + 0.5)

def wild(x, weight, eps):
    out = right_norm(x, weight, eps)
    x.fill_(float("nan"))
    return out

def sample(logits, *args):
    return logits.argmin(dim=-1)

def build_step(tokens, computed, *args):
    out = right_step(tokens, computed, *args)
    computed.add_(1)
    return out
"""
PROMPTS = [[5, 9, 11, 23, 8, 40, 3], [17, 5], [40, 41, 42, 2, 9]]
PARAMS = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SMALL = {"cache.num_blocks": 64, "cache.block_size": 4}


@pytest.fixture(scope="module", autouse=True)
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of the path where the wheel is installed."""
    with installed(tmp_path_factory.mktemp("site"), "odd", dedent(SPECS), odd_kernels=dedent(KERNELS)) as folder:
        yield folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return write_checkpoint(
        tmp_path_factory.mktemp("sparse"), "qwen3_moe", decoder_sparse_step=1, mlp_only_layers=[], **sizes
    )


def run(
    folder: Path, flags: dict[str, Any], prompts: list[list[int]] = PROMPTS, **options: Any
) -> tuple[list[list[int]], list[ShadowCount]]:
    """Tokens of all prompts, and what was compared."""
    with LLM(str(folder), dtype="float32", **{**SMALL, **flags, **options}) as llm:
        outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs], llm.stats.shadows


def shadow(kind: str, rule: Any, rate: float = 1.0) -> dict[str, Any]:
    return {f"select.{kind}.shadow": rule, f"select.{kind}.shadow_rate": rate}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rule", "right"),
    [
        ("attention", "odd.attention", True),
        ("attention", "odd.forgets", False),
        ("linear", "odd.linear", True),
        ("linear", {"qkv": "odd.skewed"}, False),
        ("linear", "odd.greedy", True),
        ("op", {"rms_norm": "odd.rms_norm"}, False),
        ("op", "odd.wild", False),
        ("op", "odd.sample", False),
        ("op", {"build_step": "odd.build_step"}, False),
    ],
)
def test_answers_are_the_same_and_what_differs_is_counted(folder: Path, kind: str, rule: Any, right: bool) -> None:
    alone, none = run(folder, {})
    assert not none
    tokens, counts = run(folder, shadow(kind, rule))
    assert tokens == alone
    assert counts
    assert all(count.compared and not count.failures for count in counts)
    assert all(not count.diverged for count in counts) == right, counts
    wanted = rule if isinstance(rule, str) else next(iter(rule.values()))
    assert {count.shadow for count in counts} == {wanted}


def test_experts_are_compared(sparse: Path) -> None:
    alone, _ = run(sparse, {})
    tokens, (count,) = run(sparse, shadow("moe", "odd.moe"))
    assert tokens == alone
    assert (count.kind, count.shadow) == ("moe", "odd.moe")
    assert count.diverged == count.compared
    assert count.largest > 0.1


def test_references_run_beside_a_wheel_that_serves(folder: Path) -> None:
    """The other way round: the wheel's kernels answer, and every one of them has the reference beside it."""
    chosen = {
        "select.attention.use": "odd.attention",
        "select.linear.use": "odd.linear",
        "select.op.use": "odd.rms_norm",
    }
    flags = chosen | {
        key: value for kind in ("attention", "linear", "op") for key, value in shadow(kind, "reference").items()
    }
    alone, _ = run(folder, chosen)
    tokens, counts = run(folder, flags)
    assert tokens == alone
    wrong = {count.site for count in counts if count.diverged}
    assert wrong
    assert all("norm" in site or site == "attention.whole" for site in wrong), "the odd norm is a part of these"
    assert {"down", "norm_qkv", "attention.whole"} <= {count.site for count in counts}


def test_shared_and_evicted_blocks_keep_both_caches_alike(folder: Path) -> None:
    """Prefix hits, re-used blocks and preemption."""
    tight = {"cache.num_blocks": 12, "max_num_seqs": 4, "max_model_len": 32, "cache.block_size": 4}
    prompts = [[7, 8, 9, 10, 11, 12, 13, 14, i] for i in range(6)]
    flags = {**shadow("attention", "odd.attention"), **tight}
    with LLM(str(folder), dtype="float32", **flags) as llm:
        for _ in range(2):
            llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)
        stats = llm.stats
    assert stats.preemptions
    assert stats.prefix_hit_tokens
    assert stats.shadows[0].compared
    assert not any(count.diverged or count.failures for count in stats.shadows), stats.shadows


def test_steps_are_sampled_and_the_shadows_cache_is_filled_between_samples(folder: Path) -> None:
    _, counts = run(folder, shadow("attention", "odd.attention", 0.3), [[i, i + 1, i + 2] for i in range(12)])
    _, all_of = run(folder, shadow("attention", "odd.attention"), [[i, i + 1, i + 2] for i in range(12)])
    assert 0 < counts[0].compared < all_of[0].compared
    assert not counts[0].diverged


def test_a_crash_ends_the_shadow_alone(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    alone, _ = run(folder, {})
    with caplog.at_level(logging.WARNING, "llmk"):
        tokens, counts = run(folder, shadow("linear", {"down": "odd.crash"}))
    assert tokens == alone
    (count,) = counts
    assert (count.failures, count.compared) == (1, 0)
    (line,) = [record for record in caplog.records if "was disabled" in record.getMessage()]
    assert line.exc_info is not None
    assert "out of luck" in str(line.exc_info[1])


def test_the_log_names_site_ids_shapes_and_error_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "llmk"):
        run(folder, shadow("linear", {"down": "odd.skewed"}))
    (line,) = [record.getMessage() for record in caplog.records if "the shadow" in record.getMessage()]
    pattern = r"linear site down: the shadow odd.skewed differs from \S+ by 2.5e-01 .* in \[\d+, \d+\] float32; .*"
    assert re.fullmatch(pattern, line), line


def test_counts_where_a_shadow_is_not_offered_are_not_compared(folder: Path) -> None:
    """Above two tokens the pinned kernel isn't offered, and what then serves is what was chosen."""
    for at, site in (("down", "down"), ("qkv", "norm_qkv")):
        _, counts = run(folder, shadow("linear", {at: "odd.small"}), [[1, 2, 3, 4]])
        assert [(count.site, count.shadow) for count in counts] == [(site, "odd.small")]
        last = at == "down"  # of the prompt, the last layer's MLP computes one row
        assert counts[0].diverged == counts[0].compared == 9 * 3 + last, "three layers in each step but the prompt's"


@pytest.mark.parametrize(
    ("kind", "rule", "id", "without", "at"),
    [
        ("linear", "odd.hidden", "odd.hidden", "linear site lm_head", "down"),
        ("op", "odd.outer", "odd.outer", "op site rms_norm", "norm_qkv"),
        ("op", {"rms_norm": "odd.outer"}, "odd.outer", "op site rms_norm", "norm_qkv"),
    ],
)
def test_a_shadow_for_all_sites_is_left_out_where_it_cannot_serve(
    folder: Path, kind: str, rule: Any, id: str, without: str, at: str
) -> None:
    with LLM(str(folder), dtype="float32", **{**SMALL, **shadow(kind, rule)}) as llm:
        llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        counts, warnings = llm.stats.shadows, llm.boot.plan.warnings
    assert at in {count.site for count in counts}
    assert {count.shadow for count in counts} == {id}
    assert [line for line in warnings if line.startswith(f"{without} has no shadow: {id} can't serve it: site")]


@pytest.mark.parametrize(
    ("kind", "rule", "message"),
    [
        ("linear", {"qkv": "odd.refuses"}, "odd.refuses is pinned for linear site 'qkv'"),
        ("linear", "odd.refuses", "odd.refuses can serve no linear site of this model"),
        ("linear", {"lm_head": "odd.hidden"}, "odd.hidden is pinned for linear site 'lm_head'"),
        ("linear", {"qvk": "odd.linear"}, "[select.linear] shadow pins odd.linear for qvk, which this model"),
        ("linear", "odd.lineal", "[select.linear] names 'odd.lineal', which is not"),
        ("op", {"sampler": "reference"}, "[select.op] shadow names sampler"),
        ("op", {"rms_norm": "reference", "sample": "odd.sample"}, "both ids and"),
    ],
)
def test_what_cannot_be_a_shadow_is_fatal_at_start(folder: Path, kind: str, rule: Any, message: str) -> None:
    with pytest.raises(SelectionError) as failed:
        run(folder, shadow(kind, rule))
    assert message in str(failed.value)
    if "odd.refuses" in str(rule):
        assert "wanted narrow" in str(failed.value) or "narrow" in str(failed.value)


def test_nothing_is_bound_where_nothing_is_asked_for(folder: Path) -> None:
    with LLM(str(folder), dtype="float32", **SMALL) as llm:
        core: Any = llm._core
        build = core.runner.build
        assert build.shadows is None
        bound = [*build._kernels.values(), *(kernel.run for kernel in build._weighted.values())]
        assert not any(isinstance(kernel, Shadowed) for kernel in bound)
        assert not any(isinstance(backend, Switch) for backend in build._attention.values())


@pytest.mark.slow
def test_tensor_parallel_ranks_add_up_what_they_compare(
    folder: Path, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join([str(site), *filter(None, sys.path)]))
    flags = shadow("linear", {"down": "odd.skewed"}) | shadow("attention", "odd.attention")
    _, one = run(folder, flags)
    _, two = run(folder, flags, parallel={"tensor": 2})
    alone, together = ({count.shadow: count.compared for count in counts} for counts in (one, two))
    assert alone.keys() == together.keys()
    # What the second rank compared in the last steps may come too late to be told of with them: a call in each layer.
    assert all(2 * alone[id] - 6 <= together[id] <= 2 * alone[id] for id in alone)
    assert {count.shadow: bool(count.diverged) for count in two} == {"odd.skewed": True, "odd.attention": False}


@pytest.mark.slow
def test_the_server_has_metrics_and_a_plan(folder: Path, site: Path, tmp_path: Path) -> None:
    path = {"PYTHONPATH": ":".join([str(site), *filter(None, sys.path)])}
    flags = [
        "--model.dtype",
        "float32",
        "--select.linear.shadow",
        '{"down": "odd.skewed"}',
        "--select.linear.shadow-rate",
        "1",
    ]
    served = Served(tmp_path / "log", str(folder), *flags, env=path)
    try:
        body = {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True, "model": served.model}
        status, _ = served.post("/v1/completions", body)
        assert status == 200
        labels = r'\{kernel="\S+",kind="linear",model_name="\S+",shadow="odd.skewed",site="down"\}'
        for name in ("calls_compared_total", "calls_diverged_total", "failures_total", "largest_relative_error"):
            assert re.search(rf"llmk_shadow_{name}{labels} [\d.]+", served.get("/metrics")[1]), name
        assert '"shadows":[{"choice":{"kind":"linear"' in served.get("/v1/plan")[1].replace(" ", "")
        until(lambda: "the shadow odd.skewed differs" in served.log.read_text())
        assert re.search(r"linear +down +(1- +)?\S+ +odd.skewed +odd 1.0", served.log.read_text())
    finally:
        served.close()


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "windows, two groups of layers": ("gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 24}),
    "latent": ("deepseek_v2", KINDS["latent"][1]),
    "beside recurrent state": ("qwen3_next", KINDS["hybrid"][1]),
    "layers that call the backend": ("gpt2", {"num_key_value_heads": 4}),
}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_of_every_form_has_a_shadow(family: str, tmp_path: Path) -> None:
    """Its own cache holds what the chosen one's does, and the answers stay."""
    kind, config = FAMILIES[family]
    model = write_checkpoint(tmp_path / "model", kind, **config)
    flags = {"max_model_len": 64, "scheduler.max_num_batched_tokens": 12}
    alone, _ = run(model, flags)
    tokens, counts = run(model, flags | shadow("attention", "odd.attention") | shadow("op", "reference"))
    assert tokens == alone
    # A count bears the name of the first kernel that differs, which may be another of the same op.
    mine = [count for count in counts if count.shadow == "odd.attention" or count.site.endswith("attention.whole")]
    assert mine
    assert all(count.compared and not count.diverged and not count.failures for count in mine), mine
