"""The suite of platforms: the result of their probe, the declarations of their plugin, and the behaviour of their
facets.

Cases that use the device run only if the spec's platform is the bench's.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory

from llmk.api import Default, Host, KernelSpec, PlatformFacts, PlatformSpec, Probe, Tier
from llmk.api.cache import DTYPE_BYTES
from llmk.config import load
from llmk.kernel.discovery import Plugin
from llmk.kernel.interpreter import PYTHON
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.settings import THREADS, leaving_settings
from llmk_testing.suites import (
    platform_derived,
    platform_device,
    platform_graphs,
    platform_machines,
    platform_memory,
    platform_ranks,
)

_PATIENCE = 120.0

_PROBED = """
import os, sys
from llmk.api import Host
from llmk.kernel.loader import load_object
answer = load_object(sys.argv[1])(Host())
assert "torch" not in sys.modules, "the probe imported torch"
if answer.verdict and answer.facts.device_type:  # else torch can't use it
    child = os.fork()
    if child == 0:
        import torch
        device = load_object(sys.argv[2])(answer.facts).device
        device.setup(0)
        torch.ones(2, device=device.torch_device(0)).sum().item()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a child forked after the probe can't use it"
"""

_MADE = """
import sys, torch
from llmk.api import Host
from llmk.kernel.loader import load_object
facts = load_object(sys.argv[1])(Host()).facts
def initialized(): # importing the platform may register the device with torch
    return getattr(getattr(torch, facts.device_type, None), "is_initialized", lambda: False)()
before = initialized()
load_object(sys.argv[2])(facts)
assert initialized() == before, "creating the platform initialized the device; that is what setup() is for"
"""

_SET_UP = """
import os, sys, torch
from llmk.api import Host
from llmk.kernel.loader import load_object
from llmk_testing.settings import THREADS, leaving_settings
facts = load_object(sys.argv[1])(Host()).facts
has_affinity = hasattr(os, "sched_setaffinity")  # not on macOS
own = {max(os.sched_getaffinity(0))} if has_affinity else set()
if has_affinity:
    os.sched_setaffinity(0, own)  # as taskset and batch systems do
with leaving_settings(but=(THREADS,)):
    device = load_object(sys.argv[2])(facts).device
    device.torch_device(0)
    device.setup(0, 1)
    device.synchronize()
    torch.set_num_threads(7)
    device.setup(0)
    threads = torch.get_num_threads()
bound = os.sched_getaffinity(0) if has_affinity else set()
assert bound <= own, f"setup binds the process to the CPUs {bound}, although it was started on {own} alone"
assert threads == 7 or not own or threads <= len(own), f"by default there are {threads} threads on {len(own)} CPUs"
"""

_EARLY = """
import sys
from llmk.api import Host
from llmk.kernel.loader import load_object
load_object(sys.argv[3])(0)
assert "torch" not in sys.modules, "the early setup imported torch"
import torch
device = load_object(sys.argv[2])(load_object(sys.argv[1])(Host()).facts).device
device.setup(0)
torch.ones(2, device=device.torch_device(0)).sum().item()
"""

_JOINED = """
import sys, torch
import torch.distributed as dist
from llmk.api import Host, Verdict
from llmk.kernel.loader import load_object
from llmk.reference.norms import rms_norm
from llmk_testing.tolerance import BOUNDS
facts, rank = load_object(sys.argv[1])(Host()).facts, int(sys.argv[4])
platform = load_object(sys.argv[2])(facts)
platform.device.setup(rank)
store = dist.FileStore(sys.argv[3], 2)
device = platform.device.torch_device(rank)
own = None if device.index is None else device
dist.init_process_group(platform.collectives.backend, store=store, rank=rank, world_size=2, device_id=own)
x = torch.full((4,), float(rank + 1), device=device)
dist.all_reduce(x)
assert x.tolist() == [3.0] * 4, f"the sum over two ranks of 1 and 2 is {x.tolist()}"

def exchanged(dtype):  # as layers and stages do
    own = torch.arange(10, device=device).to(dtype) * (rank + 1)
    total, parts, handed = own.clone(), own.new_empty(20), own.clone()
    dist.all_reduce(total)
    dist.all_gather_into_tensor(parts, own)
    if rank:
        dist.irecv(handed, 0).wait()
    else:
        dist.send(handed, 1)
    for what, found, factors in (("all_reduce", total, [3]), ("all_gather", parts, [1, 2]), ("send", handed, [1])):
        right = torch.cat([torch.arange(10) * factor for factor in factors])
        assert found.float().tolist() == right.tolist(), f"{what} of {dtype} by the backend gives {found.tolist()}"

