"""FlashInfer as an attention backend: how it is called, and on a GPU, what it computes."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from gpus import FACTS, needs_gpu
from torch import Tensor

from llmk.api import AttentionQuery, CacheStep, PlatformFacts
from llmk.reference.attention.contiguous import attend_plain
from llmk_cuda.probe import KNOWN

needs_flashinfer = pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is None, reason="needs flashinfer-python, which is not installed"
)
WRAPPERS = ("BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper")


class PlayedWrapper:
    """Attends in plain torch by nothing but what it was planned with."""

    def __init__(self, *, float_workspace_buffer: Tensor, kv_layout: str, use_tensor_cores: bool = False) -> None:
        assert kv_layout == "HND"

    def run(self, *, q: Tensor, paged_kv_cache: Tensor, out: Tensor) -> None:
        plan = self.planned
        starts, pages, last = plan["starts"], plan["indptr"].tolist(), plan["last_page_len"].tolist()
        for i in range(len(last)):
            blocks = plan["indices"][pages[i] : pages[i + 1]].long()
            length = (len(blocks) - 1) * plan["page_size"] + last[i]
            # [blocks, 2, heads, tokens, size] to [2, tokens, heads, size]
            kv = paged_kv_cache[blocks].permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length].float()
            rows = slice(starts[i], starts[i + 1])
            asking = torch.arange(length - (rows.stop - rows.start), length)[:, None]
            allowed = (torch.arange(length) <= asking)[None]
            cap = plan["logits_soft_cap"] or None
            out[rows] = attend_plain(q[None, rows].float(), kv[:1], kv[1:], allowed, plan["sm_scale"], cap)[0]


class PlayedDecode(PlayedWrapper):
    def plan(
        self, *, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
        head_dim: int, page_size: int, logits_soft_cap: float, q_data_type: Any, kv_data_type: Any, sm_scale: float,
    ) -> None:  # fmt: skip
        self.planned = locals() | {"starts": list(range(len(last_page_len) + 1))}


class PlayedPrefill(PlayedWrapper):
    def plan(
        self, *, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
        num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, causal: bool, logits_soft_cap: float,
        q_data_type: Any, kv_data_type: Any, sm_scale: float,
    ) -> None:  # fmt: skip
        assert causal
        named = {"indptr": paged_kv_indptr, "indices": paged_kv_indices, "last_page_len": paged_kv_last_page_len}
        self.planned = locals() | named | {"starts": qo_indptr.tolist()}


PLAYED = dict(zip(WRAPPERS, (PlayedDecode, PlayedPrefill), strict=True))


def query(facts: PlatformFacts = KNOWN[0], **changes: Any) -> AttentionQuery:
    sizes = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64, "block_size": 4, "scale": 0.125}
    common = {"platform": facts, "site": "attention", "dtype": "float16", "cache_dtype": "float16"}
    return AttentionQuery(**common | sizes | changes)


def layout_of(requests: list[tuple[int, int]], block_size: int, device: str, padding: int = 0) -> CacheStep:
    """A step of ``requests`` (tokens in the step and in the cache after it), then ``padding`` ones of one token."""
    counts, lengths = [list(each) for each in zip(*requests, strict=True)]
    most = max(-(-length // block_size) for length in lengths) + 1
    table = torch.randperm(most * len(requests)).view(len(requests), most)
    slots = [
        int(table[i, position // block_size]) * block_size + position % block_size
        for i, (count, length) in enumerate(requests)
        for position in range(length - count, length)
    ]
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    return CacheStep(
        query_start=torch.tensor(starts + starts[-1:] * padding, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths + [0] * padding, dtype=torch.int32, device=device),
        block_table=torch.nn.functional.pad(table, (0, 0, 0, padding)).to(device, torch.int32),
        slot_mapping=torch.tensor(slots + [-1] * padding, device=device),
        num_requests=len(requests) + padding,
        num_tokens=sum(counts) + padding,
        max_query_len=max(counts),
        max_seq_len=max(lengths),
        block_size=block_size,
        host_query_lens=counts,
        host_seq_lens=lengths,
    )


def check(backend: Any, requests: list[tuple[int, int]], device: str, tolerance: float, padding: int = 0) -> None:
    """Writes all keys and values through the backend, attends, and compares with float32."""
    asked, block_size = backend.query, backend.query.block_size
    step = layout_of(requests, block_size, device, padding)
    blocks = int(step.block_table.max()) + 1
    layout = backend.cache_layout(blocks)
    cache = torch.full(layout.shape, float("nan"), dtype=getattr(torch, layout.dtype), device=device)
    kv = torch.randn(2, sum(length for _, length in requests), asked.num_kv_heads, asked.head_dim, device=device)
    kv = kv.to(cache.dtype)
    whole = layout_of([(length, length) for _, length in requests], block_size, device)
    whole.block_table = step.block_table[: len(requests)]
    positions = [(i, p) for i, (_, length) in enumerate(requests) for p in range(length)]
    table = step.block_table.tolist()
    whole.slot_mapping = torch.tensor(
        [table[i][p // block_size] * block_size + p % block_size for i, p in positions], device=device
    )
    backend.write(kv[0], kv[1], cache, backend.prepare(whole))
    rows = sum(count for count, _ in requests)
    q = torch.randn(rows + padding, asked.num_heads, asked.head_dim, device=device).to(cache.dtype)
    meta = backend.prepare(step)
    own_rows = [p >= length - count for count, length in requests for p in range(length)]
    again = torch.nn.functional.pad(kv[:, own_rows], (0, 0, 0, 0, 0, padding))
    backend.write(again[0], again[1], cache, meta)
    actual = backend.run(q, cache, meta)
    start, first = 0, 0
    for count, length in requests:
        own = kv[:, first : first + length].float()
        asking = torch.arange(length - count, length, device=device)[:, None]
        allowed = (torch.arange(length, device=device) <= asking)[None]
        mine = q[None, start : start + count].float()
        expected = attend_plain(mine, own[:1], own[1:], allowed, asked.scale, asked.softcap)[0]
        torch.testing.assert_close(actual[start : start + count].float(), expected, rtol=tolerance, atol=tolerance)
        start, first = start + count, first + length


STEPS = [
    pytest.param([(1, 1), (1, 9), (1, 4), (1, 30)], id="decode"),
    pytest.param([(5, 5), (1, 12), (3, 11), (8, 8)], id="mixed"),
]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The backend with FlashInfer played by plain torch, on the CPU."""
    module = ModuleType("flashinfer")
    for name, kind in PLAYED.items():
        setattr(module, name, kind)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.delitem(sys.modules, "llmk_cuda.flashinfer_attention", raising=False)
    backend = importlib.import_module("llmk_cuda.flashinfer_attention")
    monkeypatch.setattr(backend, "_WORKSPACE_BYTES", 1)
    yield backend
    sys.modules.pop("llmk_cuda.flashinfer_attention")


