"""A launcher of children, and ways to get one wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile, gettempdir
from typing import Any, ClassVar

from defects import Defect
from llmk.api import LaunchContext, NotEnoughResources, RankPlace, RankProcess

PROCESS = os.getpid()
"""That of the engines that it is tried in, of which one is in a fork."""


class Good:
    """Children of this process, as if they were on another machine."""

    address = "127.0.0.1"

    def __init__(self, context: LaunchContext) -> None:
        self.context = context
        self.processes: dict[int, Any] = {}
        self.starting: Any = threading.RLock()
        self.killed = False

    @property
    def ranks(self) -> int:
        return self.context.query.tensor * self.context.query.pipeline

    def place(self) -> Sequence[RankPlace]:
        return [RankPlace(node="there", address="127.0.0.1", index=index) for index in range(self.ranks)]

    def start(self, place: int, process: RankProcess) -> None:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command, own = [sys.executable, *process.arguments], pipes | self.options(process)
        with self.starting:
            if self.killed:
                return
            child = subprocess.Popen(command, start_new_session=True, **own)
            self.processes[place] = child
        threading.Thread(target=self.follow, args=(place, child, process.input), daemon=True).start()

    def options(self, process: RankProcess) -> dict[str, Any]:
        return {}

    def follow(self, place: int, child: Any, data: bytes) -> None:
        threading.Thread(target=self.give, args=(child, data), daemon=True).start()
        reader = threading.Thread(target=self.read, args=(place, child), daemon=True)
        reader.start()
        code = self.wait(child, reader)
        if not self.killed and self.counts(code):
            self.report(place, code)

    def read(self, place: int, child: Any) -> None:
        for line in child.stdout:
            self.tell(place, self.text(line))

    def wait(self, child: Any, reader: threading.Thread) -> int:
        code = int(child.wait())
        self.kill_group(child)
        reader.join()
        return code

    def kill_group(self, child: Any) -> None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def text(self, line: bytes) -> str:
        return line.decode(errors="replace").rstrip("\r\n")

    def counts(self, code: int) -> bool:
        return True

    def give(self, child: Any, data: bytes) -> None:
        child.stdin.write(data)
        child.stdin.flush()

    def tell(self, place: int, line: str) -> None:
        self.context.said(place, line)

    def report(self, place: int, code: int) -> None:
        self.context.ended(place, f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}")

    def kill(self) -> None:
        with self.starting:
            self.killed = True
        for child in self.processes.values():
            if child.returncode is None:
                self.kill_group(child)

    def close(self) -> None:
        self.kill()
        for child in self.processes.values():
            child.wait()


class Waits(Good):
    def start(self, place: int, process: RankProcess) -> None:
        super().start(place, RankProcess(arguments=process.arguments, input=b""))
        self.processes[place].stdin.write(process.input)
        self.processes[place].stdin.flush()


class Strict(Good):
    def text(self, line: bytes) -> str:
        return line.decode().rstrip("\r\n")


class Stripped(Good):
    def text(self, line: bytes) -> str:
        return super().text(line).strip()


class WithEnds(Good):
    def text(self, line: bytes) -> str:
        return line.decode(errors="replace")


class FailuresAlone(Good):
    def counts(self, code: int) -> bool:
        return code != 0


class Negative(Good):
    def report(self, place: int, code: int) -> None:
        self.context.ended(place, f"ended with exit code {code}")


class NoSignal(Good):
    address = ""

    def report(self, place: int, code: int) -> None:
        self.context.ended(place, f"ended with exit code {code if code >= 0 else 1}")


class Asks(Good):
    def kill(self) -> None:
        self.killed = True
        for child in self.processes.values():
            child.terminate()


class TooFew(Good):
    def place(self) -> Sequence[RankPlace]:
        return super().place()[1:]


class SameDevice(Good):
    def place(self) -> Sequence[RankPlace]:
        return [RankPlace(node="there", address="127.0.0.1") for _ in super().place()]


class NoAddress(Good):
    def place(self) -> Sequence[RankPlace]:
        return [RankPlace(node="there", index=place.index) for place in super().place()]


class Cut(Good):
    def give(self, child: Any, data: bytes) -> None:
        child.stdin.write(data[: 1 << 16])
        child.stdin.close()


class SameInput(Good):
    def give(self, child: Any, data: bytes) -> None:
        super().give(child, b"\x01" * len(data))


class Closes(Good):
    def give(self, child: Any, data: bytes) -> None:
        super().give(child, data)
        child.stdin.close()


class Silent(Good):
    def tell(self, place: int, line: str) -> None:
        """Drops it."""


class Swaps(Good):
    def tell(self, place: int, line: str) -> None:
        super().tell(1 - place, line)


class NoEnd(Good):
    def report(self, place: int, code: int) -> None:
        """Drops it."""


class Twice(Good):
    def report(self, place: int, code: int) -> None:
        super().report(place, code)
        super().report(place, code)


class OtherPlace(Good):
    def report(self, place: int, code: int) -> None:
        super().report(1 - place, code)


class NoCode(Good):
    def report(self, place: int, code: int) -> None:
        self.context.ended(place, "ended")


class KillsOne(Good):
    def kill(self) -> None:
        self.killed = True
        self.processes[0].kill()

    def close(self) -> None:
        for child in self.processes.values():
            child.kill()


class ReportsKilled(Good):
    def kill(self) -> None:
        for child in self.processes.values():
            child.kill()


class Keeps(Good):
    taken: ClassVar[int] = 0

    def place(self) -> Sequence[RankPlace]:
        if Keeps.taken:
            raise NotEnoughResources("all places are taken")
        Keeps.taken += 1
        return super().place()


class KillsUpToOne(Good):
    def kill(self) -> None:
        self.killed = True
        for child in self.processes.values():
            if child.poll() is not None:
                break
            child.kill()


class Local(Good):
    """On this machine."""

    address = ""

    def place(self) -> Sequence[RankPlace]:
        return [RankPlace(index=index) for index in range(self.ranks)]


class Numbers(Local):
    """Numbers a device among all of the machine."""

    held: ClassVar[int] = 0

    def place(self) -> Sequence[RankPlace]:
        Numbers.held += 1
        return [replace(each, index=each.index + 2 * (Numbers.held - 1)) for each in super().place()]

    def close(self) -> None:
        super().close()
        Numbers.held = 0


class RunsOut(Local):
    """Has places for 50 engines, and never gets one back."""

    taken: ClassVar[int] = 0

    def place(self) -> Sequence[RankPlace]:
        if RunsOut.taken == 50:
            raise NotEnoughResources("all places are taken")
        RunsOut.taken += 1
        return super().place()


class KeepsFiles(Local):
    """A place is taken as long as its file is there, also after the engine crashed."""

    def __init__(self, context: LaunchContext) -> None:
        super().__init__(context)
        self.file: Path | None = None

    def place(self) -> Sequence[RankPlace]:
        for number in range(4):
            file = Path(gettempdir(), f"llmk-keeps-files-{PROCESS}-{number}")
            with suppress(FileExistsError):
                file.touch(exist_ok=False)
                self.file = file
                return super().place()
        raise NotEnoughResources("this machine has no free place, and an engine needs one")

    def close(self) -> None:
        super().close()
        if self.file is not None:
            self.file.unlink(missing_ok=True)


class Orphans(Local):
    """Both ends of the input are in each process."""

    def start(self, place: int, process: RankProcess) -> None:
        reading, writing = os.pipe()
        child: Any = subprocess.Popen([sys.executable, *process.arguments], stdin=reading, pass_fds=(writing,))
        os.close(reading)
        os.write(writing, process.input)
        self.processes[place] = child


class ClosesOnce(Good):
    def close(self) -> None:
        super().close()
        del self.processes


class TensorAlone(Good):
    @property
    def ranks(self) -> int:
        return self.context.query.tensor


class OneProcess(Good):
    """Neither what a process started nor what it left."""

    def kill_group(self, child: Any) -> None:
        child.kill()


class Leaves(Good):
    def wait(self, child: Any, reader: threading.Thread) -> int:
        code = int(child.wait())
        reader.join(0.2)
        return code


class HearsOutput(Good):
    """Waits for the end of the output, which what the process left has open."""

    def wait(self, child: Any, reader: threading.Thread) -> int:
        reader.join()
        return super().wait(child, reader)


class EndsWithOutput(Good):
    def wait(self, child: Any, reader: threading.Thread) -> int:
        reader.join()
        self.kill_group(child)
        return super().wait(child, reader)


class EarlyEnd(Good):
    def wait(self, child: Any, reader: threading.Thread) -> int:
        return int(child.wait())

    def tell(self, place: int, line: str) -> None:
        time.sleep(0.0002)
        super().tell(place, line)


class LateReader(Good):
    """Reads when the process has ended, which it can't while its output is not read."""

    def read(self, place: int, child: Any) -> None:
        child.wait()
        super().read(place, child)


