"""A source of models that copies folders, and ways to get one wrong."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from defects import Defect
from llmk.api import (
    OK,
    CheckpointError,
    ConfigError,
    FetchedModel,
    FetchProgress,
    ModelNotFound,
    ModelSourceContext,
    StoredModel,
    Verdict,
    no,
)
from llmk_testing.model_sources import SourceExample, toy_checkpoint


class Options(BaseModel, extra="forbid"):
    shelf: str = "."


def claims(name: str) -> Verdict:
    found = name.removeprefix("shelf:")
    return OK if name.startswith("shelf:") and found.isalnum() else no("form", wanted="shelf:NAME")


def claims_all(name: str) -> Verdict:
    return OK


def claims_first(name: str) -> Verdict:
    return OK if name[0] == "s" and claims(name) else no("form", wanted="shelf:NAME")


def claims_silently(name: str) -> Verdict:
    return claims(name) if claims(name) else Verdict(False)


def claims_known(name: str) -> Verdict:
    return OK if name == "shelf:toy" else no("form", wanted="shelf:toy")


def claims_stripped(name: str) -> Verdict:
    return claims(name.strip())


def sums_of(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest() for file in files}


@contextmanager
def filled(folder: Path) -> Iterator[SourceExample]:
    fixed = {**toy_checkpoint(20_000), "z.txt": b"fixed"}
    models = {"toy": {**toy_checkpoint(), "z.txt": b"one"}, "toy2": toy_checkpoint(20_000)}
    models[f"sum{sha256(fixed['config.json']).hexdigest()[:8]}"] = fixed

    def put(model: str, files: Mapping[str, bytes]) -> None:
        """A name that leads out of the model stands in a list next to it."""
        shutil.rmtree(folder / model, ignore_errors=True)
        (folder / f"{model}.list").unlink(missing_ok=True)
        (folder / model).mkdir()
        for name, data in files.items():
            inside = (folder / model).resolve() in (folder / model / name).resolve().parents
            place = folder / model / (name if inside else "escape")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            if not inside:
                (folder / f"{model}.list").write_text(name)
        (folder / f"{model}.sums").write_text(json.dumps(sums_of(folder / model)))

    for model, files in models.items():
        put(model, files)

    def damage() -> None:
        (folder / "toy/model.safetensors").write_bytes(models["toy"]["model.safetensors"][:-1] + b"?")

    options = {"shelf": str(folder)}
    named = {f"shelf:{model}": files for model, files in models.items()}

    def publish(name: str, files: Mapping[str, bytes]) -> None:
        if "sum" in name:
            raise ValueError(name)
        put(name.removeprefix("shelf:"), files)

    def forge(name: str, files: Mapping[str, bytes]) -> None:
        if "sum" not in name:
            raise ValueError(name)
        put(name.removeprefix("shelf:"), files)

    def away() -> None:
        folder.rename(folder.with_name("away"))

    yield SourceExample("shelf:toy", "shelf:tow", options, named, damage, publish, away, forge)


class Good:
    def __init__(self, context: ModelSourceContext) -> None:
        self.cache = context.cache / "models"
        self.shelf = self.read(context.options)

    def read(self, options: Mapping[str, Any]) -> Path:
        try:
            return Path(Options(**options).shelf)
        except ValidationError as error:
            raise ConfigError(str(error)) from None

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        name = reference.removeprefix("shelf:")
        source, target = self.shelf / name, self.cache / name
        if not self.shelf.is_dir():
            raise self.away(name)
        if not source.is_dir():
            raise self.absent(name)
        sums, copied = source.with_suffix(".sums"), self.cache / f".{name}.sums"
        if target.is_dir() and self.is_old(sums, copied):
            shutil.rmtree(target)
        if not target.is_dir():
            self.check(source)
            self.check_files(source)
            self.check_name(source)
            self.cache.mkdir(parents=True, exist_ok=True)
            copied.write_text(sums.read_text())
            self.copy(source, target, progress)
        return FetchedModel(target, name)

    def is_old(self, sums: Path, copied: Path) -> bool:
        return sums.read_text() != copied.read_text()

    def check(self, source: Path) -> None:
        if sums_of(source) != json.loads(source.with_suffix(".sums").read_text()):
            raise CheckpointError(f"shelf:{source.name} is damaged", hint="copy it again")

    def check_files(self, source: Path) -> None:
        if not self.files(source):
            raise CheckpointError(f"shelf:{source.name} has no files", hint="put them onto the shelf")

    def check_name(self, source: Path) -> None:
        """A name may say what ``config.json`` is."""
        if source.name.startswith("sum") and source.name != f"sum{sums_of(source)['config.json'][:8]}":
            raise CheckpointError(f"shelf:{source.name} is another model", hint="ask for it elsewhere")

    def absent(self, name: str) -> Exception:
        return ModelNotFound(f"there is no shelf:{name}", hint="look at the shelf")

    def away(self, name: str) -> Exception:
        return CheckpointError(f"shelf:{name} can't be had: there is no shelf", hint="mount it")

    def files(self, source: Path) -> list[Path]:
        return sorted(file for file in source.rglob("*") if file.is_file())

    def place(self, folder: str, source: Path, file: Path) -> Path:
        return Path(folder, file.relative_to(source))

    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        with tempfile.TemporaryDirectory(prefix=".", dir=self.cache) as folder:
            files = self.files(source)
            sizes = [file.stat().st_size for file in files]
            for number, file in enumerate(files):
                progress(sum(sizes[:number]), sum(sizes))
                place = self.place(folder, source, file)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
            progress(sum(sizes), sum(sizes))
            try:
                Path(folder).rename(target)
            except OSError:
                assert target.is_dir()
            else:
                Path(folder).mkdir()

    def stored(self) -> list[StoredModel]:
        found = []
        for folder in self.cache.glob("[!.]*"):
            size = sum(file.stat().st_size for file in self.files(folder))
            found.append(StoredModel(f"shelf:{folder.name}", "", folder, size))
        return found


class Unchecked(Good):
    def check(self, source: Path) -> None:
        pass


class Unnamed(Good):
    def check_name(self, source: Path) -> None:
        pass


class Unread(Good):
    def read(self, options: Mapping[str, Any]) -> Path:
        return Path(options["shelf"])


class OneFolder(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        found = super().fetch("shelf:toy", progress, outline=outline) if reference == "shelf:toy2" else None
        return found or super().fetch(reference, progress, outline=outline)


class OutlineForAll(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        found = super().fetch(reference, progress, outline=outline)
        if outline:
            weights = found.path / "model.safetensors"
            data = weights.read_bytes()
            weights.write_bytes(data[:1000] + bytes(len(data) - 1000))
        return found


class LeavesRests(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        rest = self.cache / f"{source.name}.rest"
        rest.mkdir(exist_ok=True)
        super().copy(source, target, progress)

    def stored(self) -> list[StoredModel]:
        return [replace(each, is_complete=each.path.suffix != ".rest") for each in super().stored()]


class Resumes(Good):
    """Goes on with what an interrupted copy left, in the wrong ways of its subclasses."""

    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        parts = self.parts(source)
        parts.mkdir(parents=True, exist_ok=True)
        files = self.files(source)
        total, left = sum(file.stat().st_size for file in files), self.left(parts)
        done = 0
        for file in files:
            place = self.place(str(parts), source, file)
            place.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as reading, place.open("ab") as writing:
                reading.seek(self.start(writing.tell(), file.stat().st_size))
                done += reading.tell()
                while chunk := reading.read(1 << 20):
                    self.report(progress, left + done, total)
                    writing.write(chunk)
                    done += len(chunk)
        progress(total, total)
        parts.rename(target)

    def parts(self, source: Path) -> Path:
        sums = source.with_suffix(".sums").read_bytes()
        return self.cache / f".{source.name}-{sha256(sums).hexdigest()}"

    def left(self, parts: Path) -> int:
        return 0

    def start(self, there: int, size: int) -> int:
        return there

    def report(self, progress: FetchProgress, done: int, total: int) -> None:
        progress(done, total)


class TakesAPart(Resumes):
    def start(self, there: int, size: int) -> int:
        return size if there else 0


class CountsTwice(Resumes):
    def left(self, parts: Path) -> int:
        return sum(file.stat().st_size for file in self.files(parts))


class SwallowsInterrupts(Resumes):
    def report(self, progress: FetchProgress, done: int, total: int) -> None:
        with suppress(KeyboardInterrupt):
            progress(done, total)


class OnePart(Resumes):
    def parts(self, source: Path) -> Path:
        return self.cache / ".part"


class PartByName(Resumes):
    def parts(self, source: Path) -> Path:
        return self.cache / f".{source.name}-part"


class Flattens(Good):
    def place(self, folder: str, source: Path, file: Path) -> Path:
        return Path(folder, file.name)


class LeavesEmptyOut(Good):
    def files(self, source: Path) -> list[Path]:
        return [file for file in super().files(source) if file.stat().st_size]


class Escapes(Good):
    """Believes the names of files."""

    def place(self, folder: str, source: Path, file: Path) -> Path:
        names = source.with_suffix(".list")
        return Path(folder, names.read_text()) if file.name == "escape" else super().place(folder, source, file)


class AddsTo(Good):
    """What is published again to what is there."""

    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        kept = self.cache / f".{target.name}-kept"
        if kept.is_dir():
            for file in self.files(kept):
                with suppress(OSError):
                    shutil.copy(file, source / file.name) if not (source / file.name).exists() else None
        super().copy(source, target, progress)
        shutil.copytree(target, kept, dirs_exist_ok=True)


class CrashesAway(Good):
    def away(self, name: str) -> Exception:
        return FileNotFoundError(name)


class SilentAway(Good):
    def away(self, name: str) -> Exception:
        return CheckpointError("there is no shelf", hint="mount it")


class ByBeginning(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        names = [each for each in ("shelf:toy2", "shelf:toy") if reference.startswith(each)]
        return super().fetch(names[0] if names else reference, progress, outline=outline)


class LockThatStays(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        lock = self.cache / ".lock"
        while True:
            with suppress(FileExistsError):
                lock.touch(exist_ok=False)
                break
            time.sleep(0.05)
        try:
            super().copy(source, target, progress)
        finally:
            lock.unlink()


class NeedsTorch(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        import torch

        assert torch
        super().copy(source, target, progress)


class ListsParts(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        part = self.cache / f"{target.name}-part"
        part.mkdir()
        try:
            super().copy(source, target, progress)
        finally:
            part.rmdir()


class CountsMegabytes(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        super().copy(source, target, lambda done, total: progress(done >> 20, total >> 20))


class OneRevision(Good):
    """Keeps all that was published, and does not tell it apart."""

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        name = reference.removeprefix("shelf:")
        target, copied = self.cache / name, self.cache / f".{name}.sums"
        if target.is_dir() and self.shelf.is_dir() and self.is_old(self.shelf / f"{name}.sums", copied):
            target.rename(self.cache / f"{name}-{time.monotonic_ns()}")
        return super().fetch(reference, progress, outline=outline)

    def stored(self) -> list[StoredModel]:
        return [replace(each, reference=each.reference.partition("-")[0]) for each in super().stored()]


class ByName(Good):
    def is_old(self, sums: Path, copied: Path) -> bool:
        return False


class BySizes(Good):
    """What is there is known by its files' sizes."""

    def is_old(self, sums: Path, copied: Path) -> bool:
        target = self.cache / sums.stem
        sizes = [
            {str(file.relative_to(folder)): file.stat().st_size for file in self.files(folder)}
            for folder in (sums.with_suffix(""), target)
        ]
        return sizes[0] != sizes[1]


