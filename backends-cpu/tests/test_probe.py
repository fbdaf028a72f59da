"""Probing machines that are not here, from the files that they would have."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import (
    AMX,
    AVX2,
    AVX512,
    GRAVITON4,
    NEOVERSE_V1,
    POWER10,
    POWER10_HWCAP,
    RISCV,
    Z16,
    auxv,
    machine,
    x86,
)

from llmk.api import Host
from llmk_cpu.machine import cores, memory_free, memory_limit, parse_list
from llmk_cpu.native.specs import FEATURE, GRAPHS, PACKED
from llmk_cpu.probe import KNOWN, facts_of, probe
from llmk_cpu.specs import llmk_platforms

GIB = 1 << 30


@pytest.mark.parametrize(
    ("flags", "arch", "version", "dtypes"),
    [
        ("fpu sse2", "x86_64", (2,), ("float32",)),
        (AVX2, "x86_64-avx2", (3,), ("float32", "bfloat16")),
        (AVX512, "x86_64-avx512", (4,), ("float32", "bfloat16")),
        (f"{AVX512} avx512_bf16", "x86_64-avx512", (4,), ("bfloat16", "float32")),
        (AMX, "x86_64-amx", (5,), ("bfloat16", "float32", "float16")),
    ],
)
def test_x86(tmp_path: Path, flags: str, arch: str, version: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    facts = probe(x86(tmp_path, flags)).facts
    assert facts is not None
    assert (facts.label, facts.arch_family, facts.arch_version) == (f"cpu/{arch}", "x86_64", version)
    assert facts.dtypes == dtypes
    assert facts.features <= {*flags.split(), FEATURE, GRAPHS, PACKED}
    assert (facts.memory_bytes, facts.device_name) == (16 * GIB, "Some CPU @ 2.0GHz")


def test_the_library_is_a_feature() -> None:
    flags = frozenset(AVX2.split())
    without = facts_of("x86_64", flags, native=False).features
    assert facts_of("x86_64", flags).features - without == {FEATURE, GRAPHS, PACKED}
    assert PACKED not in facts_of("x86_64", frozenset()).features


def test_without_the_library_bfloat16_needs_instructions() -> None:
    flags = frozenset(AVX2.split())
    assert facts_of("x86_64", flags, native=False).dtypes == ("float32",)
    assert facts_of("x86_64", flags | {"avx512_bf16"}, native=False).dtypes == ("bfloat16", "float32")


@pytest.mark.parametrize("uname", ["aarch64", "arm64"])
def test_arm(tmp_path: Path, uname: str) -> None:
    host = machine(tmp_path, {"/proc/cpuinfo": f"processor\t: 0\nFeatures\t: {NEOVERSE_V1}\n"}, uname)
    facts = probe(host).facts
    assert facts is not None
    assert (facts.arch, facts.arch_family, facts.arch_version) == ("aarch64-bf16", "aarch64", (8,))
    assert facts.dtypes == ("bfloat16", "float32", "float16")
    assert "i8mm" in facts.features


@pytest.mark.parametrize(
    ("uname", "cpuinfo", "label", "version", "dtypes", "features"),
    [
        ("aarch64", GRAVITON4, "neoverse-v2", (9,), ("bfloat16", "float32", "float16"), {"sve2", "bf16", "i8mm"}),
        ("s390x", Z16, "z16", (16,), ("float32",), {"vx", "vxe", "vxe2", "nnpa"}),
        ("riscv64", RISCV, "riscv64-v", (1,), ("float32", "float16"), {"v", "zfh", "zvfh"}),
    ],
)
def test_processors_that_cpuinfo_describes(
    tmp_path: Path,
    uname: str,
    cpuinfo: str,
    label: str,
    version: tuple[int, ...],
    dtypes: tuple[str, ...],
    features: set[str],
) -> None:
    facts = probe(machine(tmp_path, {"/proc/cpuinfo": cpuinfo}, uname)).facts
    assert facts is not None
    assert (facts.arch, facts.arch_family, facts.arch_version, facts.dtypes) == (label, uname, version, dtypes)
    assert facts.features >= features
    known = next(each for each in KNOWN if each.arch == label)
    assert (known.arch_version, known.dtypes) == (version, dtypes)
    assert known.features <= facts.features


@pytest.mark.parametrize(
    ("name", "label", "hwcaps", "dtypes"),
    [
        ("POWER9", "power9", {16: 0xDC0065C2, 26: 0xAEF00000 & ~(1 << 18)}, ("float32",)),
        ("POWER10", "power10", POWER10_HWCAP, ("bfloat16", "float32", "float16")),
        ("POWER11", "power11", POWER10_HWCAP, ("bfloat16", "float32", "float16")),
        ("POWER10", "power10", {16: 0xDC0065C2}, ("float32",)),
    ],
)
def test_power_by_the_auxiliary_vector(
    tmp_path: Path, name: str, label: str, hwcaps: dict[int, int], dtypes: tuple[str, ...]
) -> None:
    """A hypervisor may hold features back: what the kernel offers counts, not the name."""
    cpuinfo = POWER10.replace("POWER10", name)
    files: dict[str, str | bytes] = {"/proc/cpuinfo": cpuinfo, "/proc/self/auxv": auxv(hwcaps)}
    facts = probe(machine(tmp_path, files, "ppc64le")).facts
    assert facts is not None
    assert (facts.arch, facts.dtypes, facts.device_name) == (label, dtypes, name)
    assert "vsx" in facts.features
    assert ("mma" in facts.features) is ("bfloat16" in dtypes)


def test_a_container_without_cpuinfo(tmp_path: Path) -> None:
    files = {"/proc/self/auxv": auxv({16: 1 << 1 | 1 << 10 | 1 << 22, 26: 1 << 1 | 1 << 14})}
    facts = probe(machine(tmp_path / "arm", files, "aarch64")).facts
    assert facts is not None
    extensions = frozenset({"asimd", "asimdhp", "sve", "sve2", "bf16"})
    assert (facts.arch, facts.features - {FEATURE, GRAPHS, PACKED}) == ("aarch64-bf16", extensions)
    z = {"/proc/self/auxv": auxv({16: 1 << 11 | 1 << 13}, "big")}
    facts = probe(machine(tmp_path / "z", z, "s390x")).facts
    assert facts is not None
    assert (facts.arch, facts.features - {FEATURE, GRAPHS}) == ("s390x", frozenset({"vx", "vxe"}))


def test_unlike_cores_and_unknown_ones_have_no_name(tmp_path: Path) -> None:
    for number, text in enumerate(
        (GRAVITON4 + GRAVITON4.replace("0xd4f", "0xd0c"), GRAVITON4.replace("0xd4f", "0xfff"))
    ):
        facts = probe(machine(tmp_path / str(number), {"/proc/cpuinfo": text}, "aarch64")).facts
        assert facts is not None
        assert (facts.arch, facts.device_name) == ("aarch64-bf16", "")


def test_a_machine_without_information_is_usable(tmp_path: Path) -> None:
    answer = probe(Host(root=tmp_path, environ={}, machine="riscv64", system="Linux"))
    assert answer.verdict
    assert answer.facts is not None
    assert (answer.facts.label, answer.facts.dtypes, answer.facts.memory_bytes) == ("cpu/riscv64", ("float32",), 0)


@pytest.mark.hook("llmk_platforms")
def test_known_machines_have_different_facts() -> None:
    (spec,) = llmk_platforms()
    assert spec.known == KNOWN
    labels = [facts.label for facts in spec.known]
    assert len(set(labels)) == len(labels)
    assert {"cpu/x86_64-avx2", "cpu/x86_64-avx512", "cpu/x86_64-amx", "cpu/aarch64"} <= set(labels)
    assert {"cpu/neoverse-v2", "cpu/power9", "cpu/power10", "cpu/power11", "cpu/z16", "cpu/riscv64"} <= set(labels)


def test_cores_count_once_with_several_threads(tmp_path: Path) -> None:
    folder = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    siblings = {folder.format(i): f"{i % 4},{i % 4 + 4}\n" for i in range(8)}
    status = {"/proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-2,4-6\n"}
    found = cores(x86(tmp_path, AVX2, {**siblings, **status}))
    assert (found.logical, found.physical, found.advised_threads) == (6, 3, 3)


@pytest.mark.parametrize(
    "files",
    [
        {
            "/proc/self/cgroup": "0::/pod/box\n",
            "/sys/fs/cgroup/pod/cpu.max": "150000 100000\n",
            "/sys/fs/cgroup/cpu.max": "max 100000\n",
        },
        {
            "/proc/self/cgroup": "3:cpu,cpuacct:/box\n2:memory:/\n",
            "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
            "/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    ],
)
def test_a_quota_limits_threads_in_both_hierarchies(tmp_path: Path, files: dict[str, str]) -> None:
    found = cores(x86(tmp_path, AVX2, {"/proc/self/status": "Cpus_allowed_list:\t0-7\n", **files}))
    assert (found.physical, found.quota, found.advised_threads) == (8, 1.5, 1)


@pytest.mark.parametrize(
    ("count", "quota", "threads"), [(1, "", 1), (2, "", 2), (7, "", 7), (8, "", 7), (64, "", 63), (64, "200000", 2)]
)
def test_one_of_many_cores_is_left_to_the_front_end(tmp_path: Path, count: int, quota: str, threads: int) -> None:
    files = {"/proc/self/status": f"Cpus_allowed_list:\t0-{count - 1}\n", "/proc/self/cgroup": "0::/\n"}
    found = cores(x86(tmp_path, AVX2, files | ({"/sys/fs/cgroup/cpu.max": f"{quota} 100000\n"} if quota else {})))
    assert (found.advised_threads, found.reserved) == (threads, int(count >= 8 and not quota))


def test_nodes_that_the_process_may_use_are_counted(tmp_path: Path) -> None:
    nodes = {f"/sys/devices/system/node/node{i}/cpulist": f"{4 * i}-{4 * i + 3}\n" for i in range(3)}
    found = cores(x86(tmp_path, AVX2, {"/proc/self/status": "Cpus_allowed_list:\t2-5\n", **nodes}))
    assert found.nodes == 2


def test_memory_of_a_machine_without_limits(tmp_path: Path) -> None:
    host = x86(tmp_path, AVX2, {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/memory.max": "max\n"})
    assert (memory_limit(host), memory_free(host)) == (16 * GIB, 8 * GIB)


def test_the_tightest_group_around_the_process_limits_its_memory(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "0::/pod/box\n",
        "/sys/fs/cgroup/pod/memory.max": f"{4 * GIB}\n",
        "/sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
        "/sys/fs/cgroup/pod/memory.stat": f"anon 1\nactive_file 5\ninactive_file {GIB}\n",
        "/sys/fs/cgroup/pod/box/memory.max": "max\n",
    }
    host = x86(tmp_path, AVX2, files)
    assert memory_limit(host) == 4 * GIB
    assert memory_free(host) == 2 * GIB, "file cache can be given up, so it counts as free"


def test_the_older_hierarchy_too(tmp_path: Path) -> None:
    files = {
        "/proc/self/cgroup": "4:memory:/box\n0::/\n",
        "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": f"{6 * GIB}\n",
        "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": f"{GIB}\n",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    host = x86(tmp_path, AVX2, files)
    assert (memory_limit(host), memory_free(host)) == (6 * GIB, 5 * GIB)


@pytest.mark.parametrize(("text", "numbers"), [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set())])
def test_lists_of_cpus(text: str, numbers: set[int]) -> None:
    assert parse_list(text) == numbers
