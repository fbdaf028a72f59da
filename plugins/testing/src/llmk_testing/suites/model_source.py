"""The suite of sources of models: models are got, whole or in outline, once, by several at once, after an interrupt;
and what can't be fetched is refused in words.

``ModelSourceSpec.examples`` names an :data:`~llmk_testing.model_sources.OpenExample`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from llmk.api import (
    CheckpointError,
    ConfigError,
    FetchedModel,
    LlmkError,
    ModelNotFound,
    ModelSourceSpec,
    StoredModel,
    Verdict,
)
from llmk.nn.tensor_file import read_headers
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk_testing.bench import Bench
from llmk_testing.case import Case, Skip
from llmk_testing.model_sources import altered
from llmk_testing.sections import check_unknown
from llmk_testing.source_under_test import (
    Tried,
    contents,
    differing,
    files_of,
    interrupt_at,
    interrupted,
    observed,
    opened,
)
from llmk_testing.suites.model_source_files import PUBLISHED

ODD = ("", " ", "/", "no such", "a\nb", "\0", "é/ü", "-/--", "@", ":", "x" * 100_000, "../../etc/passwd", "%s{}")
"""Text that names nothing."""
MEETING_SECONDS = 1.0
"""How long one who is in the middle of a fetch waits for the other, who may have to wait for the first."""
INTERRUPTS = 6
"""Of how many calls of ``progress`` one is interrupted in, at most."""
INTERRUPT_SECONDS = 15.0
"""Within which a fetch that is interrupted must end."""
_UNKNOWN = "no_such_option"
_UNITS = 16
"""How far bytes that are sent may be from those that they become: other units are farther."""
_OF_SERVERS = "process_request_thread"
"""In the names of threads of ``http.server``, which an example may be."""

Check = Callable[["Tried"], str | None]


def cases(spec: ModelSourceSpec, bench: Bench) -> Iterator[Case]:
    """The cases of one source."""

    def case(name: str, check: Check) -> Case:
        return Case(spec.id, "model_source", name, partial(_run, spec, bench, check))

    yield Case(
        spec.id, "model_source", "an option that there isn't is refused by name", partial(check_unknown, spec.id, bench)
    )
    yield Case(spec.id, "model_source", "odd text is not claimed, and raises nothing", partial(check_odd, spec))
    yield case("it claims its own names", check_claims)
    yield case("text around a name is no name", check_near)
    yield case("nothing is listed before anything was got", check_empty)
    yield case("a model is got, and can be read", check_whole)
    yield case("progress grows up to the whole, in the thread that asked", check_progress)
    yield case("what is there is not got again", check_again)
    yield case("an outline has the shapes of the whole model", check_outline)
    yield case("a name that no model has is refused, with what to do", check_absent)
    yield case("an interrupt ends it, and what it left is not taken for a model", check_interrupt)
    yield case("an interrupt at any time ends it, and the next fetch has the whole", check_interrupts)
    yield case("what an interrupt left of one model is not taken for another", check_interrupted_models)
    yield case("two who ask at once both get it", check_together)
    yield case("after an outline, the whole model is fetched, byte for byte", check_after_outline)
    yield case("each name has files of its own", check_models)
    yield case("what is damaged is not taken for a model", check_damage)
    yield case("options are validated where they are read", check_raw_options)
    yield case("what is listed can be got by its reference", check_stored)
    for name, check in PUBLISHED:
        yield case(name, check)


def check_odd(spec: ModelSourceSpec) -> None:
    """A source must not take names from others, or paths."""
    for text in ODD:
        verdict = spec.claims(text)
        assert isinstance(verdict, Verdict), f"claims({text[:20]!r}) returned {type(verdict).__name__}"
        assert not verdict, f"it claims {text[:20]!r}"
        assert verdict.reasons, f"it refuses {text[:20]!r} without a reason"


def check_claims(tried: Tried) -> None:
    """By their form alone: whether a model exists is found out by ``fetch``."""
    for name in (tried.example.name, tried.example.absent):
        assert tried.spec.claims(name), f"it does not claim {name}: {tried.spec.claims(name).reasons}"


def check_near(tried: Tried) -> None:
    """Text around a name: that is no name, and a path must not get into one."""
    for name in (tried.example.name, tried.example.absent):
        for text in (f"{name}\n", f"{name}\0", f" {name}", f"{name} ", f"{name}/../../x", f"{name}/", f"./{name}"):
            assert not tried.spec.claims(text), f"it claims {text!r}, as if that were {name}"


def check_after_outline(tried: Tried) -> None:
    """What holds nothing behind its headers must not be served."""
    right, _ = observed(tried)
    tried.fetch(outline=True)
    found = tried.fetch()
    wrong = differing(contents(found.path), right)
    assert not wrong, f"after an outline, {', '.join(wrong)} of the whole model differ from those of one got at once"
    tried.fetch(outline=True)
    wrong = differing(contents(tried.fetch().path), right)
    assert not wrong, f"an outline changed {', '.join(wrong)} of the whole model"


def check_models(tried: Tried) -> str:
    """Interleaved, and once more; also when one of them is published again, as it was or with other files."""
    models = tried.example.models
    if not models:
        raise Skip("the example names no further models")
    for _ in range(2):
        for name, files in models.items():
            assert tried.spec.claims(name), f"it does not claim {name}"
            wrong = differing(contents(tried.fetch(name).path), files)
            assert not wrong, f"{name} was got with another {', '.join(wrong)}"
    stored = [each for each in tried.source().stored() if each.is_complete]
    for each in stored:
        _check_listed(tried, each)
    distinct = {(each.reference, each.revision) for each in stored}
    assert len(distinct) == len(stored), f"two that are listed have one reference and revision: {stored}"
    listed = sorted(each.reference for each in stored)
    assert len(listed) >= len({tuple(sorted(files.items())) for files in models.values()}), f"it lists {listed}"
    if tried.example.publish is not None:
        _check_others(tried, tried.example.publish)
    return f"{len(models)} names"


def _check_others(tried: Tried, publish: Callable[[str, Mapping[str, bytes]], None]) -> None:
    """Of names for the same files, one may be another name of the other. The example's own may mean the newest."""
    models, own = tried.example.models, contents(tried.fetch().path)
    now = {tried.example.name: next((files for files in models.values() if not differing(own, files)), own), **models}
    for name in models:
        for change in (dict, altered):
            if name not in now:
                continue
            before, files = now[name], change(now[name])
            try:
                publish(name, files)
            except ValueError:  # a version that never changes
                continue
            now = {each: right for each, right in now.items() if files == before or right != before} | {name: files}
            for each, right in now.items():
                wrong = differing(contents(tried.fetch(each).path), right)
                assert not wrong, f"after {name} was published again, {each} was got with another {', '.join(wrong)}"


