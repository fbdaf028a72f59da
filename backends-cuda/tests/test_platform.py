"""What of the platform's run-time half can be seen without a GPU; the rest is in :file:`test_gpu.py`."""

from __future__ import annotations

import torch

from llmk.api import Platform
from llmk_cuda.platform import CUDAPlatform
from llmk_cuda.probe import KNOWN


def test_making_one_leaves_cuda_alone() -> None:
    platform: Platform = CUDAPlatform(KNOWN[0])
    assert not torch.cuda.is_initialized()
    assert platform.facts is KNOWN[0]
    assert platform.device.torch_device(2) == torch.device("cuda", 2)
    assert platform.graphs is not None
    assert platform.collectives is not None
    assert platform.collectives.backend == "nccl"