class TheLast(Good):
    """Takes what was published last for what a shorter name means."""

    def check(self, source: Path) -> None:
        super().check(source)
        if source.name == "toy":
            last = max(self.shelf.glob("toy*.sums"), key=lambda path: path.stat().st_mtime_ns)
            shutil.copytree(last.with_suffix(""), source, dirs_exist_ok=True)


class NoTwoDots(Good):
    """Takes two dots in a name for a way out of the model."""

    def check(self, source: Path) -> None:
        super().check(source)
        if any(".." in file.name for file in self.files(source)):
            raise CheckpointError(f"shelf:{source.name} has a file outside", hint="rename it")


class CopiesInPlace(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        target.mkdir(exist_ok=True)
        for file in source.iterdir():
            progress(0, 1)
            shutil.copy(file, target)
        progress(1, 1)


class NoFiles(Good):
    def check_files(self, source: Path) -> None:
        pass


class AwayPart(CopiesInPlace):
    """With the shelf away, what is there of a model is taken for the model."""

    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        name = reference.removeprefix("shelf:")
        if not self.shelf.is_dir() and (self.cache / name).is_dir():
            return FetchedModel(self.cache / name, name)
        return super().fetch(reference, progress, outline=outline)


class MakesTheFolderFirst(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        progress(0, 1)
        target.mkdir()
        time.sleep(0.5)
        for file in source.iterdir():
            shutil.copy(file, target)
        progress(1, 1)


class IgnoresInterrupts(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        try:
            super().copy(source, target, progress)
        except KeyboardInterrupt:
            super().copy(source, target, lambda done, total: None)


class LeavesAThread(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        threading.Thread(target=time.sleep, args=(3.0,), name="copier", daemon=True).start()
        super().copy(source, target, progress)


class FromAThread(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        with_progress = threading.Thread(target=super().copy, args=(source, target, progress))
        with_progress.start()
        with_progress.join()


class CountsDown(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        super().copy(source, target, lambda done, total: progress(total - done, total))


class NeverEnds(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        super().copy(source, target, lambda done, total: progress(done, total + 1))


class Silent(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        super().copy(source, target, lambda done, total: None)


class CopiesAgain(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        found = super().fetch(reference, progress, outline=outline)
        for file in found.path.iterdir():
            file.write_bytes(file.read_bytes())
        return found


class FolderPerFetch(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        name = reference.removeprefix("shelf:")
        target = self.cache / f"{name}-{time.monotonic_ns()}"
        self.cache.mkdir(parents=True, exist_ok=True)
        if not (self.shelf / name).is_dir():
            raise self.absent(name)
        self.copy(self.shelf / name, target, progress)
        return FetchedModel(target, name)


class OutlineWithoutWeights(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        if not outline:
            return super().fetch(reference, progress, outline=outline)
        name = reference.removeprefix("shelf:")
        target = self.cache / "outlines" / name
        if not (self.shelf / name).is_dir():
            raise self.absent(name)
        target.mkdir(parents=True)
        shutil.copy(self.shelf / name / "config.json", target)
        return FetchedModel(target, name)


class ForgetsWeights(Good):
    def copy(self, source: Path, target: Path, progress: FetchProgress) -> None:
        super().copy(source, target, progress)
        (target / "model.safetensors").unlink()


class NoName(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> FetchedModel:
        return FetchedModel(super().fetch(reference, progress, outline=outline).path, "")


class PathAlone(Good):
    def fetch(self, reference: str, progress: FetchProgress, *, outline: bool) -> Any:
        return super().fetch(reference, progress, outline=outline).path


class OtherError(Good):
    def absent(self, name: str) -> Exception:
        return CheckpointError(f"there is no shelf:{name}", hint="look at the shelf")


class NoHint(Good):
    def absent(self, name: str) -> Exception:
        return ModelNotFound(f"there is no shelf:{name}")


class NoMention(Good):
    def absent(self, name: str) -> Exception:
        return ModelNotFound("no such model", hint="look at the shelf")


class NeedsTheCache(Good):
    def stored(self) -> list[StoredModel]:
        assert list(self.cache.iterdir()) is not None
        return super().stored()


class OtherReference(Good):
    def stored(self) -> list[StoredModel]:
        return [StoredModel(each.path.name, "", each.path, each.num_bytes) for each in super().stored()]


class WrongSize(Good):
    def stored(self) -> list[StoredModel]:
        return [StoredModel(each.reference, "", each.path, 0) for each in super().stored()]


class ListsNothing(Good):
    def stored(self) -> list[StoredModel]:
        return []


PROGRESS = "progress grows up to the whole, in the thread that asked"
INTERRUPT = "an interrupt ends it, and what it left is not taken for a model"
ANY_TIME = "an interrupt at any time ends it"
PUBLISHED = "what is published again"
FILES = "files of any name and size"
AWAY = "a source that is away"
ABSENT = "a name that no model has is refused, with what to do"
STORED = "what is listed can be got by its reference"
ODD = "odd text is not claimed, and raises nothing"
DEFECTS = (
    Defect("in place", "a copy that is not whole has the model's name", CopiesInPlace, INTERRUPT),
    Defect("first of two", "another is taken to be done", MakesTheFolderFirst, "two who ask at once both get it"),
    Defect("ignores", "interrupts are ignored", IgnoresInterrupts, INTERRUPT),
    Defect("part", "what an interrupt left of a file is taken for the whole file", TakesAPart, ANY_TIME),
    Defect("twice", "progress counts what was there already twice", CountsTwice, ANY_TIME),
    Defect("swallows", "an interrupt is swallowed where progress is reported", SwallowsInterrupts, ANY_TIME),
    Defect(
        "one part", "all models have one folder for what is not whole", OnePart, "what an interrupt left of one model"
    ),
    Defect("by name", "what is there is known by its name alone", ByName, PUBLISHED),
    Defect("part by name", "what is there of one that was published again is gone on with", PartByName, PUBLISHED),
    Defect("adds", "what is published again has files of the earlier one", AddsTo, PUBLISHED),
    Defect("one revision", "what was published again has the same revision", OneRevision, PUBLISHED),
    Defect("by sizes", "what is there is known by the sizes of its files", BySizes, PUBLISHED),
    Defect("last", "what was published last is taken for another name's", TheLast, "each name has files"),
    Defect("two dots", "two dots in a name are taken for a folder above", NoTwoDots, FILES),
    Defect("flattens", "files in folders are put next to the others", Flattens, FILES),
    Defect("empty", "files of no bytes are left out", LeavesEmptyOut, FILES),
    Defect("escapes", "names of files lead out of the model", Escapes, "no file is written outside"),
    Defect("crashes", "a shelf that is away is a crash", CrashesAway, AWAY),
    Defect("away part", "with the shelf away, a part is taken for the whole", AwayPart, AWAY),
    Defect("no files", "a model without files is got", NoFiles, FILES),
    Defect("silent away", "with the shelf away, an error does not name the model", SilentAway, AWAY),
    Defect("by a prefix", "a model is found by the first part of a name", ByBeginning, "a longer name"),
    Defect("lock", "the lock of a process that was killed stays", LockThatStays, "a process that is killed"),
    Defect("torch", "torch is needed", NeedsTorch, "a model is got without torch"),
    Defect("parts", "a part is listed as complete", ListsParts, "while it is got"),
    Defect("megabytes", "progress is in megabytes", CountsMegabytes, PROGRESS),
    Defect("unchecked part", "what an interrupt left is not checked", Resumes, "what an interrupt left is checked"),
    Defect("thread", "a thread is left running", LeavesAThread, INTERRUPT),
    Defect("from a thread", "progress is called from another thread", FromAThread, PROGRESS),
    Defect("down", "progress goes down", CountsDown, PROGRESS),
    Defect("never", "progress never reaches the whole", NeverEnds, PROGRESS),
    Defect("silent", "progress is never called", Silent, PROGRESS),
    Defect("again", "files that are there are written again", CopiesAgain, "what is there is not got again"),
    Defect("folders", "every fetch has a folder of its own", FolderPerFetch, "what is there is not got again"),
    Defect("outline", "an outline lacks the weights", OutlineWithoutWeights, "an outline has the shapes"),
    Defect("weights", "the weights are forgotten", ForgetsWeights, "a model is got, and can be read"),
    Defect("no name", "the model has no name", NoName, "a model is got, and can be read"),
    Defect("path", "a path is returned", PathAlone, "a model is got, and can be read"),
    Defect("other error", "a model that is absent is another error", OtherError, ABSENT),
    Defect("no hint", "an error says nothing of what to do", NoHint, ABSENT),
    Defect("no mention", "an error does not name the model", NoMention, ABSENT),
    Defect("needs", "the cache is taken to exist", NeedsTheCache, "nothing is listed before anything was got"),
    Defect("reference", "what is listed has names of another form", OtherReference, STORED),
    Defect("size", "sizes are not counted", WrongSize, STORED),
    Defect("nothing", "nothing is listed", ListsNothing, STORED),
    Defect("forged", "other files than a name says are got", Unnamed, "other files than a name says"),
    Defect("unchecked", "what is damaged is got", Unchecked, "what is damaged"),
    Defect("unread", "options that there are not are ignored", Unread, "options are validated"),
    Defect("one folder", "two names have one folder", OneFolder, "each name has files"),
    Defect("hollow", "an outline is returned as the whole model", OutlineForAll, "after an outline"),
    Defect("rests", "what an interrupt left stays next to the whole model", LeavesRests, INTERRUPT),
    Defect("stripped", "white space around a name is left out", {"claims": claims_stripped}, "text around a name"),
    Defect("all", "everything is claimed", {"claims": claims_all}, ODD),
    Defect("first", "the name is taken to have a first character", {"claims": claims_first}, ODD),
    Defect("silently", "a name is refused without a reason", {"claims": claims_silently}, ODD),
    Defect("known", "only names that there are, are claimed", {"claims": claims_known}, "it claims its own names"),
)
