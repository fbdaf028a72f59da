"""A launcher of children, and ways to get one wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from defects import Defect
from llmk.api import LaunchContext, NotEnoughResources, RankPlace, RankProcess


class Good:
    """Children of this process, as if they were on another machine."""

    address = "127.0.0.1"

    def __init__(self, context: LaunchContext) -> None:
        self.context = context
        self.processes: dict[int, Any] = {}
        self.killed = False

    def place(self) -> Sequence[RankPlace]:
        return [RankPlace(node="there", address="127.0.0.1", index=index) for index in range(self.context.query.tensor)]

    def start(self, place: int, process: RankProcess) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        child: Any = subprocess.Popen([sys.executable, *process.arguments], **pipes)  # type: ignore[call-overload]
        self.processes[place] = child
        threading.Thread(target=self.follow, args=(place, child, process.input), daemon=True).start()

    def follow(self, place: int, child: Any, data: bytes) -> None:
        self.give(child, data)
        for line in child.stdout:
            self.tell(place, self.text(line))
        code = child.wait()
        if not self.killed and self.counts(code):
            self.report(place, code)

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
        self.killed = True
        for child in self.processes.values():
            child.kill()

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
        return [RankPlace(index=index) for index in range(self.context.query.tensor)]


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
    Defect("asks", "processes are asked to end, and go on", Asks, "processes that are killed"),
    Defect("kills_one", "only one process is killed", KillsOne, "processes that are killed"),
    Defect("reports_killed", "processes that were killed are reported", ReportsKilled, "processes that are killed"),
    Defect("keeps", "places are not given back", Keeps, "closing twice"),
    Defect("up_to_one", "killing stops at one that has ended", KillsUpToOne, "those that are left"),
    Defect("runs_out", "places of engines that were closed are lost", RunsOut, "as many engines"),
    Defect("numbers", "a device's number is that among all of the machine", Numbers, "a second engine"),
    Defect("orphans", "each process holds the input of its own open", Orphans, "an engine that is killed"),
    Defect("closes_once", "closing twice raises", ClosesOnce, "closing twice"),
]
