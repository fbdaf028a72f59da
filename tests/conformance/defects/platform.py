"""Platforms that are broken on purpose, each as real engines were, and the cases that tell."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from llmk.api import OK, Host, PlatformFacts, PlatformSpec, Probe, RankRules, no
from llmk.reference.norms import rms_norm
from llmk_cpu.platform import CPUDevice, CPUPlatform
from llmk_cpu.probe import probe
from llmk_testing.bench import Bench
from llmk_testing.platform_example import PlatformExample

Change = Callable[[PlatformSpec, Bench], tuple[PlatformSpec, Bench]]


@dataclass(frozen=True)
class Defect:
    """``change`` breaks a good spec and the bench that it is tried on; the case whose name begins with ``killer``
    fails."""

    id: str
    sentence: str
    killer: str
    change: Change


class Counting:
    """Memory of a device that counts what torch takes: the good one."""

    def __init__(self) -> None:
        self._memory = CPUPlatform(probe_facts()).memory
        self.total, self.available = self._memory.total, self._memory.available

    def measure(self, run: Callable[[], None]) -> int | None:
        """The largest sum of tensors that were there at a time, of those that the profiler saw."""
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            run()
        now, most = 0, 0
        for event in seen.profiler.kineto_results.events():
            if event.name() == "[memory]":
                now += event.nbytes()
                most = max(most, now)
        return most


class Keeping(Counting):
    """Measures what an allocator keeps that has a segment for every size."""

    def measure(self, run: Callable[[], None]) -> int | None:
        """All that was ever allocated."""
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
            run()
        events = seen.profiler.kineto_results.events()
        return sum(max(0, event.nbytes()) for event in events if event.name() == "[memory]")


class Swallowing(Counting):
    """Measures a run that failed, too."""

    def measure(self, run: Callable[[], None]) -> int | None:
        """Unknown, where the run failed."""
        try:
            return super().measure(run)
        except Exception:
            return None


def _leaves(result: Any) -> list[Tensor]:
    if is_dataclass(result):
        result = [getattr(result, field.name) for field in fields(result)]
    return [leaf for part in result for leaf in _leaves(part)] if isinstance(result, (tuple, list)) else [result]


class Rerun:
    """Graphs whose replay runs the step again: the good ones."""

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Into the same tensor."""
        kept = run()

        def replay() -> Any:
            for old, new in zip(_leaves(kept), _leaves(run()), strict=True):
                old.copy_(new)
            return kept

        return replay

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """One after the other."""
        return first(), second()


class Swapped(Rerun):
    """Graphs that return the second part first."""

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """In the order of which the longer one is not waited for."""
        other = second()
        return other, first()


