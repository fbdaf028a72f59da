"""Which GPUs are found, and every way in which none can be used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from amd_machines import (
    FUTURE,
    MI250X,
    MI300X,
    MI325X,
    MI355X,
    NODES,
    OWN_GRAPHICS,
    RX_7900,
    RX_9070,
    STRIX_HALO,
    WITHOUT_VERSION,
    Card,
    machine,
    on_bus,
)

from llmk.api import Host, Probe
from llmk_rocm.architectures import FEATURES, KNOWN
from llmk_rocm.probe import probe
from llmk_rocm.specs import llmk_platforms
from llmk_rocm.topology import read_gpus
from llmk_rocm.torch_build import TorchBuild, read_build
from llmk_rocm.visible import device_index, serving, visible

ROCM = TorchBuild("2.13.0+rocm7.2", hip="7.2.53211-e1a6bc5663")
CUDA = TorchBuild("2.13.0+cu130", cuda="13.0")
CPU_ONLY = TorchBuild("2.13.0+cpu")


def reasons(answer: Probe) -> list[str]:
    return [str(reason) for reason in answer.verdict.reasons]


@pytest.mark.parametrize(
    ("card", "arch", "version", "name", "features"),
    [
        (MI250X, "gfx90a", (9, 0, 10), "AMD Instinct MI250X", {"mfma", "wave64", "lds_64k"}),
        (MI300X, "gfx942", (9, 4, 2), "AMD Instinct MI300X", {"mfma", "wave64", "lds_64k", "fp8_fnuz"}),
        (MI325X, "gfx942", (9, 4, 2), "AMD Instinct MI325X", {"mfma", "wave64", "lds_64k", "fp8_fnuz"}),
        (MI355X, "gfx950", (9, 5, 0), "AMD Instinct MI355X", {"mfma", "wave64", "lds_160k", "fp8", "fp4"}),
        (RX_7900, "gfx1100", (11, 0, 0), "AMD Radeon RX 7900 XTX", {"wmma", "wave32", "lds_64k"}),
        (STRIX_HALO, "gfx1151", (11, 5, 1), "AMD GPU 0x1586", {"wmma", "wave32", "lds_64k", "unified_memory"}),
        (RX_9070, "gfx1201", (12, 0, 1), "AMD Radeon RX 9070 XT", {"wmma", "wave32", "lds_64k", "fp8"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_facts(tmp_path: Path, card: Card, arch: str, version: tuple[int, ...], name: str, features: set[str]) -> None:
    answer = probe(machine(tmp_path, [card, card], processors=2).host(), ROCM)
    assert answer.verdict, reasons(answer)
    facts = answer.facts
    assert facts is not None
    assert (facts.label, facts.arch_version, facts.device_name) == (f"rocm/{arch}", version, name)
    assert (facts.device_type, facts.num_devices, facts.memory_bytes) == ("cuda", 2, card.memory_bytes)
    assert facts.features - {"triton"} == features | {"asynchronous", "graphs"}
    # The driver's own numbers agree with the table's.
    assert f"wave{card.properties['wave_front_size']}" in facts.features
    assert f"lds_{card.properties['lds_size_in_kb']}k" in facts.features


def test_no_architecture_has_two_of_what_excludes_another() -> None:
    for arch, features in FEATURES.items():
        for choices in ({"wave32", "wave64"}, {"mfma", "wmma"}, {"lds_64k", "lds_160k"}):
            assert len(features & choices) == 1, arch
        assert len(features & {"fp8", "fp8_fnuz"}) <= 1
        assert ("fp4" in features) == (arch == "gfx950")
    assert {facts.arch for facts in KNOWN} == set(FEATURES)


@pytest.mark.parametrize("order", [(OWN_GRAPHICS, RX_7900), (RX_7900, OWN_GRAPHICS), (STRIX_HALO, RX_7900)])
def test_a_card_next_to_a_processors_graphics_serves(tmp_path: Path, order: tuple[Card, Card]) -> None:
    host = machine(tmp_path, order).host()
    facts = probe(host, ROCM).facts
    assert facts is not None
    assert (facts.label, facts.num_devices) == ("rocm/gfx1100", 1)
    assert device_index(host, 0) == order.index(RX_7900), "HIP counts both"


def test_gpus_of_one_architecture_serve_together(tmp_path: Path) -> None:
    host = machine(tmp_path, [MI300X, RX_7900, MI325X]).host()
    facts = probe(host, ROCM).facts
    assert facts is not None
    assert (facts.arch, facts.num_devices, facts.memory_bytes) == ("gfx942", 2, MI300X.memory_bytes)
    assert [device_index(host, rank) for rank in (0, 1)] == [0, 2]


def test_nodes_are_counted_as_numbers(tmp_path: Path) -> None:
    gpus = read_gpus(machine(tmp_path, [MI300X] * 8 + [MI325X], processors=2).host())
    assert [gpu.name[-6:] for gpu in gpus] == ["MI300X"] * 8 + ["MI325X"]
    assert [gpu.render for gpu in gpus[-2:]] == ["/dev/dri/renderD135", "/dev/dri/renderD136"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "2, 0"}, [2, 0]),
        ({"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "2,1", "HIP_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-a20001b1c2d3e4ff"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "GPU-a20001b1c2d3e4ff"}, []),
        ({"HIP_VISIBLE_DEVICES": "0,9,1"}, [0]),
        ({"HIP_VISIBLE_DEVICES": "0,0,1"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "1,GPU-a20001b1c2d3e4ff"}, [1]),
        ({"HIP_VISIBLE_DEVICES": " 1 ,\u00b2"}, [1]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, []),
        ({"ROCR_VISIBLE_DEVICES": "-1"}, []),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_visible_devices(tmp_path: Path, environ: dict[str, str], expected: list[int]) -> None:
    second = Card("", {**RX_7900.properties, "unique_id": 0xA20001B1C2D3E4FF}, RX_7900.memory_bytes)
    gpus = read_gpus(machine(tmp_path, [MI300X, second, RX_9070]).host())
    assert visible(gpus, environ) == [gpus[index] for index in expected]


def test_all_hidden(tmp_path: Path) -> None:
    (reason,) = reasons(probe(machine(tmp_path, [MI300X]).host(HIP_VISIBLE_DEVICES="5"), ROCM))
    assert reason.startswith("no visible device: wanted a visible GPU, found HIP_VISIBLE_DEVICES='5', of 1 GPUs")


def test_an_override_is_what_rocm_sees(tmp_path: Path) -> None:
    near = Card("gfx1102, the chip of a Radeon RX 7600", {**RX_7900.properties, "gfx_target_version": 110002}, 8 << 30)
    facts = probe(machine(tmp_path, [near]).host(HSA_OVERRIDE_GFX_VERSION="11.0.0"), ROCM).facts
    assert facts is not None
    assert facts.label == "rocm/gfx1100"


def test_an_unknown_architecture_is_named_with_the_fix(tmp_path: Path) -> None:
    answer = probe(machine(tmp_path, [FUTURE]).host(), ROCM)
    (reason,) = reasons(answer)
    assert answer.facts is None
    assert reason.startswith("unknown architecture: wanted one of gfx90a, gfx942, ")
    assert "found gfx1250 (AMD GPU 0x75b0)" in reason
    assert "pip install --upgrade llmk-backends-rocm" in reason
    assert answer.unused == ("AMD GPU 0x75b0 (gfx1250)",)
    assert "HSA_OVERRIDE_GFX_VERSION" not in reason, "a gfx1201's programs have instructions that it lacks"
    assert serving(read_gpus(machine(tmp_path, [FUTURE, MI300X]).host())) == [1], "it doesn't keep others from serving"


@pytest.mark.parametrize(("version", "near"), [(110002, "11.0.0"), (110503, "11.5.1"), (120002, "12.0.1")])
def test_a_chip_of_a_known_generation_may_be_taken_for_another(tmp_path: Path, version: int, near: str) -> None:
    card = Card("made up, but for the version", {**RX_7900.properties, "gfx_target_version": version}, 8 << 30)
    (reason,) = reasons(probe(machine(tmp_path, [card]).host(), ROCM))
    assert f"or set HSA_OVERRIDE_GFX_VERSION={near}, at your own risk" in reason
    assert probe(machine(tmp_path, [card]).host(HSA_OVERRIDE_GFX_VERSION=near), ROCM).verdict


@pytest.mark.parametrize(
    ("build", "found"),
    [(CUDA, "found torch 2.13.0+cu130, built with CUDA 13.0"), (CPU_ONLY, "found torch 2.13.0+cpu")],
)
def test_torch_for_something_else(tmp_path: Path, build: TorchBuild, found: str) -> None:
    answer = probe(machine(tmp_path, [MI300X]).host(), build)
    (reason,) = reasons(answer)
    assert reason.startswith(f"torch without rocm: wanted torch built with ROCm, {found}")
    assert "install torch's ROCm build" in reason
    assert answer.facts is not None, "the machine can be planned for all the same"
    assert answer.unused == ("AMD Instinct MI300X (gfx942)",)


def test_graphics_of_older_processors_are_named_as_such(tmp_path: Path) -> None:
    answer = probe(machine(tmp_path, [OWN_GRAPHICS]).host(), ROCM)
    (reason,) = reasons(answer)
    assert not answer.unused, "no wheel could use them"
    assert "found gfx1036 (AMD GPU 0x164e) (Instinct before MI200 and Radeon before RDNA 3 have no" in reason


def test_several_generations_in_one_machine(tmp_path: Path) -> None:
    host = machine(tmp_path, [MI250X, OWN_GRAPHICS, MI355X, FUTURE, MI300X, MI355X]).host()
    facts = probe(host, ROCM).facts
    assert facts is not None
    assert (facts.label, facts.num_devices) == ("rocm/gfx950", 2)
    assert probe(host, ROCM).unused == (
        "AMD Instinct MI250X (gfx90a)",
        "AMD GPU 0x75b0 (gfx1250)",
        "AMD Instinct MI300X (gfx942)",
    )
    assert [device_index(host, rank) for rank in (0, 1)] == [2, 5]


def test_a_node_that_a_container_hides_is_not_counted(tmp_path: Path) -> None:
    made = machine(tmp_path, [MI300X, MI325X, RX_7900])
    made.files[f"{NODES}/1/properties"] = ""
    host = made.host()
    facts = probe(host, ROCM).facts
    assert facts is not None
    assert (facts.device_name, facts.num_devices) == ("AMD Instinct MI325X", 1)
    assert device_index(host, 0) == 0, "HIP does not count it either"


def test_a_driver_s_lines_that_are_no_numbers_are_skipped(tmp_path: Path) -> None:
    made = machine(tmp_path, [MI300X])
    made.files[f"{NODES}/1/properties"] += "a b c\n\x00\nname abc\nlarge 99999999999999999999999\nminus -1\n"
    assert probe(made.host(), ROCM).verdict


def test_a_gpu_without_a_render_node(tmp_path: Path) -> None:
    made = machine(tmp_path, [MI300X])
    made.files[f"{NODES}/1/properties"] += "drm_render_minor 0\n"
    (reason,) = reasons(probe(made.host(), ROCM))
    assert reason.startswith("no device file: wanted a render node of each GPU, found nothing")


def test_no_gpu(tmp_path: Path) -> None:
    answer = probe(Host(root=tmp_path, environ={}), ROCM)
    (reason,) = reasons(answer)
    assert not answer.unused
    assert reason.startswith("no device: wanted an AMD GPU, found none on the PCI bus")


def test_no_driver(tmp_path: Path) -> None:
    answer = probe(on_bus(tmp_path, driver=False).host(), ROCM)
    (reason,) = reasons(answer)
    assert answer.unused == ("AMD GPU",)
    assert reason.startswith("no driver: wanted the driver amdgpu, found 1 on the PCI bus, and no driver")
    assert "sudo modprobe amdgpu" in reason


def test_a_driver_without_compute(tmp_path: Path) -> None:
    made = on_bus(tmp_path, driver=True)
    del made.files[f"{NODES}/0/properties"]
    (reason,) = reasons(probe(made.host(), ROCM))
    assert "found amdgpu 6.3.6, without compute (KFD)" in reason


def test_a_driver_that_does_not_know_the_gpu(tmp_path: Path) -> None:
    (reason,) = reasons(probe(on_bus(tmp_path, driver=True).host(), ROCM))
    assert reason.startswith(
        "driver too old: wanted a driver that knows this GPU, found amdgpu 6.3.6 shows none of 1 on the"
    )
    assert "newer" in reason


def test_a_driver_that_does_not_say_the_architecture(tmp_path: Path) -> None:
    answer = probe(machine(tmp_path, [WITHOUT_VERSION]).host(), ROCM)
    (reason,) = reasons(answer)
    assert answer.unused == ("AMD GPU 0x740f (unknown)",)
    assert reason.startswith("driver too old: wanted a driver that says the architecture, found AMD GPU 0x740f")


def test_device_files_that_a_container_lacks(tmp_path: Path) -> None:
    made = machine(tmp_path, [MI300X])
    del made.files["dev/kfd"], made.files["dev/dri/renderD128"]
    kfd, render = reasons(probe(made.host(), ROCM))
    assert kfd.startswith("no device file: wanted /dev/kfd, found nothing (in a container, pass it: --device /dev/kfd")
    assert "wanted /dev/dri/renderD128" in render


def test_device_files_that_the_user_may_not_open(tmp_path: Path) -> None:
    host = machine(tmp_path, [MI300X]).host()
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o055)
    (tmp_path / "dev/kfd").chmod(0o600)
    reading, writing = os.pipe()
    if not (child := os.fork()):
        # Root may open everything, so another user asks.
        if os.getuid() == 0:
            os.setuid(65534)
        else:
            (tmp_path / "dev/kfd").chmod(0)
        os.write(writing, "\n".join(reasons(probe(host, ROCM))).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    text = os.read(reading, 1 << 16).decode()
    os.close(reading)
    assert "no permission: wanted to open /dev/kfd, found no permission (sudo usermod -a -G render,video $USER" in text


@pytest.mark.parametrize(
    ("text", "build"),
    [
        (
            "__version__ = '2.13.0+rocm7.2'\ncuda: Optional[str] = None\nhip: Optional[str] = '7.2.53211-e1a6bc5663'\n",
            ROCM,
        ),
        ("__version__ = '2.13.0+cu130'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", CUDA),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", CPU_ONLY),
        ("", TorchBuild("unknown")),
    ],
)
def test_torch_s_build_is_read_from_its_version_file(text: str, build: TorchBuild) -> None:
    assert read_build(text) == build


@pytest.mark.hook("llmk_platforms")
def test_known_machines_have_different_names() -> None:
    (spec,) = llmk_platforms()
    names = [facts.device_name for facts in spec.known]
    assert spec.known == KNOWN
    assert len(set(names)) == len(names)
    assert spec.known[0].label == "rocm/gfx942"
    assert "llmk-triton" in spec.vouches