def check_damage(tried: Tried) -> str:
    """Of a disk, or of a transfer that ended early."""
    if tried.example.damage is None:
        raise Skip("the example has no damage")
    right = observed(tried)[0]
    tried.example.damage()
    error = _error_of(tried)
    assert error is not None, "what is damaged was got"
    listed = [each.reference for each in tried.source().stored() if each.is_complete]
    assert not listed, f"it lists {listed[0]}, which is damaged"
    assert isinstance(error, CheckpointError), f"raised {type(error).__name__} instead of CheckpointError"
    assert error.hint, f"no hint says what to do: {error.message}"
    if tried.example.publish is not None:
        tried.example.publish(tried.example.name, right)
        wrong = differing(contents(tried.fetch().path), right)
        assert not wrong, f"after the damage was repaired, {', '.join(wrong)} are still damaged"
    return error.message


def check_raw_options(tried: Tried) -> None:
    """A model is got before the configuration is validated."""
    error = _error_of(replace(tried, options={**tried.options, _UNKNOWN: 1}))
    assert error is not None, f"a section with the option {_UNKNOWN}, which there is not, was taken"
    assert isinstance(error, ConfigError), f"raised {type(error).__name__} instead of ConfigError"
    assert _UNKNOWN in str(error), f"the error does not name the option {_UNKNOWN}: {error}"


def check_empty(tried: Tried) -> None:
    """The cache may not exist."""
    found = list(tried.source().stored())
    assert not found, f"stored lists {found[0].reference} in an empty cache"