@pytest.mark.parametrize("requests", STEPS)
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_plan_names_the_pages_of_every_request(
    played: Any, requests: list[tuple[int, int]], padding: int, softcap: float | None
) -> None:
    backend = played.FlashInferAttention(query(softcap=softcap), torch.device("cpu"))
    check(backend, requests, "cpu", 2e-3, padding)


def test_steps_in_flight_have_plans_of_their_own(played: Any) -> None:
    backend = played.FlashInferAttention(query(), torch.device("cpu"))
    step = layout_of([(1, 5)], 4, "cpu")
    first, second, third = (backend.prepare(step).wrapper for _ in range(3))
    assert first is not second
    assert first is third


@needs_flashinfer
@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("method", ["__init__", "plan", "run"])
def test_flashinfer_has_every_argument_that_is_passed(name: str, method: str) -> None:
    import flashinfer

    real = inspect.signature(getattr(getattr(flashinfer, name), method)).parameters
    passed = inspect.signature(getattr(PLAYED[name], method)).parameters
    known = set(passed) - ({"use_tensor_cores"} if "Prefill" in name else set())
    assert known <= set(real), f"{name}.{method} lacks {known - set(real)}"
    required = {n for n, p in real.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    assert required <= set(passed)


@needs_gpu
@needs_flashinfer
@pytest.mark.parametrize("requests", STEPS)
def test_equals_the_reference(requests: list[tuple[int, int]]) -> None:
    """Compiles for minutes where FlashInfer's cache has nothing."""
    from llmk_cuda.flashinfer_attention import FlashInferAttention

    assert FACTS is not None
    torch.manual_seed(0)
    changes = {"head_dim": 128, "block_size": 16, "dtype": "bfloat16", "cache_dtype": "bfloat16", "scale": 128**-0.5}
    check(FlashInferAttention(query(FACTS, **changes), torch.device("cuda")), requests, "cuda", 2e-2)