for name in facts.dtypes:
    exchanged(getattr(torch, name))
dist.barrier()

def added():
    total = x.clone()
    dist.all_reduce(total)
    return total

def recorded():  # frees the graph at return: a process group must outlive the graphs that contain it
    replay = platform.graphs.capture(added)
    for round in range(3):
        x.fill_(round + rank)
        total = replay().tolist()
        assert total == [2.0 * round + 1] * 4, f"replayed, the sum of {round} and {round + 1} is {total}"

if platform.collectives.recordable:
    recorded()

DTYPES, COUNTS = (torch.bfloat16, torch.float16, torch.float32), (1, 7, 8, 1000, 4096, 5000, 65544, 1 << 20)

def filled(x, number):  # returns the sum, which both ranks know: in float32, rounded once
    each = [torch.Generator().manual_seed(2 * number + one) for one in range(2)]
    each = [torch.randn(x.shape, generator=one).to(x.dtype) for one in each]
    x.copy_(each[rank])
    return (each[0].float() + each[1].float()).to(x.dtype)

def check(total, expected, how):
    assert total.dtype == expected.dtype and total.shape == expected.shape, f"{how}: {total.shape}, {total.dtype}"
    off = int((total.cpu() != expected).sum())
    assert not off, f"the platform's own all-reduce of {expected.numel()} {expected.dtype}, {how}: {off} are wrong"