class StartsLate(Good):
    def start(self, place: int, process: RankProcess) -> None:
        self.killed = False
        super().start(place, process)


class LooksFirst(Good):
    """Whether it was killed is looked at before a process is started, not as one step with it."""

    def __init__(self, context: LaunchContext) -> None:
        super().__init__(context)
        self.starting = nullcontext()


class NeedsPlaces(Good):
    def close(self) -> None:
        self.processes[0].poll()
        super().close()


class Locks(Good):
    def __init__(self, context: LaunchContext) -> None:
        super().__init__(context)
        self.lock = threading.Lock()

    def report(self, place: int, code: int) -> None:
        with self.lock:
            super().report(place, code)

    def kill(self) -> None:
        with self.lock:
            super().kill()


class Shows(Good):
    def options(self, process: RankProcess) -> dict[str, Any]:
        return {"env": {**os.environ, "INPUT": process.input[:4096].hex()}}


class Stores(Good):
    def give(self, child: Any, data: bytes) -> None:
        with NamedTemporaryFile("wb", delete=False) as file:
            file.write(data)
        super().give(child, data)


class Bare(Local):
    def options(self, process: RankProcess) -> dict[str, Any]:
        return {"env": {}}


class OtherFolder(Local):
    def options(self, process: RankProcess) -> dict[str, Any]:
        return {"cwd": "/"}


