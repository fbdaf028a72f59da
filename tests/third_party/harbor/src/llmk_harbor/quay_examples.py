"""What the conformance kit tries the plugins of ``quay`` on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from llmk.api import Host, ParserContext
from llmk_harbor.quay_machine import Node, all_nodes, available_bytes, cores, total_bytes, visible_nodes
from llmk_testing.parser_example import ParserExample
from llmk_testing.platform_example import PlatformExample
from llmk_testing.quantization_example import ConfigExample, QuantizationExample

# The dialect logbook.

LOGBOOK = (
    ParserExample(text="<<log>>\n2 + 2 is 4.\n<</log>>\nIt is 4.", reasoning="2 + 2 is 4.", content="It is 4."),
    ParserExample(
        text="<<log 1: Read the question>>\nTides.\n\n<<log 2>>\nNoon.\n<</log>>\n\n12:40.\n<<log 3: Check>>\nYes.",
        reasoning="Read the question\nTides.\n\nNoon.Check\nYes.",
        content="\n12:40.\n",
    ),
    ParserExample(text="<<log: One line>> is enough<</log>>so", reasoning="One line is enough", content="so"),
    ParserExample(text="<<log 12>>\n\n a \n\n<</log>>\n\n b \n", reasoning="\n a \n", content="\n b \n"),
    ParserExample(text="What <<log>> means<</log>>?", reasoning=" means", content="What ?"),
    ParserExample(text="<<log 7>>It says <<log>> and <<log: X>>", reasoning="It says <<log>> and <<log: X>>"),
    ParserExample(text="No block <</log>>\nis open", content="No block <</log>>\nis open"),
    ParserExample(
        text="<<log 12345>> <<log:x>> <<log: >> <<log x>> <<logs>> <<LOG>> << log>>",
        content="<<log 12345>> <<log:x>> <<log: >> <<log x>> <<logs>> <<LOG>> << log>>",
    ),
    ParserExample(text=f"<<log: {'t' * 41}>>", content=f"<<log: {'t' * 41}>>"),
    ParserExample(text=f"<<log 9999: {'t' * 40}>>a", reasoning=f"{'t' * 40}a"),
    ParserExample(text="<<<log>>\n\n\n<</log>>>", reasoning="\n", content="<>"),
    ParserExample(text="<<log>>cut off <</lo", reasoning="cut off <</lo"),
    ParserExample(text="cut off\n<<log 3: Ti", content="cut off\n<<log 3: Ti"),
    ParserExample(text="<<log>>a\n", reasoning="a\n"),
    ParserExample(text="<<log>>\n<</log>>\n", reasoning="", content=""),
    ParserExample(
        text="It is open.\n<</log>>\nYes.",
        reasoning="It is open.",
        content="Yes.",
        context=ParserContext(prompt_tail="user: Is it?\nassistant: <<log>>\n"),
    ),
    ParserExample(
        text="\nIt is open.<</log>>Yes.",
        reasoning="It is open.",
        content="Yes.",
        context=ParserContext(prompt_tail="assistant: <<log 1>>", thinking=False),
    ),
    ParserExample(
        text="\nIts title is known.<</log>>Yes.",
        reasoning="\nIts title is known.",
        content="Yes.",
        context=ParserContext(prompt_tail="assistant: <<log 1: First>>"),
    ),
    ParserExample(
        text="\nNo thoughts.",
        content="\nNo thoughts.",
        context=ParserContext(prompt_tail="assistant: <<log>>\n<</log>>\n", thinking=False),
    ),
    ParserExample(
        text="It is a marker.",
        content="It is a marker.",
        context=ParserContext(prompt_tail="user: What is <<log>>?\nassistant: ", thinking=True),
    ),
)

# The format berth.


def stored_berth(weight: Tensor, group: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """A weight in the format: 16 levels, denser around 0, of which each weight gets the nearest."""
    book = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8)
    rows, columns = weight.shape
    groups = weight.float().view(rows, -1, group)
    scale = (groups.abs().amax(-1) / 113).clamp(min=2.0**-24).to(dtype)
    codes = (groups[..., None] / scale.float()[..., None, None] - book.float()).abs().argmin(-1).to(torch.uint8)
    low, high = codes.chunk(2, dim=-1)
    return {
        "weight_packed": (low | (high << 4)).reshape(rows, columns // 2),
        "weight_scale": scale,
        "weight_codebook": book[None].clone(),
    }


def restored_berth(stored: dict[str, Tensor], group: int) -> Tensor:
    """Number by number, as the format says."""
    packed, scale, book = (stored[name] for name in ("weight_packed", "weight_scale", "weight_codebook"))
    rows, columns = packed.shape[0], packed.shape[1] * 2
    inputs = torch.arange(columns)
    within = inputs % group
    at_byte = inputs // group * (group // 2) + within % (group // 2)
    code = torch.where(within < group // 2, packed[:, at_byte] & 15, packed[:, at_byte] >> 4)
    levels = book[0].float()[code.long().flatten()].view(rows, columns)
    return levels * scale.float()[:, inputs // group]


_SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4}


def _berth(name: str, model_type: str, group: int, dtype: torch.dtype, **config: object) -> QuantizationExample:
    return QuantizationExample(
        name=name,
        model_type=model_type,
        model_config={**_SIZES, "head_dim": 16, **config},
        stored=lambda weight: stored_berth(weight, group, dtype),
        restored=lambda stored: restored_berth(stored, group),
        quantization_config={"quant_method": "berth", "bits": 4, "group_size": group, "plain_modules": ["lm_head"]},
        error=0.2,
        logits_error=1.0,  # of a model of random weights, which makes much of a tenth
    )


_ATTENTION, _MLP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
_GOOD = {"quant_method": "berth", "bits": 4, "group_size": 32}

BERTH = (
    _berth("groups-of-32", "llama", 32, torch.float16),
    _berth("groups-of-64", "qwen3", 64, torch.bfloat16),
    _berth("biases", "qwen2", 32, torch.bfloat16),
    _berth("experts", "qwen3_moe", 32, torch.float16, moe_intermediate_size=64, num_experts=4, num_experts_per_tok=2),
    ConfigExample(config=_GOOD, modules={_ATTENTION: True, _MLP: True}, unmatched=()),
    ConfigExample(config={"quant_method": "berth", "group_size": 64}, modules={_MLP: True}, unmatched=()),
    ConfigExample(
        config={**_GOOD, "plain_modules": ["model.layers.0.mlp", "model.layers.1", "lm_head"]},
        modules={
            _ATTENTION: True,
            _MLP: False,
            "model.layers.10.mlp.up_proj": True,
            "model.layers.1.mlp.up_proj": False,
        },
        unmatched=("lm_head",),
    ),
    ConfigExample(
        config={**_GOOD, "plain_modules": [_ATTENTION, "mlp", "model.layers.0.mlp.up"]},
        modules={_ATTENTION: False, _MLP: True},
        unmatched=("mlp", "model.layers.0.mlp.up"),
    ),
    ConfigExample(config={**_GOOD, "plain_modules": None}, modules={_MLP: True}, unmatched=()),
    ConfigExample(config={**_GOOD, "plain_modules": _MLP}, modules={_MLP: True}, error="plain_modules"),
    ConfigExample(config={**_GOOD, "plain_modules": [1]}, modules={_MLP: True}, error="plain_modules"),
    ConfigExample(config={**_GOOD, "quant_method": "gptq"}, claimed="quant_method"),
    ConfigExample(config={"bits": 4, "group_size": 32}, claimed="quant_method"),
    ConfigExample(config={**_GOOD, "bits": 3}, claimed="bits"),
    ConfigExample(config={**_GOOD, "bits": "4"}, claimed="bits"),
    ConfigExample(config={**_GOOD, "group_size": 128}, claimed="group_size"),
    ConfigExample(config={**_GOOD, "group_size": True}, claimed="group_size"),
    ConfigExample(config={"quant_method": "berth"}, claimed="group_size"),
)

# Machines.

_V3 = "fpu cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3 avx avx2 bmi1 bmi2 f16c fma movbe"
_V4 = f"{_V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni avx512_bf16"
_ARM = "fp asimd asimdhp asimddp sve sve2 i8mm bf16 svebf16"
_NODES, _CPUS = "/sys/devices/system/node", "/sys/devices/system/cpu"


def _cpuinfo(flags: str, model: str = "") -> str:
    return "".join(f"processor\t: {i}\nmodel name\t: {model}\nflags\t\t: {flags}\n\n" for i in range(2))


def _node(number: int, cpus: str, total: int, free: int = 0) -> dict[str, str]:
    """Sizes in KiB."""
    fields = {"MemTotal": total, "MemFree": free, "Active(file)": 300, "Inactive(file)": 200, "SReclaimable": 100}
    lines = "".join(f"Node {number} {name}:{size:>12} kB\n" for name, size in fields.items())
    folder = f"{_NODES}/node{number}"
    return {f"{folder}/meminfo": lines, f"{folder}/cpulist": f"{cpus}\n"}


def _siblings(pairs: int) -> dict[str, str]:
    """CPUs ``i`` and ``i + pairs`` are threads of a core."""
    return {
        f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list": f"{cpu % pairs},{cpu % pairs + pairs}\n"
        for cpu in range(2 * pairs)
    }


def _total(number: int) -> Callable[[Host], int]:
    return lambda host: total_bytes(host, Node(number, (0,)))


def _available(number: int) -> Callable[[Host], int]:
    return lambda host: available_bytes(host, Node(number, (0,)))


def _numbers(host: Host) -> list[int]:
    return [node.number for node in visible_nodes(host)]


def _all_cpus(host: Host) -> list[tuple[int, ...]]:
    return [node.cpus for node in all_nodes(host)]


_TWO = {
    "/proc/cpuinfo": _cpuinfo(_V3, "Harbour 7"),
    "/proc/meminfo": "MemTotal:  300000 kB\nMemFree:  100 kB\nMemAvailable:  150000 kB\nSwapTotal:  900000 kB\n",
    f"{_NODES}/online": "0-1\n",
    **_node(0, "0-1,4-5", 200000, 90000),
    **_node(1, "2-3,6-7", 100000, 160000),
    **_siblings(4),
}
_GROUP = "/sys/fs/cgroup/work/serve"

_LEVEL_2 = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_LEVEL_3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
MACHINES = (
    PlatformExample(
        name="two nodes",
        files=_TWO,
        facts={
            "name": "numa",
            "arch": "x86_64-avx2",
            "arch_family": "x86_64",
            "arch_version": (3,),
            "device_type": "cpu",
            "features": frozenset({"avx2", "f16c", "fma"}),
            "dtypes": ("float32",),
            "memory_bytes": 100000 * 1024,
            "num_devices": 2,
            "shared_device": True,
            "device_name": "Harbour 7",
        },
        known=True,
        needs=(*_LEVEL_2, *_LEVEL_3),
        devices=("0", "1"),
        said=(
            (_numbers, [0, 1]),
            (_all_cpus, [(0, 1, 4, 5), (2, 3, 6, 7)]),
            (_total(0), 200000 * 1024),
            (_total(1), 100000 * 1024),
            (_available(0), 90600 * 1024),
            (_available(1), 150000 * 1024),
            (lambda host: cores(host, (0, 1, 4, 5)), 2),
            (lambda host: cores(host, (0, 5, 99)), 3),
        ),
    ),
    PlatformExample(
        name="eight nodes with AVX-512, and one of memory alone",
        files={
            "/proc/cpuinfo": _cpuinfo(_V4, "Harbour 9"),
            f"{_NODES}/online": "0-8\n",
            **{k: v for i in range(8) for k, v in _node(i, f"{i}", 500000 + i).items()},
            **_node(8, "", 9000),
        },
        facts={
            "arch": "x86_64-avx512",
            "arch_version": (4,),
            "dtypes": ("bfloat16", "float32"),
            "num_devices": 8,
            "memory_bytes": 500000 * 1024,
        },
        known=True,
        needs=(*_LEVEL_2, *_LEVEL_3, "avx512_bf16", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"),
    ),
    PlatformExample(
        name="two nodes of Arm",
        machine="aarch64",
        files={
            "/proc/cpuinfo": f"processor\t: 0\nFeatures\t: {_ARM}\nCPU part\t: 0xd4f\n",
            f"{_NODES}/online": "0,2\n",
            **_node(0, "0-71", 480000000),
            **_node(2, "72-143", 480000000),
        },
        facts={"arch": "aarch64-bf16", "arch_version": (9,), "num_devices": 2, "device_name": ""},
        known=True,
        needs=("bf16", "sve2"),
        devices=("0", "2"),
        said=((_numbers, [0, 2]),),
    ),
    PlatformExample(
        name="nodes by the environment",
        files=_TWO,
        environ={"QUAY_NODES": "1,0,7"},
        facts={"num_devices": 2},
        said=((_numbers, [1, 0]),),
    ),
    PlatformExample(
        name="one node by the environment",
        files=_TWO,
        environ={"QUAY_NODES": "0"},
        facts={"num_devices": 1, "memory_bytes": 200000 * 1024},
    ),
    PlatformExample(name="no such node", files=_TWO, environ={"QUAY_NODES": "5"}, refused=("no_visible_device",)),
    PlatformExample(name="no node", files=_TWO, environ={"QUAY_NODES": ""}, refused=("no_visible_device",)),
    PlatformExample(
        name="a kernel without nodes",
        files={
            "/proc/cpuinfo": "processor\t: 0\nmodel name\t: Old\nflags\t\t: fpu sse sse2\n",
            "/proc/meminfo": "MemTotal:  4096 kB\nMemAvailable:  1024 kB\n",
            f"{_CPUS}/online": "0-3\n",
        },
        facts={"arch": "x86_64", "num_devices": 1, "memory_bytes": 4 << 20, "features": frozenset()},
        said=((_all_cpus, [(0, 1, 2, 3)]), (_available(0), 1 << 20)),
    ),
    PlatformExample(
        name="a container of version 2",
        files={
            **_TWO,
            "/proc/self/cgroup": "0::/work/serve\n",
            f"{_GROUP}/memory.max": "max\n",
            "/sys/fs/cgroup/work/memory.max": f"{50000 * 1024}\n",
            "/sys/fs/cgroup/work/memory.current": f"{30000 * 1024}\n",
            "/sys/fs/cgroup/work/memory.stat": f"anon 1\nactive_file 7\ninactive_file {1000 * 1024}\n",
        },
        facts={"num_devices": 2, "memory_bytes": 50000 * 1024},
        said=((_total(0), 50000 * 1024), (_available(0), 21000 * 1024)),
    ),
    PlatformExample(
        name="a container of version 1",
        files={
            **_TWO,
            "/proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n",
            "/sys/fs/cgroup/memory/a/memory.limit_in_bytes": f"{60000 * 1024}\n",
            "/sys/fs/cgroup/memory/a/memory.usage_in_bytes": f"{70000 * 1024}\n",
            "/sys/fs/cgroup/memory/a/memory.stat": "inactive_file 1\ntotal_inactive_file 2048\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
        facts={"memory_bytes": 60000 * 1024},
        said=((_available(1), 0),),
    ),
    PlatformExample(name="nothing is known", files={}, facts={"arch": "x86_64", "memory_bytes": 0, "num_devices": 1}),
    PlatformExample(name="another system", files=_TWO, system="Darwin", refused=("no_device",)),
    PlatformExample(name="another processor", files=_TWO, machine="s390x", refused=("unknown_architecture",)),
)
