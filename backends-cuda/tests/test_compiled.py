"""The kernels that quantize activations, and that sum over GPUs, compile for GPUs that aren't here, and keep what they
hold in registers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "plugins/triton/tests"
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import ahead_of_time as aot
import torch

target = sys.argv[2]
aot.driver.set_active(aot.StandIn(target))
with aot.watched("bf16", target) as found:
    {run}
print(json.dumps([(kernel.kernel, kernel.problem) for kernel in found]))
"""
QUANTIZED = """
    from llmk_cuda.quantize import quantize_groups, quantize_rows

    for size in (128, 1024, 12288):
        x = torch.empty(3, size, dtype=torch.bfloat16)
        quantize_rows(x)
        quantize_groups(x)
"""
SUMMED = """
    from llmk_cuda.all_reduce import MOST, PeerAllReduce

    early = target != "cuda:80"
    for ranks in (2, 8):
        most = MOST[ranks]
        own = PeerAllReduce(1, [(rank + 1) << 40 for rank in range(ranks)], most, torch.device("cpu"), pdl=early)
        own(torch.empty(8, dtype=torch.bfloat16))
        own(torch.empty(most.two_shot // 2, dtype=torch.bfloat16))
        x = torch.empty(8, 4096, dtype=torch.bfloat16)
        own.add_rms_norm(x, x, x[0], 1e-6)
"""


def compiled(run: str, target: str) -> list[list[str]]:
    """The kernels that ``run`` launches, with what is wrong with each."""
    command = [sys.executable, "-c", CODE.format(run=run.strip()), str(TOOLS), target]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return sorted(found)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:90", "cuda:100"])
def test_activations_are_quantized_in_registers(target: str) -> None:
    assert compiled(QUANTIZED, target) == [[name, ""] for name in ("groups_kernel", "rows_kernel") for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90", "cuda:100"])
def test_tensors_are_summed_in_registers(target: str) -> None:
    kernels = ("add_rms_norm_kernel", "one_shot_kernel", "two_shot_kernel")
    assert compiled(SUMMED, target) == [[name, ""] for name in kernels for _ in range(2)]