class LeavesZombies(Local):
    def close(self) -> None:
        self.kill()


class NamesAll(Local):
    def place(self) -> Sequence[RankPlace]:
        return [replace(each, devices=tuple("abcdefgh")) for each in super().place()]


class SameNames(Local):
    def place(self) -> Sequence[RankPlace]:
        names = tuple(map(str, range(self.ranks)))
        return [replace(each, devices=names) for each in super().place()]


class Scattered(Good):
    def place(self) -> Sequence[RankPlace]:
        half = [RankPlace(node=f"n{index % 2}", address="::1", index=index // 2) for index in range(self.ranks)]
        return half if self.ranks % 2 == 0 else super().place()


class KeepsHalf(Local):
    """Has eight places, and takes some before it finds that they are too few."""

    free: ClassVar[int] = 8
    held = 0

    def place(self) -> Sequence[RankPlace]:
        taken = min(self.ranks, KeepsHalf.free)
        KeepsHalf.free -= taken
        if taken < self.ranks:
            raise NotEnoughResources(f"this machine has {taken} free places, and {self.ranks} ranks need one each")
        self.held = taken
        return super().place()

    def close(self) -> None:
        super().close()
        KeepsHalf.free, self.held = KeepsHalf.free + self.held, 0


class LosesLater(Local):
    """Has places for three engines, and gets none of them back."""

    given: ClassVar[int] = 0

    def place(self) -> Sequence[RankPlace]:
        LosesLater.given += self.ranks
        if LosesLater.given > 6:
            raise NotEnoughResources("this machine has no free place any more, and each rank of an engine needs one")
        return super().place()


class Retakes(Local):
    """What one finds taken is free for the next, as where it removes the lock of that."""

    taken: ClassVar[set[str]] = set()
    names: tuple[str, ...] = ()

    def place(self) -> Sequence[RankPlace]:
        free = [name for name in map(str, range(8)) if name not in Retakes.taken]
        Retakes.taken -= Retakes.taken - set(free)
        if len(free) < self.ranks:
            raise NotEnoughResources(f"this machine has {len(free)} free places, and {self.ranks} ranks need one each")
        self.names = tuple(free[: self.ranks])
        Retakes.taken |= set(self.names)
        return [replace(each, devices=self.names) for each in super().place()]

    def close(self) -> None:
        super().close()
        Retakes.taken -= set(self.names)


DEFECTS = [
    Defect("too_few", "a rank has no place", TooFew, "a place for each rank"),
    Defect("same_device", "ranks on a machine have the same device", SameDevice, "a place for each rank"),
    Defect("no_address", "a machine has a name and no address", NoAddress, "a place for each rank"),
    Defect("cut", "large inputs are cut", Cut, "its own input"),
    Defect("same_input", "all get the input of one", SameInput, "its own input"),
    Defect("closes", "the input is closed, so that processes end", Closes, "its own input"),
    Defect("silent", "what processes write is dropped", Silent, "writes arrives"),
    Defect("swaps", "what a process writes is said of another", Swaps, "writes arrives"),
    Defect("no_end", "an end is not reported", NoEnd, "the end of a process"),
    Defect("twice", "an end is reported twice", Twice, "the end of a process"),
    Defect("other_place", "the end of another is reported", OtherPlace, "the end of a process"),
    Defect("no_code", "an end is reported without how it came", NoCode, "the end of a process"),
    Defect("waits", "starting waits until the input was read", Waits, "starting does not wait"),
    Defect("strict", "a line that is not UTF-8 ends the reader", Strict, "as they were written"),
    Defect("stripped", "lines lose the white space at their start", Stripped, "as they were written"),
    Defect("with_ends", "lines have their ends", WithEnds, "as they were written"),
    Defect("failures", "an end without an error is not reported", FailuresAlone, "without an error"),
    Defect("negative", "a signal is a negative exit code", Negative, "by a signal"),
    Defect("no_signal", "an end by a signal is one with exit code 1", NoSignal, "by a signal"),
    Defect("asks", "processes are asked to end, and go on", Asks, "processes that are killed"),
    Defect("kills_one", "only one process is killed", KillsOne, "processes that are killed"),
    Defect("reports_killed", "processes that were killed are reported", ReportsKilled, "processes that are killed"),
    Defect("keeps", "places are not given back", Keeps, "closing twice"),
    Defect("up_to_one", "killing stops at one that has ended", KillsUpToOne, "those that are left"),
    Defect("runs_out", "places of engines that were closed are lost", RunsOut, "as many engines"),
    Defect("numbers", "a device's number is that among all of the machine", Numbers, "a second engine"),
    Defect("orphans", "each process holds the input of its own open", Orphans, "an engine that is killed"),
    Defect("closes_once", "closing twice raises", ClosesOnce, "closing twice"),
    Defect("tensor_alone", "stages of a pipeline have no places", TensorAlone, "each rank of each stage"),
    Defect("scattered", "places of a machine are not next to each other", Scattered, "each rank of each stage"),
    Defect("keeps_half", "what was reserved before a place was missing is kept", KeepsHalf, "or none is reserved"),
    Defect("names_all", "there are more names of devices than ranks", NamesAll, "a place for each rank"),
    Defect("same_names", "two engines have the same devices", SameNames, "a second engine"),
    Defect("one_process", "what a process started is not killed", OneProcess, "what a process started"),
    Defect("leaves", "what a process left stays when it ends", Leaves, "what a process left"),
    Defect("hears_output", "an end is heard when all output has ended", HearsOutput, "what a process left"),
    Defect("ends_with_output", "a process ends with its output", EndsWithOutput, "closes its output"),
    Defect("early_end", "an end is reported before the last lines", EarlyEnd, "after the last line"),
    Defect("late_reader", "output is read after the end", LateReader, "after the last line"),
    Defect("starts_late", "a process is started after all were killed", StartsLate, "nothing is started after"),
    Defect("keeps_files", "places of an engine that was killed are lost", KeepsFiles, "an engine that is killed"),
    Defect("looks_first", "one is started while all are killed", LooksFirst, "nothing is started after"),
    Defect("needs_places", "it can't be closed before it has started any", NeedsPlaces, "before anything"),
    Defect("locks", "it can't be killed where an end is reported", Locks, "where an end is reported"),
    Defect("shows", "the input is in the environment", Shows, "no one sees its input"),
    Defect("stores", "the input is stored", Stores, "no one sees its input"),
    Defect("bare", "the environment is not handed on", Bare, "Python, environment and folder"),
    Defect("other_folder", "processes run in another folder", OtherFolder, "Python, environment and folder"),
    Defect("zombies", "killed processes are not waited for", LeavesZombies, "have ended when close returns"),
    Defect("retakes", "what one engine finds taken, the next takes", Retakes, "as many engines"),
]
