"""Runs in a process with JAX and no torch: reads calls from stdin, one line of JSON each, and answers on stdout."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from llmk.planning.checkpoint.folder import read_checkpoint
from llmk.tree import CausalLM, Config
from llmk_models.specs import llmk_models
from llmk_tpu.model import Logits, build
from llmk_tpu.weights import read_weights

LONGEST = 128
"""Sequences are padded to this length, so that a model is compiled once."""


def tokens(folder: str, prompt: list[int], count: int) -> dict[str, Any]:
    """``count`` greedy tokens after ``prompt``, and whether this process has torch."""
    model, found = built(folder), list(prompt)
    while len(found) < len(prompt) + count:
        padded = jnp.zeros(LONGEST, jnp.int32).at[: len(found)].set(jnp.array(found))
        found.append(int(model(padded)[len(found) - 1].argmax()))
    return {"tokens": found[len(prompt) :], "torch": "torch" in sys.modules}


def logits(folder: str, prompt: list[int], dtype: str) -> str:
    """The file with the logits of ``prompt``, computed in ``dtype``."""
    file = Path(folder) / f"jax-{dtype}.npy"
    np.save(file, np.asarray(built(folder, dtype=dtype)(jnp.array(prompt))))
    return str(file)


def loops(folder: str) -> int:
    """How many loops over layers the program of a model has."""
    return str(jax.make_jaxpr(built(folder))(jnp.zeros(3, jnp.int32))).count("scan[")


def page(code: str) -> int:
    """The next token, as the code of a page computes it."""
    names: dict[str, Any] = {}
    exec(code, names)
    return int(names["next_token"])


def built(folder: str, **options: Any) -> Logits:
    """The model of a checkpoint."""
    checkpoint = read_checkpoint(folder)
    tree = tree_of(Config(checkpoint))
    return build(tree, read_weights(tree, checkpoint), **options)


def tree_of(config: Config) -> CausalLM:
    """The tree of a checkpoint of a native family."""
    (path,) = (spec.tree for spec in llmk_models() if config.architecture in spec.architectures)
    module, _, name = path.partition(":")
    tree: CausalLM = getattr(import_module(module), name)(config)
    return tree


CALLS: dict[str, Callable[..., Any]] = {"tokens": tokens, "logits": logits, "loops": loops, "page": page}


def main() -> None:
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"result": CALLS[name](**arguments)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
