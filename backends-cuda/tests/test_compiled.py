"""The kernels that quantize activations compile for GPUs that aren't here, and keep what they hold in registers."""

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
from llmk_cuda.quantize import quantize_groups, quantize_rows

target = sys.argv[2]
aot.driver.set_active(aot.StandIn(target))
with aot.watched("quantize bf16", target) as found:
    for size in (128, 1024, 12288):
        x = torch.empty(3, size, dtype=torch.bfloat16)
        quantize_rows(x)
        quantize_groups(x)
print(json.dumps([(kernel.kernel, kernel.problem) for kernel in found]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:90", "cuda:100"])
def test_activations_are_quantized_in_registers(target: str) -> None:
    command = [sys.executable, "-c", CODE, str(TOOLS), target]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "0"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found) == sorted([[name, ""] for name in ("groups_kernel", "rows_kernel") for _ in range(3)])
