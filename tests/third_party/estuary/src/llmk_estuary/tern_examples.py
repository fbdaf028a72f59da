"""What the plugin's specs are tried on by the conformance kit."""

from __future__ import annotations

import torch
from torch import Tensor

from llmk.api import Host, ParserContext
from llmk_estuary import tern_machine
from llmk_estuary.tern_platform import TernMemory
from llmk_testing.parser_example import ParserExample
from llmk_testing.platform_example import PlatformExample
from llmk_testing.quantization_example import ConfigExample, QuantizationExample

# Reasoning: lagoon.


def _opened(tail: str) -> ParserContext:
    return ParserContext(prompt_tail=f"<|user|>Which bird is it?<|assistant|>{tail}")


LAGOON = (
    ParserExample(
        text="[[think]]Black cap, grey back.[[/think]]An Arctic tern.",
        reasoning="Black cap, grey back.",
        content="An Arctic tern.",
    ),
    ParserExample(
        text="[[think]]\nBlack cap.\nGrey back.\n[[/think]]\n\nAn Arctic tern.",
        reasoning="Black cap.\nGrey back.",
        content="An Arctic tern.",
    ),
    ParserExample(
        text="[[think]]{de/high}\nSchwarze Kappe.\n[[/think]]\nA tern.",
        reasoning="Schwarze Kappe.",
        content="A tern.",
    ),
    ParserExample(text="[[think]]{deu}Kappe[[/think]]{de}", reasoning="Kappe", content="{de}"),
    # What only looks like a header is a thought, and so is one that comes late.
    ParserExample(text='[[think]]{"a": 1}[[/think]]x', reasoning='{"a": 1}', content="x"),
    ParserExample(text="[[think]]{de/extreme}[[/think]]x", reasoning="{de/extreme}", content="x"),
    ParserExample(text="[[think]]\n{de}[[/think]]x", reasoning="{de}", content="x"),
    ParserExample(text="[[think]]{de}{fr}[[/think]]x", reasoning="{fr}", content="x"),
    # One line break before, up to two behind, and nothing else.
    ParserExample(text="[[think]] \n\n  A. \n\n[[/think]]\n\n\n  B.\n", reasoning=" \n\n  A. \n", content="\n  B.\n"),
    ParserExample(text="[[think]]\n\n[[/think]] B.", content=" B."),
    ParserExample(
        text="First.\n[[think]]More?[[/think]]\nSecond. [[think]]{fr/low}Oui.[[/think]]Third.",
        reasoning="More?Oui.",
        content="First.\nSecond. Third.",
    ),
    # What only looks like a marker.
    ParserExample(
        text="[[think] [[Think]] [[/think]] a[[b]] [[think]][[/think] [[think]] [[/ think]]\n",
        reasoning="[[/think] [[think]] [[/ think]]\n",
        content="[[think] [[Think]] [[/think]] a[[b]] ",
    ),
    # Ends in the middle.
    ParserExample(text="[[think]]Black cap\n[[/thi", reasoning="Black cap\n[[/thi"),
    ParserExample(text="[[think]]{de/hi", reasoning="{de/hi"),
    ParserExample(text="A tern [[thin", content="A tern [[thin"),
    # Blocks that the template opens or closes.
    ParserExample(
        text="\nCap.[[/think]]\n\nA tern.", reasoning="Cap.", content="A tern.", context=_opened("[[think]]")
    ),
    ParserExample(text="{es/mid}Gorra.[[/think]]x", reasoning="Gorra.", content="x", context=_opened("[[think]]")),
    ParserExample(
        text="{es}\nCap.[[/think]]x", reasoning="{es}\nCap.", content="x", context=_opened("[[think]]{de/low}")
    ),
    ParserExample(text="\nCap.[[/think]]x", reasoning="\nCap.", content="x", context=_opened("[[think]]{de}\n")),
    ParserExample(text="{es}Cap.[[/think]]x", reasoning="{es}Cap.", content="x", context=_opened("[[think]]\n")),
    ParserExample(text="\nA tern.", content="A tern.", context=_opened("[[think]]\n[[/think]]\n")),
    ParserExample(text="\n\nA tern.", content="\n\nA tern.", context=_opened("[[think]]\n[[/think]]\n\n")),
    ParserExample(
        text="A [[/think]] tern.",
        content="A [[/think]] tern.",
        context=_opened("What is [[think]]?\n<|assistant|>"),
    ),
    ParserExample(
        text="[[think]]Cap.[[/think]]A tern.",
        reasoning="Cap.",
        content="A tern.",
        context=ParserContext(thinking=False, template_options={"enable_thinking": False}),
    ),
)

