"""What is offered on which GPU, advised sizes, and refused settings."""

from __future__ import annotations

from typing import Any

import pytest

from llmk.api import LinearQuery, PlatformFacts
from llmk.api.matching import match
from llmk_rocm.architectures import KNOWN
from llmk_rocm.specs import (
    llmk_attention_backends,
    llmk_config_defaults,
    llmk_linear_kernels,
    llmk_moe_kernels,
    llmk_ops,
)

BY_ARCH = {facts.arch: facts for facts in reversed(KNOWN)}
KERNELS = {spec.id: spec for spec in llmk_linear_kernels()}
CPU = PlatformFacts(name="cpu", arch="x86_64", device_type="cpu", memory_bytes=16 << 30)
OCP, FNUZ = {"gfx950", "gfx1200", "gfx1201"}, {"gfx942"}


def reasons(id: str, arch: str, **query: Any) -> list[str]:
    """Codes of the reasons against a kernel."""
    asked = {"in_features": 4096, "out_features": 4096, "dtype": "bfloat16", **query}
    return [r.code for r in match(KERNELS[id], LinearQuery(platform=BY_ARCH[arch], site="o", **asked)).reasons]


@pytest.mark.parametrize("arch", BY_ARCH)
def test_each_architecture_gets_its_format(arch: str) -> None:
    assert reasons("rocm.linear", arch) == []
    for granularity in ("tensor", "channel"):
        asked = {"weight_format": f"fp8_{granularity}"}
        assert (reasons(f"rocm.linear_fp8_{granularity}", arch, **asked) == []) == (arch in OCP)
        assert (reasons(f"rocm.linear_fp8_{granularity}_fnuz", arch, **asked) == []) == (arch in FNUZ)


def test_what_the_library_refuses() -> None:
    id, asked = "rocm.linear_fp8_channel_fnuz", {"weight_format": "fp8_channel"}
    assert reasons(id, "gfx942", **asked, in_features=4100) == ["in_features"]
    assert reasons(id, "gfx942", **asked, out_features=130) == ["out_features"]
    assert reasons(id, "gfx942", **asked, dtype="float16") == ["dtype"]
    assert reasons(id, "gfx942") == ["weight_format"]
    assert reasons("rocm.linear", "gfx942", weight_format="fp8_channel") == ["weight_format"]


@pytest.mark.hook("llmk_attention_backends", "llmk_moe_kernels", "llmk_ops")
def test_aiter_is_for_instinct_gpus_and_chosen_by_name() -> None:
    block = {"weight_format": "fp8_block"}
    every = (*llmk_linear_kernels(), *llmk_attention_backends(), *llmk_moe_kernels(), *llmk_ops())
    for spec in (spec for spec in every if spec.id.startswith("rocm.aiter_")):
        assert spec.opt_in
        assert spec.jit
        assert spec.needs.archs == ("gfx942", "gfx950")
    for id in ("rocm.aiter_fp8_block", "rocm.aiter_fp8_block_fnuz"):
        assert "package_missing" in reasons(id, "gfx942", **block)
        assert "arch" in reasons(id, "gfx1201", **block)
    assert reasons("rocm.aiter_fp8_block_fnuz", "gfx942", **block) == ["package_missing"]
    assert "in_features" in reasons("rocm.aiter_fp8_block", "gfx950", **block, in_features=4000)


@pytest.mark.hook("llmk_config_defaults")
def test_sizes_follow_the_memory() -> None:
    advised = {
        facts.device_name: {default.path: default.value for default in llmk_config_defaults(facts, None)}
        for facts in KNOWN
    }
    requests = {name: sizes["scheduler.max_num_seqs"] for name, sizes in advised.items()}
    assert requests["AMD Instinct MI300X"] > requests["AMD Instinct MI250X"] > requests["AMD Radeon RX 7900 XTX"]
    assert requests["AMD Radeon RX 7900 XTX"] > requests["AMD Radeon RX 9070 XT"] > requests["AMD Radeon 8060S"]
    assert advised["AMD Radeon 8060S"]["cache.memory_share"] == 0.75
    assert all(default.why for default in llmk_config_defaults(KNOWN[0], None))
    assert llmk_config_defaults(CPU, None) == []
