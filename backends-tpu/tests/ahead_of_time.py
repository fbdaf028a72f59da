"""Compiles the step of a Llama of 8B parameters in bfloat16 for a TPU that is not there, and prints what the compiler
says of it, as JSON: python ahead_of_time.py v5e:2x2 64 1, with libtpu installed."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
}

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from llmk.api import Checkpoint
from llmk.tree import Config, lower, weight_map
from llmk_models import dense
from llmk_tpu.packing import sizes
from llmk_tpu.parameters import model_parameters
from llmk_tpu.shapes import Shape
from llmk_tpu.step import State, run_step

CONFIG: dict[str, Any] = {
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
BLOCK, SLOTS = 16, 64
BLOCKS = 128


def main(topology: str, tokens: int, tile: int) -> None:
    device = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices[0]
    where = SingleDeviceSharding(device)

    def there(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where), tree)

    model, shape = dense.tree(Config(Checkpoint(Path("/none"), CONFIG))), Shape(tokens, SLOTS, tile)
    stored = {
        name: jax.ShapeDtypeStruct(size, jnp.bfloat16) for name, size in weight_map(lower(model, fuse=False)).items()
    }
    own = there(jax.eval_shape(lambda weights: model_parameters(model, weights, "bfloat16", jnp), stored))
    layers, width = CONFIG["num_hidden_layers"], CONFIG["max_position_embeddings"] // BLOCK + 1
    kept = (layers, BLOCKS, BLOCK, 2 * CONFIG["num_key_value_heads"], 128)
    state = State(
        jax.ShapeDtypeStruct(kept, jnp.bfloat16),
        jax.ShapeDtypeStruct((1, SLOTS, width), jnp.int32),
        jax.ShapeDtypeStruct((SLOTS,), jnp.int32),
    )
    packed = jax.ShapeDtypeStruct((sum(sizes(shape).values()),), jnp.int32)
    step = jax.jit(partial(run_step, model, [(i, 0) for i in range(layers)], shape), donate_argnums=1)
    start = time.perf_counter()
    compiled = step.lower(own, there(state), there(packed)).compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    found = {
        "seconds": round(time.perf_counter() - start, 1),
        "arguments": memory.argument_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "aliased": memory.alias_size_in_bytes,
        "cache": 2 * layers * BLOCKS * BLOCK * 2 * CONFIG["num_key_value_heads"] * 128,
        "transfers": [name for name in (" infeed(", " outfeed(", " send(", " recv(", "MoveToHost") if name in text],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
