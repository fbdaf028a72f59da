"""Detection on trees of files like those of TPU machines: PCI ids as JAX lists them, device nodes of both drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmk.api import Host
from llmk_tpu.probe import KNOWN, probe

INSTALLED = ("jax", "libtpu")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a machine with so many devices of a PCI id, device nodes, and Python modules."""

    def make(
        pci: str = "", count: int = 0, nodes: tuple[str, ...] = (), modules: tuple[str, ...] = INSTALLED, **more: Any
    ) -> Host:
        for number in range(count):
            folder = tmp_path / f"sys/bus/pci/devices/0000:00:0{number}.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text("0x1ae0\n")
            (folder / "device").write_text(f"{pci}\n")
        for node in nodes:
            file = tmp_path / node.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        monkeypatch.setattr(Host, "has_module", lambda self, name: name in modules)
        return Host(root=tmp_path, **{"environ": {}, **more})

    return make


@pytest.mark.parametrize(
    ("pci", "nodes", "arch"),
    [
        ("0x0063", ("/dev/vfio/0", "/dev/vfio/1", "/dev/vfio/vfio"), "v5e"),
        ("0x006f", ("/dev/vfio/0", "/dev/vfio/1"), "v6e"),
        ("0x005e", ("/dev/accel0", "/dev/accel1", "/dev/accel_other"), "v4"),
    ],
)
def test_machines(host: Any, pci: str, nodes: tuple[str, ...], arch: str) -> None:
    found = probe(host(pci, 2, nodes))
    assert found.verdict
    assert found.facts
    assert (found.facts.arch, found.facts.num_devices, found.facts.device_type) == (arch, 2, "")
    assert any(known.arch == arch and known.memory_bytes == found.facts.memory_bytes for known in KNOWN)


def test_container_that_shows_no_bus(host: Any) -> None:
    environ = {"TPU_ACCELERATOR_TYPE": "v5litepod-4"}
    found = probe(host(nodes=("/dev/vfio/0", "/dev/vfio/1", "/dev/vfio/2", "/dev/vfio/3"), environ=environ))
    assert found.facts
    assert (found.facts.arch, found.facts.num_devices) == ("v5e", 4)
    assert not probe(host(environ={"TPU_ACCELERATOR_TYPE": "v99-4"})).verdict


@pytest.mark.parametrize(
    ("machine", "code", "hint"),
    [
        ({}, "no_device", "plugin.tpu.emulate=true"),
        ({"pci": "0x9999", "count": 1}, "no_device", "plugin.tpu.emulate=true"),
        ({"pci": "0x0063", "count": 1}, "no_driver", "start the container with"),
        (
            {"pci": "0x0063", "count": 1, "nodes": ("/dev/vfio/0",), "modules": ("jax",)},
            "missing_module",
            "pip install 'llmk-backends-tpu[tpu]'",
        ),
        (
            {"pci": "0x0063", "count": 1, "nodes": ("/dev/vfio/0",), "modules": ()},
            "missing_module",
            "pip install 'llmk-backends-tpu[tpu]'",
        ),
        ({"options": {"emulate": "true"}, "modules": ()}, "missing_module", "pip install 'llmk-backends-tpu[jax]'"),
    ],
)
def test_what_is_missing(host: Any, machine: dict[str, Any], code: str, hint: str) -> None:
    found = probe(host(**machine))
    assert not found.verdict
    assert found.verdict.reasons[0].code == code
    assert hint in found.verdict.reasons[0].hint


def test_nodes_that_may_not_be_opened(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = host("0x0063", 1, ("/dev/vfio/0",))
    monkeypatch.setattr("os.access", lambda path, mode: False)
    found = probe(machine)
    assert [reason.code for reason in found.verdict.reasons] == ["no_permission"]
    assert found.unused == ("TPU v5e",)


@pytest.mark.parametrize("value", [True, "true", "1"])
def test_emulated(host: Any, value: object) -> None:
    found = probe(host(modules=("jax",), options={"emulate": value}))
    assert found.verdict
    assert found.facts
    assert found.facts.label == "tpu/emulated"
    assert not probe(host(modules=("jax",), options={"emulate": "false"})).verdict