def check_whole(tried: Tried) -> str:
    """All files of weights are there, and the name is one to serve under."""
    found = tried.fetch()
    assert found.name.strip(), "it has no name to serve it under"
    checkpoint = read_checkpoint(found.path)
    assert checkpoint.weight_files, f"{found.path} has no weights"
    headers = read_headers(checkpoint.weight_files)
    return f"{len(headers)} tensors in {sum(file.size for file in checkpoint.weight_files)} bytes"


def check_progress(tried: Tried) -> str:
    """Numbers outside of it would be shown as more than 100%, or as less than nothing."""
    seen: list[tuple[int, int]] = []
    threads: set[int] = set()

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        threads.add(threading.get_ident())

    found = tried.fetch(progress=progress)
    assert seen, "progress was never called while a model was got"
    assert threads == {threading.get_ident()}, "progress was called from another thread than the one that called fetch"
    assert all(0 <= done <= total for done, total in seen), f"progress left its range: {seen[:5]}"
    counts = [done for done, _ in seen]
    assert counts == sorted(counts), f"progress went back: {counts[:20]}"
    assert seen[-1][0] == seen[-1][1] > 0, f"progress ended with {seen[-1][0]} of {seen[-1][1]} bytes"
    size, total = sum(path.stat().st_size for path in files_of(found.path)), seen[-1][1]
    assert size <= _UNITS * total <= _UNITS**2 * size, f"progress ended with {total} bytes for a model of {size}"
    return f"{len(seen)} calls"


def check_again(tried: Tried) -> None:
    """By another process of llmk, say."""
    first = tried.fetch()
    before = _times(first.path)
    again = tried.fetch()
    assert again == first, f"it was got to {first.path}, then to {again.path}"
    assert _times(again.path) == before, "files that were there were written again"


def check_outline(tried: Tried) -> None:
    """What plans a model reads its configuration and the shapes of its tensors."""
    outline = read_checkpoint(tried.fetch(outline=True).path)
    planned = _described(outline)
    whole = read_checkpoint(tried.fetch().path)
    assert planned == _described(whole), "a model's outline and the model differ in config.json, sizes or shapes"


def check_absent(tried: Tried) -> str:
    """Also in outline."""
    for outline in (False, True):
        error = _refusal(tried, outline)
        assert tried.example.absent in error.message, f"the message does not name it: {error.message}"
        assert error.hint, f"no hint says what to do: {error.message}"
    return error.message


def check_interrupt(tried: Tried) -> None:
    """Ctrl-C is raised in the thread that calls ``progress``."""

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    before = set(threading.enumerate())
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(interrupted, partial(tried.fetch, progress=interrupt))
        try:
            asked.result(INTERRUPT_SECONDS)
        except TimeoutError:
            raise AssertionError(f"{INTERRUPT_SECONDS:g} s after an interrupt it goes on") from None
    left = [thread.name for thread in set(threading.enumerate()) - before if _OF_SERVERS not in thread.name]
    assert not left, f"an interrupt left the threads {', '.join(left)}"
    whole = [each.reference for each in tried.source().stored() if each.is_complete]
    assert not whole, f"after an interrupt, {whole[0]} is listed as complete"
    check_whole(tried)
    left_over = [str(each.path) for each in tried.source().stored() if not each.is_complete]
    assert not left_over, f"once the model was got, {left_over[0]} is still listed as not complete"


