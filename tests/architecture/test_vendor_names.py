"""The core knows no device, vendor or vendor library by name: not in identifiers, not in strings, not in comments."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

VENDOR_WORDS = frozenset(
    {"cuda", "cudnn", "cublas", "cutlass", "nccl", "nvidia", "hopper", "blackwell"}
    | {"rocm", "hip", "hipblas", "rccl", "amd", "aiter"}
    | {"xpu", "intel", "oneapi", "onednn", "mkldnn", "sycl"}
    | {"tpu", "npu", "hpu", "gaudi", "habana", "ascend", "neuron", "trainium"}
    | {"mps", "metal", "mlx"}
    | {"triton", "flashinfer", "tensorrt"}
)

SCANNED = frozenset(
    kind
    for name, kind in vars(tokenize).items()
    if name in {"NAME", "STRING", "COMMENT", "FSTRING_MIDDLE"} and isinstance(kind, int)
)


def words(text: str) -> Iterator[str]:
    """The words that identifiers and prose are made of: ``is_fastChip2`` has ``is``, ``fast`` and ``chip``. Python's
    own ``__aiter__`` has none."""
    for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", text.replace("__aiter__", "")):
        yield word.lower()


def vendor_names(source: str) -> list[tuple[int, str]]:
    """Line and word of every vendor name in Python source."""
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in SCANNED:
            for offset, line in enumerate(token.string.splitlines()):
                found += [(token.start[0] + offset, word) for word in words(line) if word in VENDOR_WORDS]
    return found


def test_core_names_no_vendor(root: Path) -> None:
    core = root / "core/src/llmk"
    files = sorted(core.rglob("*.py"))
    assert len(files) > 15, f"expected the core's source below {core}"
    places = [
        f"{file.relative_to(root)}:{line} says {word!r}"
        for file in files
        for line, word in vendor_names(file.read_text())
    ]
    assert not places, "device and vendor names belong in plugins, not in the core:\n" + "\n".join(places)


@pytest.mark.parametrize(
    "source",
    [
        "if tensor.is_cuda: pass",
        "# faster with Triton",
        'name = "hip"',
        'raise ValueError(f"no NVIDIA device at {index}")',
        "class CudaGraph: ...",
        '"""Works\non an amd64 machine."""',
    ],
)
def test_the_scan_sees(source: str) -> None:
    assert vendor_names(source)


@pytest.mark.parametrize("source", ["intelligent = metallic = 1", "# shipped chips", 'device = "cpu"', "ampere = 1"])
def test_the_scan_lets_pass(source: str) -> None:
    assert not vendor_names(source)