class Lossy(Rerun):
    """Graphs whose second part runs as if on a thread of its own."""

    def concurrent(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        """What the second one raises stays there."""
        try:
            other = second()
        except Exception:
            other = None
        return first(), other


class Shallow(Rerun):
    """Graphs that find no tensors in a dataclass."""

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Into the tensors that pytrees know of."""
        kept = run()

        def replay() -> Any:
            for old, new in zip(tree_leaves(kept), tree_leaves(run()), strict=True):
                if isinstance(old, Tensor):
                    old.copy_(new)
            return kept

        return replay


class Early(Rerun):
    """Graphs that are captured on demand, and run the step before."""

    on_demand = 8


class Twice(Rerun):
    """Graphs whose replay runs the step twice."""

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """The first time to warm up."""

        def runs() -> Any:
            run()
            return run()

        return super().capture(runs)


class Stale(Rerun):
    """Graphs whose replay returns what the capture saw."""

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Runs once."""
        kept = run()
        return lambda: kept


class Halves(Rerun):
    """Graphs whose replay computes the first result alone."""

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Keeps the others."""
        kept = run()

        def replay() -> Any:
            tree_leaves(kept)[0].copy_(tree_leaves(run())[0])
            return kept

        return replay


class Forgiving(Rerun):
    """Graphs that take a step which fails for one that does nothing."""

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Swallows the error."""
        try:
            return super().capture(run)
        except KeyError:
            return lambda: None


class Offended(Rerun):
    """Graphs that record nothing more once they have refused a step."""

    on_demand = 0

    def __init__(self) -> None:
        self._refused = False

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Takes a step that needs less than four values for one that looks at them."""
        if self._refused:
            raise RuntimeError("already recording")
        kept = run()
        self._refused = len(tree_leaves(kept)[0]) < 4

        def replay() -> Any:
            if self._refused:
                raise RuntimeError("the step looks at values")
            return kept.copy_(run())

        return replay


class Wandering(Rerun):
    """Graphs whose replay returns new tensors."""

    on_demand = 0

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Runs nothing."""
        kept: list[Any] = []
        return lambda: kept.append(run()) or kept[-1]


class Gathering:
    """An all-reduce of the platform's own: the good one."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def takes(self, num_bytes: int, dtype: torch.dtype) -> bool:
        """Whole 16 bytes."""
        return num_bytes % 16 == 0

    def __call__(self, x: Tensor) -> Tensor:
        """Gathers, and sums in float32."""
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(parts, x, group=self._group)
        return torch.stack([part.float() for part in parts]).sum(0).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """For a few rows."""
        if x.shape[0] > 8:
            return None
        total = residual + self(x)
        return rms_norm(total, weight, eps), total


class Unscaled(Gathering):
    """Norms without the weight."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor] | None:
        """By a weight of ones."""
        return super().add_rms_norm(x, residual, torch.ones_like(weight), eps)


class Cutting(Gathering):
    """Sums whole blocks, and leaves the rest as it is."""

    def __call__(self, x: Tensor) -> Tensor:
        """Of 256 elements."""
        whole = x.numel() // 256 * 256
        return torch.cat((super().__call__(x[:whole]), x[whole:]))


class GatheringPlatform(CPUPlatform):
    """A platform that has it."""

    own = Gathering

    def __init__(self, facts: PlatformFacts) -> None:
        super().__init__(facts)
        self.collectives: Any = SimpleNamespace(
            backend="gloo", recordable=False, all_reduce=lambda group, device: self.own(group)
        )


class UnscaledPlatform(GatheringPlatform):
    """A platform whose all-reduce norms wrongly."""

    own = Unscaled


class CuttingPlatform(GatheringPlatform):
    """A platform that has the other."""

    own = Cutting


def probe_facts() -> PlatformFacts:
    """Of this machine."""
    facts = probe(Host()).facts
    assert facts is not None
    return facts


def probe_with_torch(host: Host) -> Probe:
    """A probe that needs torch, as this module does."""
    return probe(host)


def probe_without_facts(host: Host) -> Probe:
    """Says that the platform is usable, and no more."""
    return Probe(OK)


def with_facts(bench: Bench, **wrong: Any) -> Bench:
    """A bench whose platform says something wrong of itself."""
    facts = replace(bench.facts, **wrong)
    return replace(bench, facts=facts, platform=CPUPlatform(facts))


def with_facet(bench: Bench, name: str, facet: Any, **facts: Any) -> Bench:
    """A bench whose platform has another facet."""
    bench = with_facts(bench, **facts)
    setattr(bench.platform, name, facet)
    return bench


def _memory(bench: Bench, **members: Any) -> Any:
    good = bench.platform.memory
    return SimpleNamespace(**({"total": good.total, "available": good.available, "measure": good.measure} | members))


def early_setup_with_torch(index: int) -> None:
    """Does nothing, but this module imports torch."""


def probe_anywhere(host: Host) -> Probe:
    """A probe that asks this machine about any other."""
    return probe(Host())


def probe_with_memory(host: Host) -> Probe:
    """A probe that needs the line of the memory that there is."""
    assert "MemTotal" in host.read("/proc/meminfo")
    return probe(host)


def probe_what_is_free(host: Host) -> Probe:
    """A probe that takes what is free for the memory that there is."""
    answer = probe(host)
    assert answer.facts is not None
    return Probe(OK, replace(answer.facts, memory_bytes=CPUPlatform(answer.facts).memory.available()))


def probe_processors_of_here(host: Host) -> Probe:
    """A probe that counts this machine's processors, whichever is asked about."""
    answer = probe(host)
    assert answer.facts is not None
    return Probe(OK, replace(answer.facts, num_devices=os.cpu_count() or 1))


def probe_with_swap(host: Host) -> Probe:
    """A probe that takes swap space for memory."""
    answer, swap = probe(host), re.search(r"SwapTotal:\s*(\d+)", host.read("/proc/meminfo"))
    assert answer.facts is not None
    more = int(swap[1]) << 10 if swap else 0
    return Probe(OK, replace(answer.facts, memory_bytes=answer.facts.memory_bytes + more))


class NarrowPlatform(CPUPlatform):
    """A platform whose setup changes the default dtype."""

    def __init__(self, facts: PlatformFacts) -> None:
        super().__init__(facts)
        setup = self.device.setup

        def narrow(index: int, threads: int = 0) -> None:
            setup(index, threads)
            torch.set_default_dtype(torch.bfloat16)

        self.device = SimpleNamespace(
            setup=narrow, torch_device=self.device.torch_device, synchronize=self.device.synchronize
        )


class BindingPlatform(CPUPlatform):
    """A platform whose setup binds the process to all CPUs of the machine."""

    def __init__(self, facts: PlatformFacts) -> None:
        super().__init__(facts)
        setup = self.device.setup

        def bind(index: int, threads: int = 0) -> None:
            setup(index, threads)
            os.sched_setaffinity(0, range(os.cpu_count() or 1))

        self.device = SimpleNamespace(
            setup=bind, torch_device=self.device.torch_device, synchronize=self.device.synchronize
        )


GRAPHS = frozenset({"graphs"})


def graphs_of(make: Callable[[], Any]) -> Change:
    """A platform whose graphs are these."""
    return lambda spec, bench: (spec, with_facet(bench, "graphs", make(), features=bench.facts.features | GRAPHS))


class Hoarding(Rerun):
    """Graphs that are there for good."""

    def __init__(self) -> None:
        self._all: list[Any] = []

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Kept, too."""
        self._all.append(run)
        return super().capture(run)


class Backwards(Rerun):
    """Graphs for fewer than no requests."""

    on_demand = -1


class Something(Counting):
    """Takes a run without memory for one that could not be measured."""

    def measure(self, run: Callable[[], None]) -> int | None:
        """None where it is 0."""
        return super().measure(run) or None


class Upset(Counting):
    """Measures nothing after a run that failed."""

    _upset = False

    def measure(self, run: Callable[[], None]) -> int | None:
        """As is left."""
        try:
            found = super().measure(run)
        except Exception:
            self._upset = True
            raise
        return 0 if self._upset else found


class CrowdedPlatform(CPUPlatform):
    """Has more threads by default than any CPU has cores."""

    def __init__(self, facts: PlatformFacts) -> None:
        super().__init__(facts)
        setup = self.device.setup
        self.device.setup = lambda index, threads=0: setup(index, threads or 96)  # type: ignore[method-assign]


class Silent(Rerun):
    """Graphs that say nothing where a later replay fails."""

    def capture(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Returns what the replay before returned."""
        kept, again = run(), super().capture(run)

        def replay() -> Any:
            try:
                return again()
            except (RuntimeError, IndexError):
                return kept

        return replay


class OneRank(RankRules):
    """Puts the first rank everywhere."""

    def rank_at(self, place: int, tensor: int, pipeline: int) -> int:
        """The first."""
        return 0


class Unheard(RankRules):
    """Names the variable where the constructor sets its default."""

    visible = ("LLMK_CPUS",)


class Numbers(RankRules):
    """Says numbers where the environment has texts."""

    def environment(self, devices: Sequence[str], interface: str) -> Any:
        """How many there are."""
        return {"LLMK_DEVICES": len(devices)}


def probe_of_ascii(host: Host) -> Probe:
    """Takes files for ASCII."""
    assert host.read("/proc/meminfo").isascii(), "a strange machine"
    return probe(host)


def probe_with_options(host: Host) -> Probe:
    """Takes an option for a text."""
    host.options.get("devices", "").split(",")
    return probe(host)


def probe_by_number(host: Host) -> Probe:
    """Takes a variable for a number."""
    int(host.environ.get("LLMK_CPUS", "0"))
    return probe(host)


def probe_of_a_set(host: Host) -> Probe:
    """Has features that are no key."""
    found = probe(host)
    return replace(found, facts=found.facts and replace(found.facts, features=set(found.facts.features)))


def probe_of_one(host: Host) -> Probe:
    """Takes AVX-512 for whole where its foundation is there."""
    found = probe(host)
    if found.facts is None or "avx512f" not in found.facts.features:
        return found
    return replace(found, facts=replace(found.facts, arch="x86_64-avx512", arch_version=(4,)))


def probe_of_text(host: Host) -> Probe:
    """Looks for an extension in the text."""
    found = probe(host)
    if found.facts is None or "avx512_bf16" not in host.read("/proc/cpuinfo"):
        return found
    return replace(found, facts=replace(found.facts, dtypes=("bfloat16", "float32")))


CARDS = "LLMK_CARDS"
_CARD = PlatformFacts(name="cpu", arch="card", device_type="cpu")
MACHINES = (
    PlatformExample(
        name="three cards, of which the first is broken",
        files={f"/cards/{number}": "ready" if number else "broken" for number in range(3)},
        facts={"num_devices": 2},
        devices=("1", "2"),
    ),
)


def probe_by_position(host: Host) -> Probe:
    """Takes the numbers in a list of cards for positions among those that are ready."""
    cards = [number for number in range(8) if host.read(f"/cards/{number}") == "ready"]
    listed = [int(each) for each in host.environ.get(CARDS, "").split(",") if each.isdecimal()]
    shown = [cards[place] for place in listed if place < len(cards)] if listed else cards
    return Probe(OK, replace(_CARD, num_devices=len(shown))) if shown else Probe(no("no_visible_device"))


MIXED = (
    PlatformExample(
        name="cards of two kinds",
        files={f"/cards/{number}": kind for number, kind in enumerate(("small", "large", "small"))},
        facts={},
        devices=("0", "1", "2"),
    ),
)


def probe_by_lowest(host: Host) -> Probe:
    """Of the cards that are listed, takes the kind of that with the lowest number."""
    kinds = [host.read(f"/cards/{number}") for number in range(3)]
    listed = sorted(int(each) for each in host.environ.get(CARDS, "").split(",") if each in ("0", "1", "2"))
    if not listed:
        return Probe(no("no_visible_device"))
    alike = [number for number in listed if kinds[number] == kinds[listed[0]]]
    return Probe(OK, replace(_CARD, arch=kinds[listed[0]], num_devices=len(alike)))


def free_of_total(host: Host) -> int:
    """Free memory: the total, less what its control group uses, no matter whether that has a limit."""
    sizes = dict(re.findall(r"^(\w+): +(\d+) kB$", host.read("/proc/meminfo"), re.MULTILINE))
    used = int(host.read("/sys/fs/cgroup/memory.current").strip() or 0)
    left = (int(sizes["MemTotal"]) << 10) - used
    return min(int(sizes["MemAvailable"]) << 10, max(0, left))


GROUPS = (
    PlatformExample(
        name="a container",
        files={"/proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n", "/proc/self/cgroup": "0::/\n"},
        facts={},
        said=((free_of_total, 1 << 20),),
    ),
)


class PairedCores(CPUDevice):
    """By default, there are half as many threads as CPUs where any core has several."""

    def setup(self, index: int, threads: int = 0) -> None:
        cpus, folder = os.sched_getaffinity(0), "/sys/devices/system/cpu"
        shared = any("," in Host().read(f"{folder}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus)
        torch.set_num_threads(threads or max(1, len(cpus) // (1 + shared)))


class Pairs(CPUPlatform):
    def __init__(self, facts: PlatformFacts) -> None:
        super().__init__(facts)
        self.device = PairedCores()


class FirstCores(CPUDevice):
    """By default, there are threads for the cores of the CPUs from 0 on."""

    def setup(self, index: int, threads: int = 0) -> None:
        cpus, folder = range(len(os.sched_getaffinity(0))), "/sys/devices/system/cpu"
        cores = {Host().read(f"{folder}/cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
        torch.set_num_threads(threads or len(cores))


class FirstCPUs(CPUPlatform):
    def __init__(self, facts: PlatformFacts) -> None:
        super().__init__(facts)
        self.device = FirstCores()


DEFECTS = (
    Defect(
        "one_extension",
        "an extension stands for others that belong to it",
        "extensions of a processor",
        lambda spec, bench: (replace(spec, probe=probe_of_one), bench),
    ),
    Defect(
        "extension_in_text",
        "extensions whose names start alike are taken for each other",
        "extensions of a processor",
        lambda spec, bench: (replace(spec, probe=probe_of_text), bench),
    ),
    Defect(
        "positions",
        "names of devices are taken for positions among those that are usable",
        "devices are visible by their own names",
        lambda spec, bench: (
            replace(
                spec,
                probe=probe_by_position,
                ranks=RankRules(visible=(CARDS,)),
                examples="defects.platform:MACHINES",
            ),
            bench,
        ),
    ),
    Defect(
        "first_cpus",
        "threads are for the cores of the first CPUs",
        "threads are for the cores",
        lambda spec, bench: (replace(spec, implementation="defects.platform:FirstCPUs"), bench),
    ),
    Defect(
        "probe_imports_torch",
        "the probe imports torch",
        "the probe imports no torch",
        lambda spec, bench: (replace(spec, probe=probe_with_torch), bench),
    ),
    Defect(
        "probe_without_facts",
        "the probe returns no facts of a usable platform",
        "the probe is pure",
        lambda spec, bench: (replace(spec, probe=probe_without_facts), bench),
    ),
    Defect(
        "early_setup_imports_torch",
        "the early setup imports torch",
        "a device can be set up after its early setup",
        lambda spec, bench: (replace(spec, early_setup="defects.platform:early_setup_with_torch"), bench),
    ),
    Defect(
        "known_of_another",
        "known machines are of another name",
        "facts are well formed",
        lambda spec, bench: (replace(spec, known=(replace(spec.known[0], name="other"),)), bench),
    ),
    Defect(
        "dtypes",
        "the facts have a dtype that the device can't multiply",
        "every dtype",
        lambda spec, bench: (spec, with_facts(bench, dtypes=("float8_e4m3fn", "float32"))),
    ),
    Defect(
        "asynchronous",
        "the facts say that the device runs asynchronously",
        "execution is asynchronous",
        lambda spec, bench: (spec, with_facts(bench, features=bench.facts.features | {"asynchronous"})),
    ),
    Defect(
        "memory_bytes",
        "the facts have the memory of another machine",
        "memory is what",
        lambda spec, bench: (spec, with_facts(bench, memory_bytes=2 * bench.facts.memory_bytes)),
    ),
    Defect(
        "available_is_constant",
        "available memory is that at the start",
        "available memory",
        lambda spec, bench: (
            spec,
            with_facet(bench, "memory", _memory(bench, available=lambda: bench.facts.memory_bytes // 2)),
        ),
    ),
    Defect(
        "measures_what_is_kept",
        "measure reports what the allocator keeps",
        "measure returns the peak",
        lambda spec, bench: (spec, with_facet(bench, "memory", Keeping())),
    ),
    Defect(
        "measure_swallows",
        "measure swallows that memory ran out",
        "measure raises",
        lambda spec, bench: (spec, with_facet(bench, "memory", Swallowing())),
    ),
    Defect(
        "any_machine",
        "the probe asks this machine about any other",
        "machines of its examples",
        lambda spec, bench: (replace(spec, probe=probe_anywhere), bench),
    ),
    Defect(
        "processors_of_here",
        "the probe counts this machine's processors for any other",
        "what is said of another machine",
        lambda spec, bench: (replace(spec, probe=probe_processors_of_here), bench),
    ),
    Defect(
        "memory_with_swap",
        "the facts have the memory with swap space",
        "machines of its examples",
        lambda spec, bench: (replace(spec, probe=probe_with_swap), bench),
    ),
    Defect(
        "default_dtype",
        "setup changes the dtype that all code gets by default",
        "setup leaves",
        lambda spec, bench: (replace(spec, implementation="defects.platform:NarrowPlatform"), bench),
    ),
    Defect(
        "all_cpus",
        "setup binds the process to CPUs that it was kept from",
        "setup leaves",
        lambda spec, bench: (replace(spec, implementation="defects.platform:BindingPlatform"), bench),
    ),
    Defect(
        "memory_that_is_free",
        "the facts have the memory that is free at the time",
        "facts stay",
        lambda spec, bench: (replace(spec, probe=probe_what_is_free), bench),
    ),
    Defect(
        "half_a_replay",
        "replays compute the first result alone",
        "graphs replay all kinds",
        graphs_of(Halves),
    ),
    Defect(
        "dataclass",
        "replays of a dataclass keep the first result",
        "graphs replay results of any form",
        graphs_of(Shallow),
    ),
    Defect(
        "early",
        "captures are on demand, and run the step",
        "a replay runs the step once",
        graphs_of(Early),
    ),
    Defect(
        "twice",
        "a replay runs the step twice",
        "a replay runs the step once",
        graphs_of(Twice),
    ),
    Defect(
        "needs_a_line",
        "the probe raises where a line of a file is missing",
        "machines that lack",
        lambda spec, bench: (replace(spec, probe=probe_with_memory), bench),
    ),
    Defect(
        "threads_of_before",
        "as many threads as were set before, and one more, are advised",
        "setup sets",
        lambda spec, bench: (
            spec,
            with_facet(
                bench,
                "device",
                SimpleNamespace(
                    setup=lambda index, threads=0: torch.set_num_threads(threads or 1 + torch.get_num_threads()),
                    torch_device=bench.platform.device.torch_device,
                ),
            ),
        ),
    ),
    Defect(
        "graph_swallows",
        "a graph swallows that its step failed",
        "a graph that fails",
        graphs_of(Forgiving),
    ),
    Defect(
        "graph_of_values",
        "a graph keeps values that the host saw",
        "a graph does not keep",
        graphs_of(Stale),
    ),
    Defect(
        "graph_after_a_refusal",
        "after a step that was refused, no graph is recorded",
        "a graph does not keep",
        graphs_of(Offended),
    ),
    Defect(
        "stale_kernels",
        "replays of the plugin's own kernels don't see new inputs",
        "its plugin's kernels replay",
        graphs_of(Stale),
    ),
    Defect(
        "stale_replay",
        "replays don't see new inputs",
        "graphs replay on",
        graphs_of(Stale),
    ),
    Defect(
        "results_wander",
        "replays return tensors at other places",
        "graphs replay on",
        graphs_of(Wandering),
    ),
    Defect(
        "graphs_undeclared",
        "there are graphs that the facts don't name",
        "facets are complete",
        lambda spec, bench: (spec, with_facet(bench, "graphs", Rerun(), features=bench.facts.features - GRAPHS)),
    ),
    Defect(
        "all_reduce_cuts",
        "its own all-reduce sums whole blocks only",
        "two ranks are joined",
        lambda spec, bench: (replace(spec, implementation="defects.platform:CuttingPlatform"), bench),
    ),
    Defect(
        "all_reduce_norms",
        "its own all-reduce leaves out the weight of the norm after it",
        "two ranks are joined",
        lambda spec, bench: (replace(spec, implementation="defects.platform:UnscaledPlatform"), bench),
    ),
    Defect("silent", "a later replay that fails says nothing", "a graph that fails", graphs_of(Silent)),
    Defect(
        "lowest",
        "of devices of two kinds, that of the lowest number decides",
        "devices are visible",
        lambda spec, bench: (
            replace(
                spec,
                probe=probe_by_lowest,
                ranks=RankRules(visible=(CARDS,)),
                examples="defects.platform:MIXED",
            ),
            bench,
        ),
    ),
    Defect(
        "groups_without_limit",
        "use of a control group counts where it has no limit",
        "machines of its examples",
        lambda spec, bench: (replace(spec, examples="defects.platform:GROUPS"), bench),
    ),
    Defect(
        "pairs",
        "a core is taken to have two threads where any has",
        "threads are for the cores",
        lambda spec, bench: (replace(spec, implementation="defects.platform:Pairs"), bench),
    ),
    Defect("swapped", "concurrent parts are returned in another order", "concurrent parts", graphs_of(Swapped)),
    Defect("lost", "what a concurrent part raises is lost", "concurrent parts", graphs_of(Lossy)),
    Defect("hoarding", "graphs are kept for good", "graphs that are dropped", graphs_of(Hoarding)),
    Defect("on_demand", "graphs are for fewer than no requests", "facets are complete", graphs_of(Backwards)),
    Defect(
        "measures_no_zero",
        "a run without memory is said not to be known",
        "measure returns",
        lambda spec, bench: (spec, with_facet(bench, "memory", Something())),
    ),
    Defect(
        "measure_after_failure",
        "after a run that failed, measure returns 0",
        "measure raises",
        lambda spec, bench: (spec, with_facet(bench, "memory", Upset())),
    ),
    Defect(
        "crowded",
        "by default there are more threads than CPUs",
        "setup leaves",
        lambda spec, bench: (replace(spec, implementation="defects.platform:CrowdedPlatform"), bench),
    ),
    Defect(
        "one_rank",
        "all places have the first rank",
        "what it says of ranks",
        lambda spec, bench: (replace(spec, ranks=OneRank()), bench),
    ),
    Defect(
        "unheard_rules",
        "a variable is named in a class, where the constructor sets its default",
        "what it says of ranks",
        lambda spec, bench: (replace(spec, ranks=Unheard()), bench),
    ),
    Defect(
        "numbers_for_ranks",
        "ranks get numbers where variables are texts",
        "what it says of ranks",
        lambda spec, bench: (replace(spec, ranks=Numbers()), bench),
    ),
    Defect(
        "ascii",
        "the probe raises where a file is no text",
        "machines whose files are garbled",
        lambda spec, bench: (replace(spec, probe=probe_of_ascii), bench),
    ),
    Defect(
        "options",
        "the probe raises for an option of another type",
        "options that nothing has checked",
        lambda spec, bench: (replace(spec, probe=probe_with_options), bench),
    ),
    Defect(
        "device_by_number",
        "the probe raises where devices are named otherwise",
        "its probe understands",
        lambda spec, bench: (replace(spec, probe=probe_by_number, ranks=RankRules(visible=("LLMK_CPUS",))), bench),
    ),
    Defect(
        "features_of_a_set",
        "features can be changed, so facts are no key",
        "facts are well formed",
        lambda spec, bench: (replace(spec, probe=probe_of_a_set), bench),
    ),
    Defect(
        "half_a_facet",
        "the memory facet can't measure",
        "facets are complete",
        lambda spec, bench: (spec, with_facet(bench, "memory", SimpleNamespace(total=int, available=int))),
    ),
    Defect(
        "threads",
        "the requested number of threads is not set",
        "setup sets",
        lambda spec, bench: (
            spec,
            with_facet(
                bench,
                "device",
                SimpleNamespace(setup=lambda *args: None, torch_device=bench.platform.device.torch_device),
            ),
        ),
    ),
)