# Quantization: T5.


def _stored(weight: Tensor, group_size: int = 64, dtype: torch.dtype = torch.float16) -> dict[str, Tensor]:
    """Symmetric: by the mean magnitude of each group."""
    groups = weight.float().view(weight.shape[0], -1, group_size)
    scales = groups.abs().mean(dim=-1).clamp(max=torch.finfo(dtype).max).to(dtype)
    wide = scales.float()[..., None]
    trits = torch.where(wide > 0, groups / torch.where(wide > 0, wide, 1.0), 0.0).round().clamp(-1, 1)
    return {"trits": _packed(trits.flatten(1)), "scales": scales}


def _stored_shifted(weight: Tensor) -> dict[str, Tensor]:
    """With zero points, in bfloat16, groups of 32: the three numbers span what a group has."""
    groups = weight.float().view(weight.shape[0], -1, 32)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scales = ((high - low) / 2).to(torch.bfloat16)
    wide = scales.float()
    safe = torch.where(wide > 0, wide, 1.0)
    zeros = (-(low + high) / 2 / safe * 4).round().clamp(-128, 127)
    trits = (groups / safe[..., None] + zeros[..., None] / 4).round().clamp(-1, 1)
    return {"trits": _packed(trits.flatten(1)), "scales": scales, "zeros": zeros.to(torch.int8)}


def _packed(trits: Tensor) -> Tensor:
    digits = torch.nn.functional.pad(trits + 1, (0, -trits.shape[1] % 5))
    places = torch.tensor([1.0, 3.0, 9.0, 27.0, 81.0])
    return (digits.view(trits.shape[0], -1, 5) * places).sum(dim=-1).to(torch.uint8)


def _restored(stored: dict[str, Tensor]) -> Tensor:
    trits, scales = stored["trits"], stored["scales"].float()
    zeros = stored["zeros"].float() / 4 if "zeros" in stored else torch.zeros_like(scales)
    digits = torch.stack([trits.int() // 3**place % 3 - 1 for place in range(5)], dim=-1).flatten(1).float()
    # Groups of 32, 64 or 128 inputs, and less than five digits more than inputs.
    size = next(size for size in (32, 64, 128) if 0 <= digits.shape[1] - scales.shape[1] * size < 5)
    groups = digits[:, : scales.shape[1] * size].view(*scales.shape, size)
    return (scales[..., None] * (groups - zeros[..., None])).flatten(1)


_SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
_T5 = {"quant_method": "t5", "version": 1, "group_size": 64, "symmetric": True}
_CACHE_SCALES = (("k_scale", "k_proj.output_scale"), ("v_scale", "v_proj.output_scale"))

T5 = (
    QuantizationExample(
        name="symmetric",
        model_type="llama",
        model_config=_SMALL,
        stored=_stored,
        restored=_restored,
        quantization_config=_T5 | {"ignore": ["lm_head"]},
        error=0.8,
        logits_error=1.5,
        cache_scales=_CACHE_SCALES,
        empty=("bias",),
    ),
    QuantizationExample(
        name="zero points",
        model_type="qwen2",
        model_config=_SMALL,
        stored=_stored_shifted,
        restored=_restored,
        quantization_config=_T5 | {"group_size": 32, "symmetric": False},
        error=0.8,
        logits_error=1.5,
        cache_scales=_CACHE_SCALES,
        empty=("bias",),
    ),
    ConfigExample(
        config={"quant_method": "t5"},
        modules={"model.layers.0.self_attn.q_proj": True, "model.layers.1.mlp.down_proj": True},
        unmatched=(),
    ),
    ConfigExample(
        config=_T5 | {"ignore": ["self_attn.o_proj", "model.layers.1", "re:.*\\.3\\..*", "proj"]},
        modules={
            "model.layers.0.self_attn.o_proj": False,
            "model.layers.0.self_attn.q_proj": True,
            "model.layers.1.mlp.up_proj": True,
            "model.layers.3.mlp.up_proj": False,
            "model.layers.13.mlp.up_proj": True,
        },
        unmatched=("model.layers.1", "proj"),
    ),
    ConfigExample(
        config=_T5 | {"ignore": ["re:layers", "model.layers.0.mlp.up_proj"]},
        modules={"model.layers.0.mlp.up_proj": False, "my_model.layers.0.mlp.up_proj": True, "layers": False},
        unmatched=(),
    ),
    ConfigExample(config={"quant_method": "gptq", "bits": 4}, claimed="quant_method"),
    ConfigExample(config={}, claimed="quant_method"),
    ConfigExample(config={"quant_method": "t5", "version": 2}, claimed="version"),
    ConfigExample(config={"quant_method": "t5", "version": None}, claimed="version"),
    ConfigExample(config=_T5 | {"group_size": 48}, modules={"a": True}, error="group_size"),
    ConfigExample(config=_T5 | {"group_size": "64"}, modules={"a": True}, error="group_size"),
    ConfigExample(config=_T5 | {"symmetric": 1}, modules={"a": True}, error="symmetric"),
    ConfigExample(config=_T5 | {"ignore": "lm_head"}, modules={"a": True}, error="ignore"),
    ConfigExample(config=_T5 | {"ignore": ["re:("]}, modules={"a": True}, error="ignore"),
    ConfigExample(config=_T5 | {"ignore": None}, modules={"a": True}),
)

# The platform.

_GB = 1 << 30
_MEMINFO = (
    "MemTotal:       65536000 kB\nMemFree:         1024000 kB\nMemAvailable:   40960000 kB\n"
    "Buffers:          512000 kB\nCached:         30720000 kB\n"
    "SwapTotal:       8388604 kB\nSwapFree:        8388604 kB\n"
)
_EPYC = "processor\t: 0\nmodel name\t: AMD EPYC 9554\nflags\t\t: fpu sse2 fma avx avx2 avx512f avx512bw avx512_bf16\n"
_HASWELL = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) E5-2680 v3\nflags\t\t: fpu sse2 avx fma avx2\n"
_NEHALEM = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) X5570\nflags\t\t: fpu sse2 sse4_2\n"
_GRAVITON = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp i8mm bf16\nCPU implementer\t: 0x41\n"
_A72 = "processor\t: 0\nFeatures\t: fp asimd crc32\n"


