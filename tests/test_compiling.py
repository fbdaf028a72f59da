"""Compiling Triton's kernels ahead, by the platform that has them and for kernels that ship: through Triton's own
launch path, in processes of their own, with a driver that launches nothing but counts (``plugins/triton/tests``).
Warm-up notes them for all layers, though few run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from equal_tokens import KINDS

from llmk_testing.checkpoints import write_checkpoint

ROOT = Path(__file__).parents[1]
SETUP = """
import sys
sys.path.insert(0, {tests!r})
import torch, triton
import triton.language as tl
import ahead_of_time, shipped
from llmk_cuda.compiling import TritonCompiling

launched = []

class Counting(ahead_of_time.StandIn):
    def __init__(self, name):
        super().__init__(name)
        self.launcher_cls = lambda source, metadata: lambda *arguments: launched.append(source.name)

ahead_of_time.driver.set_active(Counting("cuda:90"))
compiled = []

def listen(src, cache_hit, **others):
    compiled.append((src.name, cache_hit))

triton.knobs.compilation.listener = listen
"""
STEP = """
def step():
    shipped.CASES["mixed qwen3-0.6b bf16"]()
    shipped.CASES["elementwise 1024x3072 bf16"]()

with TritonCompiling().ahead():
    step()
    step()
    assert launched == [], launched
    assert torch.empty(5).tolist() == torch.empty_like(torch.ones(5)).tolist() == [0.0] * 5
number = len(compiled)
assert number >= 8 and len(set(compiled)) >= 5, compiled
assert all(hit for _, hit in compiled), "others compiled them"
step()
assert len(launched) >= number, launched
assert len(compiled) == number, "the step compiles nothing any more"
"""
KERNEL = """
@triton.jit
def broken(x, SIZE: tl.constexpr):
    tl.store(x + tl.arange(0, SIZE), tl.arange(0, SIZE + 1))

@triton.jit
def whole(x):
    tl.store(x, 1.0)

def fails(run, kind):
    try:
        run()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")

x = torch.zeros(8)
"""
BROKEN = """
def ahead():
    with TritonCompiling().ahead():
        broken[(1,)](x, 4)
        whole[(1,)](x)

assert "arange" in fails(ahead, triton.CompilationError)
whole[(1,)](x)
assert launched == ["whole"], "the other one is compiled"
assert "could not be compiled" in fails(lambda: broken[(1,)](x, 4), RuntimeError), "it is never left out in silence"
"""
RAISING = """
def ahead():
    with TritonCompiling().ahead():
        whole[(1,)](x)
        raise KeyError("of the step's own")

assert "own" in fails(ahead, KeyError)
whole[(1,)](x)
assert launched == ["whole"] and len(compiled) == 1
assert torch.empty is not None
"""

LATE = """
import logging

@triton.jit
def late(x):
    tl.store(x, 2.0)

logging.basicConfig()
triton.knobs.compilation.listener = None
with TritonCompiling().ahead():
    whole[(1,)](x)
for _ in range(2):
    whole[(1,)](x)
    late[(1,)](x)
assert launched == ["whole", "late"] * 2, launched
"""

NOTED = """
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from triton.runtime._async_compile import active_mode
from llmk.config import load
from llmk.engine.execution import build, warmup
from llmk.planning.boot import boot as start
from llmk_cuda.compiling import _Unlaunched, _Zeros

noted, names, runs = [], [], []

class Counted(_Unlaunched):
    def run(self, *arguments):
        runs.append(1)

class Noting:
    @contextmanager
    def ahead(self):
        token = active_mode.set(self)
        with _Zeros():
            yield
        active_mode.reset(token)

    def submit(self, key, compile, keep):
        noted.append(key)
        kernels = [cell.cell_contents for cell in compile.__closure__]
        names.extend(kernel.__name__ for kernel in kernels if hasattr(kernel, "arg_names"))
        keep(kernel := Counted())
        return kernel

class Here:
    def __init__(self, facts):
        self.facts, self.compiling, self.collectives = facts, Noting(), None
        self.graphs = SimpleNamespace(capture=lambda run: None, on_demand=0)
        size = lambda: 1 << 36
        self.memory = SimpleNamespace(total=size, available=size, measure=lambda run: None)
        here = {{"torch_device": lambda index: torch.device("cpu"), "synchronize": lambda: None}}
        self.device = SimpleNamespace(setup=lambda index, threads: None, **here)

sys.modules["here"] = SimpleNamespace(Here=Here)
options = {{"dtype": "bfloat16", "max_model_len": 128, "load_format": "dummy"}}
settings = {{"model.path": {folder!r}, **{{f"model.{{name}}": value for name, value in options.items()}}}}
limits = {{"scheduler.max_num_batched_tokens": 120, "scheduler.max_num_seqs": 80}}
boot = start(load(settings | limits, environ={{}}), on="cuda/h200")
boot = replace(boot, plan=replace(boot.plan, platform_implementation="here:Here"))
loaded = build.load_model(boot)
(groups,) = build.cache_groups(boot, [loaded.cache_specs])
runner = build.build_runner(boot, loaded, warmup.BLOCKS, groups)
recordings = build.recordable(boot, loaded.platform)
warm_up = warmup.WarmUp(runner, groups, 120, 80, 128, recordings.first + recordings.later)
warm_up.run(loaded.platform)
few, at_first = len(runs), len(noted)
assert at_first > 10, len(noted)
random = Random(0)
for _ in range(30):
    number, parts, room = random.choice((1, 2, 3, 7, 30, 70, 80)), [], 120
    for left in reversed(range(number)):
        length = random.choice((1, random.randint(1, room - left)))
        parts.append(warmup._Part(length, random.randint(0, 128 - length)))
        room -= length
    with loaded.platform.compiling.ahead(), loaded.build.representative_layers():
        warm_up._submit([parts])
    assert len(noted) == at_first, f"compiled while requests wait: {{parts}}: {{names[at_first:]}}"
loaded.build.representative_layers = nullcontext
warm_up.run(loaded.platform)
assert len(noted) == at_first, f"left out: {{len(noted) - at_first}}"
assert len(runs) - few > 1.5 * few, (few, len(runs) - few)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_few_layers_launch_what_all_do_and_no_step_compiles_more(kind: str, tmp_path: Path) -> None:
    model_type, overrides = KINDS[kind]
    folder = write_checkpoint(tmp_path / "model", model_type, **overrides | {"num_hidden_layers": 16})
    script = tmp_path / "script.py"
    tests = str(ROOT / "plugins/triton/tests")
    script.write_text(SETUP.format(tests=tests) + NOTED.format(folder=str(folder)))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "0"}
    )
    assert done.returncode == 0, done.stderr
    assert "could" not in done.stderr, "a step failed"


@pytest.mark.slow
@pytest.mark.parametrize("code", [STEP, KERNEL + BROKEN, KERNEL + RAISING], ids=["step", "broken", "raising"])
def test_ahead(code: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SETUP.format(tests=str(ROOT / "plugins/triton/tests")) + code)
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_kernel_that_was_not_compiled_ahead_is_reported_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SETUP.format(tests=str(ROOT / "plugins/triton/tests")) + KERNEL + LATE)
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("was not compiled ahead") == 1, done.stderr
    assert "kernel late was not compiled ahead: requests waited" in done.stderr