def check_interrupts(tried: Tried) -> str:
    """In the middle of a file, say. The next fetch may go on from what is there."""
    right, calls = observed(tried)
    chosen = _spread(calls)
    for number, outline in [*((each, False) for each in chosen), (chosen[len(chosen) // 2], True)]:
        with tried.reopened() as fresh:
            interrupt_at(fresh, number, outline=outline)
            _check_next(fresh, right, f"after an interrupt in call {number} of {calls} of progress")
    return f"{len(chosen)} of {calls} calls"


def _check_next(tried: Tried, right: Mapping[str, bytes], where: str) -> None:
    seen: list[tuple[int, int]] = []
    found = tried.fetch(progress=lambda done, total: seen.append((done, total)))
    wrong = differing(contents(found.path), right)
    assert not wrong, f"{where}, the next fetch had another {', '.join(wrong)}"
    counts = [done for done, _ in seen]
    assert all(0 <= done <= total for done, total in seen), f"{where}, progress left its range: {seen[-5:]}"
    assert counts == sorted(counts), f"{where}, progress went back: {counts[:20]}"
    assert not seen or seen[-1][0] == seen[-1][1], f"{where}, progress ended with {seen[-1][0]} of {seen[-1][1]}"


def check_interrupted_models(tried: Tried) -> str:
    """What is left of one belongs to it alone."""
    models = tried.example.models
    if len(models) < 2:
        raise Skip("the example names no further models")
    names = {name for files in models.values() for name in files}
    for first, second in zip(models, [*models][1:] + [*models][:1], strict=True):
        calls = observed(tried, first)[1]
        for number in {(calls + 1) // 2, calls}:
            with tried.reopened() as fresh:
                interrupt_at(fresh, number, first)
                for name in (second, first):
                    found = contents(fresh.fetch(name).path)
                    wrong = [*differing(found, models[name]), *sorted(names & found.keys() - models[name].keys())]
                    assert not wrong, f"after an interrupted fetch of {first}, {name} had another {', '.join(wrong)}"
    return f"{len(models)} names"


def check_together(tried: Tried) -> None:
    """Two servers that start at the same time."""

    middle = threading.Barrier(2)

    def wait(done: int, total: int) -> None:
        with suppress(threading.BrokenBarrierError):
            middle.wait(MEETING_SECONDS)

    def get() -> FetchedModel:
        found = tried.fetch(progress=wait)
        read_headers(read_checkpoint(found.path).weight_files)
        return found

    with ThreadPoolExecutor(2) as pool:
        first, second = (each.result() for each in [pool.submit(get) for _ in range(2)])
    assert first == second, f"one got {first.path}, and the other {second.path}"


def check_stored(tried: Tried) -> None:
    """``llmk models`` shows it, and people copy the name from there."""
    found = tried.fetch()
    listed = list(tried.source().stored())
    assert [each.path for each in listed] == [found.path], f"stored lists {[str(each.path) for each in listed]}"
    (stored,) = listed
    assert stored.is_complete, f"{stored.reference} is listed as not complete"
    _check_listed(tried, stored)


def _check_listed(tried: Tried, stored: StoredModel) -> None:
    size = sum(path.stat().st_size for path in files_of(stored.path))
    assert stored.num_bytes == size, f"{stored.reference} is listed with {stored.num_bytes} bytes, but has {size}"
    assert tried.spec.claims(stored.reference), f"its own reference {stored.reference} is not claimed"
    again = tried.fetch(stored.reference)
    assert again.path == stored.path, f"{stored.reference} is listed at {stored.path}, and was got to {again.path}"


def _run(spec: ModelSourceSpec, bench: Bench, check: Check) -> str | None:
    if not spec.examples:
        raise Skip("the spec has no examples")
    with opened(spec, bench) as tried:
        return check(tried)


def _refusal(tried: Tried, outline: bool) -> ModelNotFound:
    try:
        found = tried.fetch(tried.example.absent, outline=outline)
    except ModelNotFound as error:
        return error
    except LlmkError as error:
        raise AssertionError(f"raised {type(error).__name__} instead of ModelNotFound: {error.message}") from error
    raise AssertionError(f"{tried.example.absent} was got, to {found.path}")


def _spread(calls: int) -> list[int]:
    """Up to ``INTERRUPTS`` of them, the first and the last included; they count from 1."""
    return sorted({1 + at * max(0, calls - 1) // (INTERRUPTS - 1) for at in range(INTERRUPTS)})


def _described(checkpoint: Any) -> Any:
    tensors = read_headers(checkpoint.weight_files)
    shapes = sorted((each.name, each.dtype, tuple(each.shape)) for each in tensors)
    return checkpoint.config, [(file.name, file.size) for file in checkpoint.weight_files], shapes


def _error_of(tried: Tried) -> LlmkError | None:
    try:
        tried.fetch()
    except LlmkError as error:
        return error
    return None


def _times(path: Path) -> list[tuple[str, int]]:
    return [(str(each), each.stat().st_mtime_ns) for each in files_of(path)]
