"""What of the platform's run-time half can be seen without a GPU; the rest is in :file:`test_gpu.py`."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALONE = """
import torch
from llmk_cuda.platform import CUDAPlatform
from llmk_cuda.probe import KNOWN

platform = CUDAPlatform(KNOWN[0])
assert not torch.cuda.is_initialized()
assert platform.facts is KNOWN[0]
assert platform.device.torch_device(2) == torch.device("cuda", 2)
assert platform.graphs is not None
assert platform.collectives is not None
assert platform.collectives.backend == "nccl"
"""


@pytest.mark.slow
def test_creating_a_platform_does_not_initialize_cuda() -> None:
    """In a process in which CUDA was not initialized before."""
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
