"""The platform and the kernel, as llmk uses them. Two devices of 64 MiB each are to be visible."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from llmk_nova.kernels import add_rms_norm
from llmk_nova.platform import NovaPlatform
from llmk_nova.probe import probe

from llmk.api import Host
from llmk.reference.norms import make_add_rms_norm, rms_norm

SIZE = 64 << 20
PROBE = """
import sys
from llmk.api import Host
from llmk_nova import specs

specs.probe(Host())
print("torch" in sys.modules)
"""
BEGUN = """
import torch
from llmk_nova.platform import NovaPlatform
from llmk_nova.probe import facts_of

device = NovaPlatform(facts_of()).device
before = torch.nova.is_initialized()
device.setup(0)
print(before, torch.nova.is_initialized())
"""


def test_the_probe_reads_the_environment() -> None:
    found = probe(Host())
    assert found.verdict
    assert found.facts is not None
    assert (found.facts.num_devices, found.facts.memory_bytes) == (2, SIZE)
    assert (found.facts.num_devices, found.facts.memory_bytes) == (
        torch.nova.device_count(),
        torch.accelerator.get_memory_info()[1],
    )
    hidden = probe(Host(environ={"NOVA_VISIBLE_DEVICES": ""}))
    assert [reason.code for reason in hidden.verdict.reasons] == ["no_visible_device"]


def test_the_probe_starts_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_the_device_begins_when_it_is_set_up() -> None:
    done = subprocess.run([sys.executable, "-c", BEGUN], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False True\n"


def test_facets_tell_the_truth() -> None:
    facts = probe(Host()).facts
    assert facts is not None
    platform = NovaPlatform(facts)
    platform.device.setup(1, threads=1)
    assert torch.accelerator.current_device_index() == 1
    where = platform.device.torch_device(1)
    held = torch.zeros(1 << 20, device=where)
    assert platform.memory.total() == SIZE
    assert platform.memory.available() == SIZE - torch.accelerator.memory_allocated()

    def run() -> None:
        for _ in range(3):
            torch.cat([held, held])

    assert platform.memory.measure(run) == 2 * held.nbytes
    torch.nova.reset_counts()
    platform.device.synchronize()
    assert torch.nova.counted()["waits"] == {"device": 1}
    platform.device.setup(0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2**-7)])
@pytest.mark.parametrize("shape", [(1, 64), (33, 96), (2, 3, 8), (0, 16)])
def test_the_kernel_agrees_with_the_reference(shape: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    random = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(shape, generator=random).to(dtype) for _ in range(2))
    weight = torch.randn(shape[-1], generator=random).to(dtype)
    expected = make_add_rms_norm({"rms_norm": rms_norm})(x, residual, weight, 1e-6)
    found = add_rms_norm(*(tensor.to("nova") for tensor in (x, residual, weight)), 1e-6)
    torch.testing.assert_close(found[0].cpu(), expected[0], rtol=tolerance, atol=tolerance)
    assert torch.equal(found[1].cpu(), expected[1])


def test_the_kernel_refuses_what_does_not_fit() -> None:
    x, weight = torch.ones(2, 4, device="nova"), torch.ones(5, device="nova")
    with pytest.raises(RuntimeError, match="don't belong together"):
        add_rms_norm(x, x, weight, 1e-6)
    with pytest.raises(RuntimeError, match="float32 or bfloat16"):
        add_rms_norm(x.half(), x.half(), torch.ones(4, device="nova").half(), 1e-6)
