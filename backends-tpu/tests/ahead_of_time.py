"""Compiles the step of a Llama of 8B parameters in bfloat16 for TPUs that are not there, with the kernels that the plan
chooses for them, and prints what the compiler says of it, as JSON: python ahead_of_time.py v5e 64 1 4, with libtpu
installed, for steps of 64 tokens, each of a request of its own, on four chips."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from llmk.config import load
from llmk.planning.boot import Boot, boot
from llmk.tree import lower, weight_map
from llmk_tpu.binding import Binding
from llmk_tpu.devices import Devices
from llmk_tpu.packing import sizes
from llmk_tpu.parameters import Cut, model_parameters, values_of
from llmk_tpu.shapes import Shape
from llmk_tpu.step import Program, State

DENSE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "dtype": "bfloat16",
}
EXPERTS = DENSE | {
    "architectures": ["MixtralForCausalLM"],
    "num_hidden_layers": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
MODELS = {"dense": DENSE, "experts": EXPERTS}
BLOCK, SLOTS = 16, 64
BLOCKS = 128
TRANSFERS = ("infeed", "outfeed", "send", "recv", "MoveToHost", "MoveToDevice")
"""What HLO has where a program exchanges data with the host."""


def main(chip: str, tokens: int, tile: int, count: int, model: str = "dense") -> None:
    config = MODELS[model]
    found, devices = planned(chip, count, config), topology(chip, count)
    tree = found.executor_query.tree
    program = Program(tree, [(i, 0) for i in range(len(tree.layers))], Binding(tree, found.plan), devices.ranks)
    names = weight_map(lower(tree, fuse=False)).items()
    stored = {name: jax.ShapeDtypeStruct(size, jnp.bfloat16) for name, size in names}
    own = abstract_parameters(tree, stored, count)
    shape, state = Shape(tokens, SLOTS, tile), empty_state(config, devices)
    packed = jax.ShapeDtypeStruct((sum(sizes(shape).values()),), jnp.int32)
    start = time.perf_counter()
    step = devices.jit(program, shape, devices.cuts(own))
    compiled = step.lower(devices.abstract(own), devices.abstract_state(state), packed).compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    answer = {
        "seconds": round(time.perf_counter() - start, 1),
        "kernels": {f"{c.kind}:{c.site}": c.id for c in found.plan.choices if c.kind in ("attention", "moe")},
        "custom_calls": sorted(set(re.findall(r'custom_call_target="(\w+)"', text))),
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "cache": state.cache.size * 2 // count,
        "cache_copies": len(re.findall(_whole(state.cache, count), text)),
        "all_reduces": len(re.findall(r"\ball-reduce(?:-start)?\(", text)),
        "transfers": [name for name in TRANSFERS if re.search(rf"\b{name}[(-]|\"{name}\"", text)],
    }
    print(json.dumps(answer))


def _whole(cache: Any, count: int) -> str:
    """Instructions that copy the whole cache of a device: the transposition into another layout is one."""
    layers, blocks, heads, *rest = cache.shape
    size = ",".join(map(str, (layers, blocks, heads // count, *rest)))
    return rf"bf16\[{size}\]\S* (?:copy|transpose)\("


def planned(chip: str, count: int, config: dict[str, Any]) -> Boot:
    """What llmk plans for the machine."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        settings = {"model.path": folder, "parallel.tensor": count}
        return boot(load(settings, environ={}), on=f"tpu/{chip}", verify=False)


def topology(chip: str, count: int) -> Devices:
    """Devices that are not there."""
    found = topologies.get_topology_desc(platform="tpu", topology_name=f"{chip}:2x2")
    return Devices.of(found.devices, count)


def abstract_parameters(tree: Any, stored: dict[str, Any], count: int) -> Any:
    """Parameters without values."""
    made: list[Any] = []

    def make(weights: dict[str, Any]) -> Any:
        made.append(model_parameters(tree, weights, "bfloat16", jnp, count))
        return values_of(made[0])

    shapes = jax.eval_shape(make, stored)
    return jax.tree.map(lambda cut, shape: Cut(shape, cut.axis), made[0], shapes)


def empty_state(config: dict[str, Any], devices: Devices) -> State:
    """The state of :data:`BLOCKS` blocks, without values."""
    layers, width = config["num_hidden_layers"], config["max_position_embeddings"] // BLOCK + 1
    kept = (layers, BLOCKS, 2 * config["num_key_value_heads"], BLOCK, 128)
    return State(
        jax.ShapeDtypeStruct(kept, jnp.bfloat16),
        jax.ShapeDtypeStruct((1, SLOTS, width), jnp.int32),
        jax.ShapeDtypeStruct((SLOTS,), jnp.int32),
    )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), *sys.argv[5:])
