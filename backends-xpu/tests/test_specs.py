"""What is offered on which GPU, advised sizes, and refused settings."""

from __future__ import annotations

from typing import Any

import pytest

from llmk.api import AttentionQuery, LinearQuery, PlatformFacts
from llmk.api.matching import match
from llmk_xpu.architectures import FEATURES, KNOWN
from llmk_xpu.specs import (
    llmk_attention_backends,
    llmk_config_defaults,
    llmk_linear_kernels,
)

BY_ARCH = {facts.arch: facts for facts in reversed(KNOWN)}
KERNELS = {spec.id: spec for spec in (*llmk_linear_kernels(), *llmk_attention_backends())}
CPU = PlatformFacts(name="cpu", arch="x86_64", device_type="cpu", memory_bytes=16 << 30)


def reasons(id: str, arch: str, **query: Any) -> list[str]:
    """Codes of the reasons against a GEMM."""
    asked = {"in_features": 4096, "out_features": 4096, "dtype": "bfloat16", **query}
    return [r.code for r in match(KERNELS[id], LinearQuery(platform=BY_ARCH[arch], site="o", **asked)).reasons]


def attention_reasons(**changes: Any) -> list[str]:
    asked = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 128, "block_size": 16, "scale": 0.1} | changes
    dtypes = {"dtype": "bfloat16", "cache_dtype": changes.get("cache_dtype", "bfloat16")}
    query = AttentionQuery(platform=BY_ARCH["bmg"], site="attention", **(asked | dtypes))
    return [r.code for r in match(KERNELS["xpu.attention"], query).reasons]


@pytest.mark.hook("llmk_linear_kernels")
@pytest.mark.parametrize("arch", BY_ARCH)
def test_fp8_needs_matrix_units(arch: str) -> None:
    assert reasons("xpu.linear", arch) == []
    for granularity in ("tensor", "channel"):
        found = reasons(f"xpu.linear_fp8_{granularity}", arch, weight_format=f"fp8_{granularity}")
        assert found == ([] if "xmx" in FEATURES[arch] else ["missing_feature"])


def test_what_the_library_refuses() -> None:
    id, asked = "xpu.linear_fp8_channel", {"weight_format": "fp8_channel"}
    assert reasons(id, "bmg", **asked, in_features=4100) == ["in_features"]
    assert reasons(id, "bmg", **asked, out_features=130) == ["out_features"]
    assert reasons(id, "bmg", **asked, dtype="float16") == ["dtype"]
    assert reasons(id, "bmg") == ["weight_format"]
    assert reasons("xpu.linear", "bmg", weight_format="fp8_channel") == ["weight_format"]


@pytest.mark.hook("llmk_attention_backends")
def test_attention_takes_what_torch_s_fused_kernel_computes() -> None:
    assert attention_reasons() == []
    assert attention_reasons(sliding_window=64) == []
    assert attention_reasons(latent_dim=64, num_kv_heads=1) == []
    assert attention_reasons(softcap=50.0) == ["not_understood"]
    assert attention_reasons(sinks=True) == ["not_understood"]
    assert attention_reasons(cache_dtype="float8_e4m3fn") == ["cache_dtype"]
    assert attention_reasons(num_heads=7) == ["num_kv_heads"]


@pytest.mark.hook("llmk_config_defaults")
def test_sizes_follow_the_memory() -> None:
    advised = {
        facts.device_name: {default.path: default.value for default in llmk_config_defaults(facts, None)}
        for facts in KNOWN
    }
    requests = {name: sizes["scheduler.max_num_seqs"] for name, sizes in advised.items()}
    assert requests["Intel Data Center GPU Max 1100"] > requests["Intel Arc Pro B60"] > requests["Intel Arc B580"]
    assert requests["Intel Arc B580"] > requests["Intel Arc 140V"]
    assert advised["Intel Arc 140V"]["cache.memory_share"] < advised["Intel Arc B580"]["cache.memory_share"]
    assert not any(sizes["engine.graphs"] for sizes in advised.values()), "they were never captured on such a GPU"
    assert all(default.why for facts in KNOWN for default in llmk_config_defaults(facts, None))
    assert llmk_config_defaults(CPU, None) == []