def _cards(*cards: tuple[str, int, str], driver: str = "2.4.0\n") -> dict[str, str]:
    files = {tern_machine.DRIVER: driver, "/proc/meminfo": _MEMINFO, "/proc/cpuinfo": _EPYC}
    for index, (model, memory, state) in enumerate(cards):
        folder = f"/sys/class/tern/tern{index}"
        files |= {f"{folder}/model": f"{model}\n", f"{folder}/memory_bytes": f"{memory}\n", f"{folder}/state": state}
    return files


def _total(host: Host) -> int:
    """As the memory facet says it on that machine."""
    facts = tern_machine.probe(host).facts
    return 0 if facts is None else TernMemory(facts, host).total()


def _cores(host: Host) -> int:
    return tern_machine.physical_cores(host, {0, 1, 2, 3})


_PAIRS = {
    f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 2},{cpu % 2 + 2}\n" for cpu in range(4)
}

MACHINES = (
    PlatformExample(
        name="two cards",
        files=_cards(("TN100", 32 * _GB, "ready\n"), ("TN100", 32 * _GB, "ready\n")),
        facts={
            "arch": "tn100",
            "arch_family": "tern",
            "arch_version": (1, 0),
            "dtypes": ("bfloat16", "float32"),
            "memory_bytes": 32 * _GB,
            "num_devices": 2,
            "device_name": "Tern TN100",
            "shared_device": False,
        },
        devices=("0", "1"),
        said=((_total, 32 * _GB),),
    ),
    PlatformExample(
        name="cards of two models, of which one is broken, by number",
        files=_cards(
            ("TN100", 32 * _GB, "failed\n"),
            ("TN200", 96 * _GB, "ready\n"),
            ("TN100", 32 * _GB, "ready\n"),
            ("TN200", 80 * _GB, "ready\n"),
        ),
        facts={
            "arch": "tn200",
            "arch_version": (2, 0),
            "dtypes": ("bfloat16", "float16", "float32"),
            "memory_bytes": 80 * _GB,
            "num_devices": 2,
        },
        devices=("1", "2", "3"),
    ),
    PlatformExample(
        name="one of eleven cards, by its number",
        files=_cards(*[("TN100", 32 * _GB, "ready\n")] * 10, ("TN200", 96 * _GB, "ready\n")),
        environ={tern_machine.VISIBLE: " 10, 99,x"},
        facts={"arch": "tn200", "num_devices": 1, "memory_bytes": 96 * _GB},
        known=True,
    ),
    PlatformExample(
        name="no card is visible",
        files=_cards(("TN100", 32 * _GB, "ready\n")),
        environ={tern_machine.VISIBLE: ""},
        refused=("no_visible_device",),
    ),
    PlatformExample(
        name="an old driver",
        files=_cards(("TN100", 32 * _GB, "ready\n"), driver="2.0.9\n"),
        refused=("driver_too_old",),
    ),
    PlatformExample(
        name="a later driver",
        files=_cards(("TN100", 32 * _GB, "ready\n"), driver="10.0\n"),
        facts={"arch": "tn100", "num_devices": 1},
        known=True,
    ),
    PlatformExample(name="no driver", files=_cards(("TN100", 32 * _GB, "ready\n"), driver=""), refused=("no_driver",)),
    PlatformExample(
        name="a card that comes after this release",
        files=_cards(("TN300", 128 * _GB, "ready\n")),
        refused=("unknown_architecture",),
    ),
    PlatformExample(
        name="cards that failed", files=_cards(("TN100", 32 * _GB, "resetting\n")), refused=("driver_failed",)
    ),
    PlatformExample(
        name="a server without cards",
        files={"/proc/cpuinfo": _EPYC, "/proc/meminfo": _MEMINFO, "/proc/self/cgroup": "0::/\n"} | _PAIRS,
        facts={
            "arch": "host-avx512",
            "arch_family": "tern_x86",
            "arch_version": (2,),
            "dtypes": ("bfloat16", "float32"),
            "memory_bytes": 65536000 << 10,
            "num_devices": 1,
            "shared_device": True,
            "device_name": "AMD EPYC 9554",
        },
        known=True,
        needs=("avx512_bf16", "avx512f"),
        said=(
            (tern_machine.total_memory, 65536000 << 10),
            (tern_machine.available_memory, 40960000 << 10),
            (_cores, 2),
        ),
    ),
    PlatformExample(
        name="a container",
        files={
            "/proc/cpuinfo": _HASWELL,
            "/proc/meminfo": _MEMINFO,
            "/proc/self/cgroup": "0::/pod/app\n",
            "/sys/fs/cgroup/pod/memory.max": f"{8 * _GB}\n",
            "/sys/fs/cgroup/pod/memory.current": f"{5 * _GB}\n",
            "/sys/fs/cgroup/pod/memory.stat": f"anon {_GB}\ninactive_file {2 * _GB}\nactive_file 0\n",
            "/sys/fs/cgroup/pod/app/memory.max": "max\n",
            "/sys/fs/cgroup/pod/app/memory.current": f"{4 * _GB}\n",
        },
        facts={"arch": "host-avx2", "arch_version": (1,), "dtypes": ("float32",), "memory_bytes": 8 * _GB},
        known=True,
        said=((tern_machine.total_memory, 8 * _GB), (tern_machine.available_memory, 5 * _GB)),
    ),
    PlatformExample(
        name="a container of the first control groups, and an old kernel",
        files={
            "/proc/cpuinfo": _GRAVITON,
            "/proc/meminfo": "MemTotal: 8388608 kB\nMemFree: 1048576 kB\nCached: 2097152 kB\n",
            "/proc/self/cgroup": "4:cpu,cpuacct:/app\n3:memory:/app\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/memory/app/memory.limit_in_bytes": f"{4 * _GB}\n",
            "/sys/fs/cgroup/memory/app/memory.usage_in_bytes": f"{2 * _GB}\n",
        },
        machine="aarch64",
        facts={"arch": "host-asimd-bf16", "arch_family": "tern_arm", "memory_bytes": 4 * _GB, "device_name": ""},
        known=True,
        needs=("asimddp", "bf16"),
        said=((tern_machine.available_memory, 2 * _GB), (_cores, 4)),
    ),
    PlatformExample(name="an old processor", files={"/proc/cpuinfo": _NEHALEM}, refused=("no_device",)),
    PlatformExample(name="a small Arm", files={"/proc/cpuinfo": _A72}, machine="aarch64", refused=("no_device",)),
    PlatformExample(name="another system", files={"/proc/cpuinfo": _EPYC}, system="Darwin", refused=("no_device",)),
    PlatformExample(name="nothing", refused=("no_device",)),
    PlatformExample(
        name="files without what is wanted",
        files={
            "/proc/cpuinfo": "flags\t: avx2 fma\n",
            "/proc/meminfo": "HugePages_Total: 0\n",
            "/proc/self/cgroup": "\n",
        },
        facts={"arch": "host-avx2", "memory_bytes": 0, "device_name": ""},
        known=True,
        said=((tern_machine.available_memory, 0),),
    ),
)
