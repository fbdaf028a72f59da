"""Which GPUs are found, and every way in which none can be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from intel_machines import (
    A770,
    A770_LMEM,
    B60,
    B580,
    FUTURE,
    LUNAR_LAKE,
    MAX_1550,
    MAX_1550_XE,
    METEOR_LAKE,
    PANTHER_LAKE,
    PASSED_ON,
    UHD_770,
    Card,
    machine,
)

from llmk.api import Host, Probe
from llmk_xpu.architectures import CHIPS, FEATURES, KNOWN, VERSIONS
from llmk_xpu.installed import TorchBuild, driver_version, read_build
from llmk_xpu.probe import probe
from llmk_xpu.specs import llmk_platforms
from llmk_xpu.topology import read_gpus
from llmk_xpu.visible import device_index, serving, visible

XPU = TorchBuild("2.13.0+xpu", xpu="20260000", graphs=True)
CUDA = TorchBuild("2.13.0+cu130", cuda="13.0")
CPU_ONLY = TorchBuild("2.13.0+cpu")
XE2 = {"xmx", "int8", "fp64", "block_2d", "subgroup16", "subgroup32", "slm_128k"}
HPG = {"xmx", "int8", "subgroup8", "subgroup16", "subgroup32", "slm_64k"}


def reasons(answer: Probe) -> list[str]:
    return [str(reason) for reason in answer.verdict.reasons]


@pytest.mark.parametrize(
    ("card", "arch", "name", "devices", "memory", "features"),
    [
        (B580, "bmg", "Intel Arc B580", 1, 12 << 30, XE2),
        (B60, "bmg", "Intel Arc Pro B60", 1, 24 << 30, XE2),
        (MAX_1550, "pvc", "Intel Data Center GPU Max 1550", 2, 64 << 30, XE2),
        (MAX_1550_XE, "pvc", "Intel Data Center GPU Max 1550", 2, 64 << 30, XE2),
        (A770, "dg2", "Intel Arc A770", 1, 0, HPG),
        (A770_LMEM, "dg2", "Intel Arc A770", 1, 16 << 30, HPG),
        (LUNAR_LAKE, "lnl", "Intel Arc 140V", 1, 0, XE2 | {"unified_memory"}),
        (PANTHER_LAKE, "ptl", "Intel Graphics (Xe3)", 1, 0, XE2 | {"unified_memory"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_facts(tmp_path: Path, card: Card, arch: str, name: str, devices: int, memory: int, features: set[str]) -> None:
    answer = probe(machine(tmp_path, [card]).host(), XPU)
    assert answer.verdict, reasons(answer)
    facts = answer.facts
    assert facts is not None
    assert (facts.label, facts.arch_version, facts.device_name) == (f"xpu/{arch}", VERSIONS[arch], name)
    assert (facts.device_type, facts.num_devices, facts.memory_bytes) == ("xpu", devices, memory)
    assert facts.features - {"triton"} == features | {"asynchronous", "graphs"}
    assert facts.dtypes[0] == "bfloat16"


def test_no_graphs_without_torch_s() -> None:
    assert not read_build("__version__ = '2.10.0+xpu'\nxpu: Optional[str] = '20250302'\n", graphs=False).graphs
    assert not read_build("__version__ = '2.13.0+cpu'\nxpu: Optional[str] = None\n", graphs=True).graphs


def test_without_matrix_units_bfloat16_is_not_native(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, [METEOR_LAKE]).host(), XPU).facts
    assert facts is not None
    assert (facts.arch, facts.dtypes, "xmx" in facts.features) == ("mtl", ("float16", "float32"), False)


def test_tables_agree() -> None:
    assert {chip.arch for chip in CHIPS.values()} == set(FEATURES) == set(VERSIONS) == {facts.arch for facts in KNOWN}
    assert len(set(VERSIONS.values())) == len(VERSIONS)
    for arch, features in FEATURES.items():
        assert len(features & {"slm_64k", "slm_128k"}) == 1, arch
        assert "subgroup16" in features, "which matrix instructions and Triton's kernels take"
        assert ("int8" in features) == ("xmx" in features)
        assert "fp8" not in features, "none of them multiplies fp8"
    shared = {arch for arch, features in FEATURES.items() if "unified_memory" in features}
    assert all(chip.memory_gib == 0 and chip.stacks == 1 for chip in CHIPS.values() if chip.arch in shared)


@pytest.mark.parametrize("order", [(UHD_770, B580), (B580, UHD_770), (LUNAR_LAKE, B580)])
def test_a_card_next_to_a_processors_graphics_serves(tmp_path: Path, order: tuple[Card, Card]) -> None:
    host = machine(tmp_path, order).host()
    facts = probe(host, XPU).facts
    assert facts is not None
    assert (facts.label, facts.num_devices) == ("xpu/bmg", 1)
    assert device_index(host, 0) == 0, "torch shows cards only, where there are any"


def test_gpus_of_one_architecture_serve_together(tmp_path: Path) -> None:
    host = machine(tmp_path, [A770, B580, B60]).host()
    assert probe(host, XPU).unused == ("Intel Arc A770 (dg2)",)
    facts = probe(host, XPU).facts
    assert facts is not None
    assert (facts.arch, facts.num_devices, facts.memory_bytes) == ("bmg", 2, 12 << 30)
    by_slot = [gpu.slot for gpu in read_gpus(host)]
    assert by_slot == sorted([A770.slot, B580.slot, B60.slot])
    assert [by_slot[device_index(host, rank)] for rank in (0, 1)] == [B580.slot, B60.slot]


def test_stacks_may_be_joined(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, [MAX_1550_XE]).host(ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE"), XPU).facts
    assert facts is not None
    assert (facts.num_devices, facts.memory_bytes) == (1, 128 << 30)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"ZE_AFFINITY_MASK": "1"}, [1]),
        ({"ZE_AFFINITY_MASK": "2,0"}, [0, 2]),
        ({"ZE_AFFINITY_MASK": "0.0,7"}, [0]),
        ({"ZE_AFFINITY_MASK": "1,2", "ONEAPI_DEVICE_SELECTOR": "level_zero:1"}, [2]),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"}, [0, 1, 2]),
        ({"ONEAPI_DEVICE_SELECTOR": "opencl:*;level_zero:2"}, [2]),
        ({"ONEAPI_DEVICE_SELECTOR": "*:0,1"}, [0, 1]),
        ({"ONEAPI_DEVICE_SELECTOR": "!level_zero:0"}, [1, 2]),
        ({"ONEAPI_DEVICE_SELECTOR": "opencl:gpu"}, []),
        ({"ZE_AFFINITY_MASK": "9"}, []),
    ],
)
def test_visible_devices(tmp_path: Path, environ: dict[str, str], expected: list[int]) -> None:
    gpus = read_gpus(machine(tmp_path, [MAX_1550_XE, B580]).host())
    assert [gpu.arch for gpu in gpus] == ["bmg", "pvc", "pvc"]
    assert visible(gpus, environ) == [gpus[index] for index in expected]


def test_graphics_can_be_chosen_by_hiding_the_card(tmp_path: Path) -> None:
    facts = probe(machine(tmp_path, [LUNAR_LAKE, B580]).host(ZE_AFFINITY_MASK="1"), XPU).facts
    assert facts is not None
    assert facts.label == "xpu/lnl"


def test_all_hidden(tmp_path: Path) -> None:
    (reason,) = reasons(probe(machine(tmp_path, [B580]).host(ZE_AFFINITY_MASK="5"), XPU))
    assert reason.startswith("no visible device: wanted a visible GPU, found ZE_AFFINITY_MASK='5', of 1 devices")


def test_an_unknown_card_is_named_with_the_fix(tmp_path: Path) -> None:
    answer = probe(machine(tmp_path, [FUTURE]).host(), XPU)
    (reason,) = reasons(answer)
    assert answer.facts is None
    assert reason.startswith("unknown architecture: wanted one of pvc, bmg, ")
    assert "found PCI device 0x674c (xe)" in reason
    assert "pip install --upgrade llmk-backends-xpu" in reason
    gpus = visible(read_gpus(machine(tmp_path, [FUTURE, B580]).host()), {})
    assert [gpus[index].arch for index in serving(gpus)] == ["bmg"], "it doesn't keep others from serving"


def test_old_graphics_are_named_as_such(tmp_path: Path) -> None:
    answer = probe(machine(tmp_path, [UHD_770]).host(), XPU)
    (reason,) = reasons(answer)
    assert not answer.unused, "no wheel could use them"
    assert reason.startswith("unknown architecture")
    assert "found PCI device 0x4680 (i915) (graphics of processors before Meteor Lake" in reason


@pytest.mark.parametrize(
    ("build", "found"),
    [(CUDA, "found torch 2.13.0+cu130, built with CUDA 13.0"), (CPU_ONLY, "found torch 2.13.0+cpu")],
)
def test_torch_for_something_else(tmp_path: Path, build: TorchBuild, found: str) -> None:
    answer = probe(machine(tmp_path, [B580]).host(), build)
    (reason,) = reasons(answer)
    assert reason.startswith(f"torch without xpu: wanted torch built for XPUs, {found}")
    assert "pip install torch --index-url https://download.pytorch.org/whl/xpu" in reason
    assert answer.facts is not None, "the machine can be planned for all the same"


def test_no_gpu(tmp_path: Path) -> None:
    (reason,) = reasons(probe(Host(root=tmp_path, environ={}), XPU))
    assert reason.startswith("no device: wanted an Intel GPU, found none on the PCI bus")


def test_no_driver_of_the_kernel(tmp_path: Path) -> None:
    bare = Card(B580.source, B580.device, B580.slot, driver="")
    made = machine(tmp_path, [bare])
    made.files["proc/sys/kernel/osrelease"] = "6.8.0-45-generic\n"
    answer = probe(made.host(), XPU)
    (reason,) = reasons(answer)
    assert answer.unused == ("Intel Arc B580 (0xe20b)",)
    assert reason.startswith("no driver: wanted the driver xe or i915, found Intel Arc B580 (0xe20b) with no driver")
    assert "on Linux 6.8.0-45-generic" in reason
    assert "from Linux 6.12 on" in reason


def test_a_card_that_a_virtual_machine_has(tmp_path: Path) -> None:
    (reason,) = reasons(probe(machine(tmp_path, [PASSED_ON]).host(), XPU))
    assert "found Intel Arc B580 (0xe20b) with the driver vfio-pci" in reason


def test_of_several_level_zeros_the_one_that_is_loaded_counts(tmp_path: Path) -> None:
    made = machine(tmp_path, [B580])
    made.files["usr/local/lib/libze_intel_gpu.so.1.3.27191"] = ""
    assert not probe(made.host(), XPU).verdict, "the loader looks there first"
    folder = tmp_path / "usr/local/lib"
    (folder / "libze_intel_gpu.so.1.6.33578").write_text("")
    assert probe(made.host(), XPU).verdict
    (folder / "libze_intel_gpu.so.1").symlink_to("libze_intel_gpu.so.1.3.27191")
    (reason,) = reasons(probe(made.host(), XPU))
    assert reason.startswith("driver too old: wanted Level Zero's driver from 1.6.32567 on, found 1.3.27191")


def test_no_level_zero(tmp_path: Path) -> None:
    answer = probe(machine(tmp_path, [B580], level_zero="").host(), XPU)
    (reason,) = reasons(answer)
    assert reason.startswith("no driver: wanted Level Zero's driver, libze_intel_gpu.so.1, found no such file")
    assert "libze-intel-gpu1" in reason
    assert answer.facts is not None


def test_an_old_level_zero(tmp_path: Path) -> None:
    old = "usr/lib64/libze_intel_gpu.so.1.3.29735"
    (reason,) = reasons(probe(machine(tmp_path, [B580], level_zero=old).host(), XPU))
    assert reason.startswith("driver too old: wanted Level Zero's driver from 1.6.32567 on, found 1.3.29735")


def test_the_library_is_looked_for_where_programs_do(tmp_path: Path) -> None:
    made = machine(tmp_path, [B580], level_zero="opt/driver/lib/libze_intel_gpu.so.1.14.37020")
    assert driver_version(made.host()) is None
    assert driver_version(made.host(LD_LIBRARY_PATH="relative:/opt/driver/lib")) == (1, 14, 37020)
    made.files = {"usr/lib/libze_intel_gpu.so.1": ""}
    other = machine(tmp_path / "other", [], level_zero="")
    other.files |= made.files
    assert driver_version(other.host()) == (), "a file whose name has no version is taken"


def test_device_files_that_a_container_lacks(tmp_path: Path) -> None:
    made = machine(tmp_path, [B580])
    del made.files["dev/dri/renderD128"]
    (reason,) = reasons(probe(made.host(), XPU))
    assert reason.startswith("no device file: wanted /dev/dri/renderD128, found nothing (in a container, pass /dev/dri")


def test_a_container_without_sysfs_s_cards(tmp_path: Path) -> None:
    made = machine(tmp_path, [B580])
    made.files = {path: text for path, text in made.files.items() if "/drm/" not in path}
    (reason,) = reasons(probe(made.host(), XPU))
    assert reason.startswith("no device file: wanted a card in /sys/class/drm, found none, but Intel Arc B580 (0xe20b)")


def test_device_files_that_the_user_may_not_open(tmp_path: Path) -> None:
    host = machine(tmp_path, [B580]).host()
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "dev/dri/renderD128").chmod(0o600)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        # Root may open everything, so another user asks.
        if os.getuid() == 0:
            os.setuid(65534)
        else:
            (tmp_path / "dev/dri/renderD128").chmod(0)
        os.write(writing, "\n".join(reasons(probe(host, XPU))).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    text = os.read(reading, 1 << 16).decode()
    os.close(reading)
    assert "no permission: wanted to open /dev/dri/renderD128, found no permission (sudo usermod -a -G render" in text


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("__version__ = '2.13.0+xpu'\ncuda: Optional[str] = None\nxpu: Optional[str] = '20260000'\n", XPU),
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nxpu: Optional[str] = None\n", CUDA),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nxpu: Optional[str] = None\n", CPU_ONLY),
        ("", TorchBuild("unknown")),
    ],
)
def test_torch_s_build_is_read_from_its_version_file(text: str, build: TorchBuild) -> None:
    assert read_build(text, graphs=True) == build


@pytest.mark.hook("llmk_platforms")
def test_known_machines_have_different_names() -> None:
    (spec,) = llmk_platforms()
    names = [facts.device_name for facts in spec.known]
    assert spec.known == KNOWN
    assert len(set(names)) == len(names)
    assert spec.known[0].label == "xpu/pvc"
    assert "llmk-triton" in spec.vouches
