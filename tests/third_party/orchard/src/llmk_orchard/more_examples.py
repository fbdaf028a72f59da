"""Examples for the conformance kit, of the plugins that came later."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_orchard.soil import cores, flags, free_bytes, total_bytes
from llmk_testing.model_example import ModelExample
from llmk_testing.parser_example import ParserExample
from llmk_testing.platform_example import PlatformExample

RINGS = (
    ParserExample(text="<ring>Hm.</ring>\nIt is 4.", reasoning="Hm.", content="It is 4."),
    ParserExample(text="<ring>\nb\n</ring>\n\nc", reasoning="\nb\n", content="\nc"),
    ParserExample(text="A <ring>b</ring>\n\nc <ring>d\n</ring>", reasoning="bd\n", content="A \nc "),
    ParserExample(text="a < b, </ring> and <rings>", content="a < b, </ring> and <rings>"),
    ParserExample(
        text="Hm.</ring>A", reasoning="Hm.", content="A", context=ParserContext(prompt_tail="<|assistant|><ring>\n")
    ),
    ParserExample(
        text="A",
        content="A",
        context=ParserContext(thinking=True, prompt_tail="<|assistant|>\n<ring></ring>\n"),
    ),
    ParserExample(text="Hm.", reasoning="Hm.", context=ParserContext(thinking=False, prompt_tail="<ring> \n")),
)

_MEMORY = "MemTotal:        2048 kB\nMemFree:           1 kB\nMemAvailable:    1024 kB\n"
_FILES = {"/proc/meminfo": _MEMORY, "/proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3,6\n"}


def _machine(line: str, version: int, features: set[str], dtypes: tuple[str, ...]) -> PlatformExample:
    return PlatformExample(
        name=f"generation {version}",
        files={**_FILES, "/proc/cpuinfo": f"processor : 0\nflags\t\t: {line}\n\nprocessor : 1\nflags\t\t: x\n"},
        facts={
            "arch": f"g{version}",
            "arch_version": (version,),
            "features": frozenset({"graphs", *features}),
            "dtypes": dtypes,
            "memory_bytes": 2048 * 1024,
            "device_name": f"Grove of generation {version}",
        },
        known=True,
        needs=sorted(features),
        said=[(cores, 5), (total_bytes, 2 << 20), (free_bytes, 1 << 20), (flags, frozenset(line.split()))],
    )


MACHINES = (
    _machine("fpu sse2", 1, set(), ("float32",)),
    _machine("fpu avx2 fma", 2, {"avx2"}, ("float32", "bfloat16")),
    _machine("fpu avx2 avx512f", 3, {"avx2", "avx512f"}, ("float32", "bfloat16")),
    PlatformExample(name="nothing known", facts={"arch": "g1", "memory_bytes": 0}, said=[(cores, 1), (free_bytes, 0)]),
    PlatformExample(name="another system", system="Darwin", refused=["machine"]),
    PlatformExample(name="another processor", machine="aarch64", refused=["machine"]),
    PlatformExample(name="as another system says", machine="AMD64", facts={"arch": "g1"}),
)

JAIS = (
    ModelExample.of_transformers("plain", "jais2", num_attention_heads=4, num_key_value_heads=4),
    ModelExample.of_transformers(
        "tied, without biases, fewer key-value heads",
        "jais2",
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=16,
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
        layer_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    ),
)