def compared(own):
    taken = []
    for dtype in DTYPES:
        for count in COUNTS:
            x = torch.empty((count // 8, 8) if count % 8 == 0 else count, dtype=dtype, device=device)
            takes = torch.tensor([float(own.takes(x.numel() * x.element_size(), dtype))], device=device)
            dist.all_reduce(takes)
            assert takes.item() in (0.0, 2.0), f"one rank takes {count} {dtype}, the other doesn't"
            taken += [x] if takes.item() else []
    for round in range(3):
        for number, x in enumerate(taken):
            expected = filled(x, number + round)
            check(own(x.clone()), expected, f"round {round}")
    if platform.collectives.recordable:
        replays = [platform.graphs.capture(lambda x=x: own(x.clone())) for x in taken]
        for number in [*range(len(taken)), *range(0, len(taken), 2), *range(len(taken))[::-1]]:
            expected = filled(taken[number], number + 50)
            check(replays[number](), expected, "replayed")

def with_norms(own):
    for number, (dtype, rows) in enumerate((dtype, rows) for dtype in DTYPES for rows in (1, 3, 64)):
        x, residual = (torch.empty(rows, 96, dtype=dtype, device=device) for _ in range(2))
        residual.copy_(filled(residual, number))
        weight = residual[0].clone()
        summed = filled(x, number + 2)
        given = residual.clone(), weight.clone()
        found = own.add_rms_norm(x, residual, weight, 1e-5)
        answers = torch.tensor([float(found is not None)], device=device)
        dist.all_reduce(answers)
        how = f"the sum of {rows} x 96 {dtype} over the ranks, with its norm"
        assert answers.item() in (0.0, 2.0), f"{how}: one rank computes it, the other does not"
        if found is None:
            continue
        assert torch.equal(residual, given[0]) and torch.equal(weight, given[1]), f"{how}: inputs are changed"
        normed, total = found
        check(total, summed + residual.cpu(), f"{how}: the total")
        wanted = rms_norm(total.double(), weight.double(), 1e-5)
        off = ((normed.double() - wanted).norm() / wanted.norm()).item()
        assert normed.dtype == dtype and off < BOUNDS[dtype].norm, f"{how}: the norm is off by {off:.2g}"

own = platform.collectives.all_reduce(dist.group.WORLD, device)
if isinstance(own, Verdict):
    assert own.reasons, "there is no all-reduce of the platform's own, and no reason"
else:
    compared(own)
    with_norms(own)
dist.destroy_process_group()
"""


def cases(spec: PlatformSpec, bench: Bench) -> Iterator[Case]:
    """The cases of the spec, then those of its facets."""
    checks: dict[str, Callable[[], str | None]] = {
        "the probe imports no torch and does not initialize the device": partial(_alone, spec, _PROBED),
        "the probe is pure": partial(_pure, spec),
        "facts are well formed, of known machines too": partial(_well_formed, spec),
        "machines of its examples are what they say": partial(platform_machines.check_machines, spec),
        "what is said of another machine is not of this one": partial(platform_machines.check_alone, spec),
        "machines that lack a file or a line get an answer": partial(platform_machines.check_gaps, spec),
        "machines whose files are garbled get an answer": partial(platform_ranks.check_garbled, spec),
        "options that nothing has checked get an answer": partial(platform_ranks.check_options, spec),
        "extensions of a processor count as its examples need them": partial(platform_derived.check_needs, spec),
        "devices are visible by their own names": partial(platform_derived.check_devices, spec),
        "what it says of ranks can be used": partial(platform_ranks.check_ranks, spec),
        "its probe understands what ranks are given": partial(platform_ranks.check_visible, spec),
        "its plugin's defaults can be set": partial(_defaults, spec, bench),
        "its plugin's kernels name the platforms that they are for": partial(_kernels, spec, bench),
    }
    on_device: dict[str, Callable[[], str | None]] = {
        "creating the platform does not initialize the device": partial(_alone, spec, _MADE),
        "setup leaves what all code of the process shares": partial(_alone, spec, _SET_UP),
        "threads are for the cores that the process has": partial(_alone, spec, platform_derived.CORES),
        "facts stay when memory is taken": partial(platform_machines.check_same, spec, bench),
        **platform_device.checks(bench),
        **platform_graphs.checks(spec, bench),
        **platform_memory.checks(bench),
        "two ranks are joined": partial(_joined, spec, bench),
    }
    if spec.early_setup:
        on_device["a device can be set up after its early setup"] = partial(_alone, spec, _EARLY, spec.early_setup)
    here = bench.facts.name == spec.name
    elsewhere = partial(_elsewhere, bench.facts)
    for name, run in (checks | {name: run if here else elsewhere for name, run in on_device.items()}).items():
        yield Case(spec.id, "platform", name, partial(_settled, run))


def _settled(run: Callable[[], str | None]) -> str | None:
    """No code of a platform changes what all code of the process shares, but for the number of threads."""
    with leaving_settings(but=(THREADS,)):
        return run()


def _elsewhere(facts: PlatformFacts) -> str:
    raise Skip(f"the bench's platform is {facts.label}")


def _alone(spec: PlatformSpec, code: str, *more: str) -> None:
    """Runs ``code`` in a separate process, with the locations of probe and implementation as arguments."""
    child = _child(spec, code, *more)
    try:
        errors = child.communicate(timeout=_PATIENCE)[1]
    finally:
        child.kill()
    assert child.returncode == 0, errors[-2000:]


def _child(spec: PlatformSpec, code: str, *more: str) -> subprocess.Popen[str]:
    where = f"{spec.probe.__module__}:{spec.probe.__qualname__}"
    if "<" in where:
        raise Skip(f"the probe is {where}, which another process can't import: write it as a function of a module")
    quiet = f"import warnings\nwarnings.simplefilter('ignore')\n{code}"
    return subprocess.Popen(
        [*PYTHON, "-c", quiet, where, spec.implementation, *more],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _pure(spec: PlatformSpec) -> str:
    """The probe must return the same answer twice, and use only ``Host``, so that it also answers for an empty host."""
    first, second = spec.probe(Host()), spec.probe(Host())
    assert isinstance(first, Probe), f"the probe returned {type(first).__name__}, not Probe"
    assert first == second, f"the probe returned {first}, then {second}"
    nowhere = spec.probe(Host(root=Host().root / "nonexistent", environ={}, machine="unheard-of", system="None"))
    assert isinstance(nowhere, Probe), f"for an empty host the probe returned {type(nowhere).__name__}, not Probe"
    for answer in (first, nowhere):
        assert all(isinstance(name, str) for name in answer.unused), f"unused is {answer.unused}, not names"
        assert answer.verdict or answer.verdict.reasons, "the probe refuses without a reason"
        assert not answer.verdict or answer.facts, "the probe says that the platform is usable, but returned no facts"
    return "usable here" if first.verdict else "; ".join(map(str, first.verdict.reasons))


def _well_formed(spec: PlatformSpec) -> str:
    every = _every_facts(spec)
    for facts in every:
        of = f"facts of {facts.label} ({facts.device_name or 'unnamed'})"
        assert facts.name == spec.name, f"{of}: name {facts.name!r}, the spec's is {spec.name!r}"
        nameable = bool(facts.arch) and "/" not in facts.arch
        assert nameable, f"{of}: arch {facts.arch!r} can't be named as --on name/arch"
        assert facts.dtypes, f"{of}: no dtypes"
        unknown = [dtype for dtype in facts.dtypes if dtype not in DTYPE_BYTES]
        assert not unknown, f"{of}: dtypes {unknown}, known are {', '.join(DTYPE_BYTES)}"
        _check_types(facts, of)
        assert facts.memory_bytes >= 0, f"{of}: memory_bytes = {facts.memory_bytes}"
        assert facts.num_devices >= 0, f"{of}: num_devices = {facts.num_devices}"
        assert ":" not in facts.device_type, f"{of}: device_type {facts.device_type!r} has an index"
    assert len(set(every)) == len(every), "two known machines have equal facts"
    return f"{len(spec.known)} known machines"


def _check_types(facts: PlatformFacts, of: str) -> None:
    """Facts are sent to other processes, and are keys."""
    kinds = {"arch_family": str, "features": frozenset, "dtypes": tuple, "memory_bytes": int, "num_devices": int}
    for name, kind in {**kinds, "arch_version": tuple, "shared_device": bool, "device_name": str}.items():
        value = getattr(facts, name)
        assert type(value) is kind, f"{of}: {name} is {value!r}, not {kind.__name__}"
    assert all(isinstance(each, str) for each in facts.features), f"{of}: features are strings"
    assert all(type(each) is int for each in facts.arch_version), f"{of}: arch_version is {facts.arch_version}"
    copied = pickle.loads(pickle.dumps(facts))  # nosec B301 # what was written here
    assert copied == facts, f"{of}: they are others in another process"


def _every_facts(spec: PlatformSpec) -> list[PlatformFacts]:
    here = spec.probe(Host()).facts
    return [*spec.known, *([here] if here and here not in spec.known else [])]


def _plugin(spec: PlatformSpec, bench: Bench) -> Plugin:
    found = next((each.plugin for each in bench.registry.platforms if each.spec.id == spec.id), None)
    if found is None:
        raise Skip(f"{spec.id} is not registered, so its plugin is unknown")
    return found


def _defaults(spec: PlatformSpec, bench: Bench) -> str:
    plugin, paths = _plugin(spec, bench), set()
    for facts in _every_facts(spec):
        for owner, default in bench.registry.call("llmk_config_defaults", Default, platform=facts, model=None):
            if owner is plugin:
                load({}, environ={}).with_defaults([(plugin.name, default)])
                assert default.why, f"{default.path}: a default that doesn't say why"
                paths.add(default.path)
    assert plugin.is_usable, "; ".join(map(str, plugin.reasons))
    return ", ".join(sorted(paths)) or "none"


def _kernels(spec: PlatformSpec, bench: Bench) -> str:
    plugin = _plugin(spec, bench)
    own = [each.spec for each in bench.registry.of(KernelSpec) if each.plugin is plugin]
    loose = [kernel.id for kernel in own if kernel.tier > Tier.PORTABLE and not kernel.needs.platforms]
    assert not loose, (
        f"kernels that don't declare needs.platforms are offered everywhere, and are preferred: {', '.join(loose)}"
    )
    return f"{len(own)} kernels"


def _joined(spec: PlatformSpec, bench: Bench) -> str:
    platform = bench.platform
    if platform.collectives is None:
        raise Skip("the platform has no collectives facet")
    if bench.facts.num_devices < 2 and not bench.facts.shared_device:
        raise Skip(f"two ranks need two devices, {bench.facts.label} has {bench.facts.num_devices}")
    with TemporaryDirectory(prefix="llmk-") as folder:
        ranks = [_child(spec, _JOINED, f"{folder}/store", str(rank)) for rank in range(2)]
        try:
            for rank, child in enumerate(ranks):
                errors = child.communicate(timeout=_PATIENCE)[1]
                assert child.returncode == 0, f"rank {rank}: {errors[-2000:]}"
        finally:
            for child in ranks:
                child.kill()
    return platform.collectives.backend
