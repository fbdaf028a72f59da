"""Cases of sources of models whose example publishes files, or takes the source away: any files are got, and no others;
and cases of processes that end in the middle.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from llmk.api import CheckpointError, FetchedModel, LlmkError, ModelNotFound
from llmk.kernel.interpreter import PYTHON
from llmk.nn.tensor_file import read_headers
from llmk.planning.checkpoint.folder import read_checkpoint
from llmk_testing.called import without_torch
from llmk_testing.case import Skip
from llmk_testing.model_sources import altered, toy_checkpoint
from llmk_testing.source_process import ENDED
from llmk_testing.source_under_test import Tried, contents, differing, files_of, interrupt_at, observed

WAIT_SECONDS = 20.0
"""Within which a small model must be got after a process was killed."""
_ESCAPED = "escaped.json"
_SMALL = 100_000
"""Elements of a model that is got quickly."""


def check_published_again(tried: Tried) -> None:
    """A branch, say, whose files were replaced, and of which there is one less: also while an earlier fetch is not
    whole."""
    first = {**toy_checkpoint(), "generation_config.json": b'{"top_k": 1}', "merges.txt": b"one"}
    _publish(tried, first)
    tried.fetch()
    _check_again(tried, first, "the whole")
    listed = [(each.reference, each.revision) for each in tried.source().stored()]
    assert len(set(listed)) == len(listed), f"what was published again is listed as {listed}, which look alike"
    with tried.reopened() as fresh:
        _publish(fresh, first)
        calls = observed(tried)[1]
        interrupt_at(fresh, (calls + 1) // 2)
        _check_again(fresh, first, "a part")


def _check_again(tried: Tried, before: Mapping[str, bytes], there: str) -> None:
    other = {**toy_checkpoint(2_000_000), "merges.txt": b"two"}
    for right, how in ((other, ""), (altered(other), " with files of the same sizes")):
        _publish(tried, right)
        where = f"with {there} of the earlier one there, what was published again{how} has"
        wrong = differing(contents(tried.fetch(outline=True).path), {"config.json": right["config.json"]})
        assert not wrong, f"{where} another {', '.join(wrong)} in its outline"
        found = contents(tried.fetch().path)
        wrong = differing(found, right)
        assert not wrong, f"{where} another {', '.join(wrong)}"
        left = sorted(found.keys() & before.keys() - right.keys())
        assert not left, f"{where} {', '.join(left)}, which the earlier one had alone"


def check_files(tried: Tried) -> str:
    """In folders, of no bytes, of odd names, and many; weights in several files. None at all are no model."""
    tried_files = 0
    for files in _published_files():
        with tried.reopened() as fresh:
            if not _can_publish(fresh, files):
                continue
            outline = read_checkpoint(fresh.fetch(outline=True).path)
            planned = [(file.name, file.size) for file in outline.weight_files], read_headers(outline.weight_files)
            found = fresh.fetch()
            wrong = differing(contents(found.path), files)
            assert not wrong, f"of {len(files)} files, {', '.join(wrong)} are not those that were published"
            whole = read_checkpoint(found.path)
            sizes, headers = [(file.name, file.size) for file in whole.weight_files], read_headers(whole.weight_files)
            shapes = [[(each.name, each.shape) for each in of] for of in (planned[1], headers)]
            same = planned[0] == sizes and shapes[0] == shapes[1]
            assert same, "the outline has other weights than the whole model"
            (stored,) = fresh.source().stored()
            size = sum(path.stat().st_size for path in files_of(found.path))
            assert (stored.num_bytes, stored.is_complete) == (size, True), f"of {size} bytes, it lists {stored}"
            tried_files += len(files)
    _check_no_files(tried)
    return f"{tried_files} files"


def _check_refused(tried: Tried, when: str, *, outline: bool) -> None:
    try:
        found = tried.fetch(outline=outline)
    except LlmkError as error:
        _check_error(tried, error)
    else:
        raise AssertionError(f"{when}, {found.path} was got, {outline=}")


def _check_no_files(tried: Tried) -> None:
    """As of a name under which something else was published."""
    for outline in (True, False):
        with tried.reopened() as fresh:
            if not _can_publish(fresh, {}):
                return
            _check_refused(fresh, "of a model without files", outline=outline)
            listed = [each.reference for each in fresh.source().stored() if each.is_complete]
            assert not listed, f"it lists {listed[0]} as complete, which has no files"


def _published_files() -> Iterator[dict[str, bytes]]:
    toy = toy_checkpoint(_SMALL)
    yield {"merges.txt": b"", **toy, "1_Pooling/config.json": b'{"a": 1}', "2_Dense/config.json": b'{"a": 2}'}
    yield {**toy, **{f"part_{number}.json": b"%d" % number for number in range(40)}}
    yield {**toy, "chat template (1).jinja": b"a", "größe.json": b"{}", "%41+a&b.json": b"[]", "-a.json": b"[1]"}
    yield {**toy, "a..b.json": b"{}", "v1...json": b"[]"}
    first, second = (toy_checkpoint(each) for each in (_SMALL, _SMALL + 1))
    names = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    weights = {name: _renamed(files["model.safetensors"], name[6:11]) for name, files in names.items()}
    index = {"weight_map": {f"model.{part[6:11]}.weight": part for part in names}}
    del toy["model.safetensors"]
    yield {**toy, **weights, "model.safetensors.index.json": json.dumps(index).encode()}


def _renamed(data: bytes, name: str) -> bytes:
    """A file of safetensors whose tensors have names of the same length with other letters, so that files differ."""
    return data.replace(b"model.embed", f"model.{name}".encode()).replace(b"model.norm", f"model.{name[1:]}".encode())


def check_inside(tried: Tried) -> str:
    """A name of a file is data that someone else wrote."""
    folder = tried.cache.parent
    names = [f"{'../' * up}{_ESCAPED}" for up in range(1, 6)]
    names += [f"a/../../../{_ESCAPED}", str(folder / _ESCAPED), f"./../{_ESCAPED}"]
    published = 0
    for name in names:
        with tried.reopened() as fresh:
            if not _can_publish(fresh, {**toy_checkpoint(_SMALL), name: b"{}"}):
                continue
            published += 1
            _check_inside(fresh, name)
    return f"{published} of {len(names)} names can be published"


def _check_inside(tried: Tried, name: str) -> None:
    folder = tried.cache.parent
    above = [folder, *list(folder.parents)[:2]]
    before = {*folder.rglob(_ESCAPED), *(path for each in above for path in each.glob(_ESCAPED))}
    model: Path | None = None
    try:
        model = tried.fetch().path
    except LlmkError as error:
        _check_hint(error)
    after = {*folder.rglob(_ESCAPED), *(path for each in above for path in each.glob(_ESCAPED))}
    written = [path for path in after - before if model is None or not path.is_relative_to(model)]
    for path in written:
        path.unlink()
    assert not written, f"the model has a file {name!r}, which was written to {written[0]}, outside of the model"


def check_gone(tried: Tried) -> str:
    """A server that does not answer, a share that is not mounted. A model that is there may be fetched, or not;
    what is there of one may not."""
    if tried.example.away is None:
        raise Skip("the example's source can't be taken away")
    right = contents(tried.fetch().path)
    tried.example.away()
    try:
        wrong = differing(contents(tried.fetch().path), right)
        assert not wrong, f"with the source away, the model that was there has another {', '.join(wrong)}"
    except LlmkError as error:
        _check_error(tried, error)
    assert [each.is_complete for each in tried.source().stored()] == [True], "with the source away, nothing is listed"
    with tried.reopened() as fresh:
        assert fresh.example.away is not None
        fresh.example.away()
        for outline in (False, True):
            _check_refused(fresh, "with the source away and nothing there", outline=outline)
    models = {tried.example.name: right, **tried.example.models}
    for name, files in models.items():
        _check_gone_meanwhile(tried, name, files)
    return f"{len(models)} names"


def _check_gone_meanwhile(tried: Tried, name: str, right: Mapping[str, bytes]) -> None:
    """What is there of a model is not the model, also not of a name that says what it holds."""
    calls = observed(tried, name)[1]
    for number in sorted({1, (calls + 1) // 2, max(calls - 1, 1)}):
        with tried.reopened() as fresh:
            interrupt_at(fresh, number, name)
            assert fresh.example.away is not None
            fresh.example.away()
            try:
                wrong = differing(contents(fresh.fetch(name).path), right)
            except LlmkError as error:
                _check_hint(error)
                continue
            assert not wrong, (
                f"with the source away in the middle of a fetch, {name} was got with another {', '.join(wrong)}"
            )


def _check_error(tried: Tried, error: LlmkError) -> None:
    assert tried.example.name in error.message, f"the message does not name the model: {error.message}"
    _check_hint(error)


def _check_hint(error: LlmkError) -> None:
    assert error.hint, f"no hint says what to do: {error.message}"


def check_longer_names(tried: Tried) -> str:
    """A version 1 is not version 10, and the latest is not any."""
    names = [tried.example.name, *tried.example.models]
    longer = {f"{name}{more}" for name in names for more in ("0", "x", "-x", ".1")} - {*names, tried.example.absent}
    asked = [name for name in sorted(longer) if tried.spec.claims(name)]
    for name in asked:
        try:
            found = tried.fetch(name)
        except ModelNotFound as error:
            _check_hint(error)
        else:
            raise AssertionError(f"{name}, which there is not, was got, to {found.path}")
    return f"{len(asked)} names"


def check_killed(tried: Tried) -> str:
    """Its locks go with it, and what it left may be gone on with."""
    right, calls = observed(tried)
    chosen = sorted({1, (calls + 1) // 2})
    for number in chosen:
        with tried.reopened() as fresh:
            _fetch_in_process(fresh, number)
            if number < calls:
                whole = [each.reference for each in fresh.source().stored() if each.is_complete]
                assert not whole, f"after a process was killed, {whole[0]} is listed as complete"
            found = _within(WAIT_SECONDS, fresh.fetch)
            wrong = differing(contents(found.path), right)
            assert not wrong, f"after a process was killed, the next fetch had another {', '.join(wrong)}"
    return f"{len(chosen)} processes"


def _fetch_in_process(tried: Tried, end_in: int = 0) -> None:
    """Gets the example in a process that ends in that call of ``progress``; 0: when the model is there. Where progress
    is called less often, the model is there before."""
    job = [tried.spec.implementation, str(tried.cache), dict(tried.options), tried.example.name, end_in]
    with without_torch("getting a model") as environ:
        command = [*PYTHON, "-m", "llmk_testing.source_process", json.dumps(job)]
        done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True)
    good = done.returncode in (0, ENDED if end_in else 0)
    assert good, f"in a process without torch, it can't be got: {done.stderr.strip()[-1500:]}"


def check_without_torch(tried: Tried) -> None:
    """``llmk explain`` plans for machines that have none."""
    _fetch_in_process(tried)
    assert [each.is_complete for each in tried.source().stored()] == [True], "what another process got is not listed"


def check_listed_meanwhile(tried: Tried) -> None:
    """By ``llmk models`` in another terminal."""
    wrong: list[str] = []

    def look(done: int, total: int) -> None:
        if done < total:
            wrong.extend(each.reference for each in tried.source().stored() if each.is_complete)

    tried.fetch(progress=look)
    assert not wrong, f"while it is got, {wrong[0]} is listed as complete"


def check_left_parts(tried: Tried) -> None:
    """Where a source finds what is damaged, also in what an interrupt left."""
    if tried.example.damage is None:
        raise Skip("the example has no damage")
    right, calls = observed(tried)
    with tried.reopened() as fresh:
        interrupt_at(fresh, max(2, (2 * calls) // 3))
        for path in files_of(fresh.cache):
            data = bytearray(path.read_bytes())
            if len(data) >= 1024:
                data[len(data) // 2] ^= 1
                path.write_bytes(data)
        try:
            wrong = differing(contents(fresh.fetch().path), right)
        except LlmkError as error:
            _check_hint(error)
            wrong = differing(contents(fresh.fetch().path), right)
        assert not wrong, f"after what an interrupt left was damaged, the next fetch had another {', '.join(wrong)}"


def check_forged(tried: Tried) -> str:
    """Whole in themselves, so that nothing but the name shows it."""
    if tried.example.forge is None:
        raise Skip("SourceExample.forge sends no other files for a name that says what it holds, such as a digest")
    refused = []
    for name, files in tried.example.models.items():
        with tried.reopened() as fresh:
            assert fresh.example.forge is not None
            try:
                fresh.example.forge(name, altered(files))
            except ValueError:
                continue
            for outline in (True, False):
                error = _refusal(fresh, name, outline=outline)
                where = " in outline" if outline else ""
                assert error is not None, f"other files than {name} says were got{where}"
                assert error.hint, f"no hint says what to do: {error.message}"
            refused.append(name)
    assert refused, "SourceExample.forge raises ValueError for all of the example's models"
    return f"{len(refused)} names"


def _refusal(tried: Tried, name: str, *, outline: bool) -> CheckpointError | None:
    try:
        tried.fetch(name, outline=outline)
    except CheckpointError as error:
        return error
    return None


PUBLISHED: tuple[tuple[str, Callable[[Tried], str | None]], ...] = (
    ("what is published again under its name is fetched", check_published_again),
    ("files of any name and size are got, also in folders", check_files),
    ("no file is written outside of the model", check_inside),
    ("a source that is away is an error in words", check_gone),
    ("a longer name is another name", check_longer_names),
    ("a process that is killed leaves nothing that is waited for", check_killed),
    ("a model is got without torch", check_without_torch),
    ("while it is got, a model is not listed as complete", check_listed_meanwhile),
    ("what an interrupt left is checked as all is", check_left_parts),
    ("other files than a name says are refused", check_forged),
)
"""Names of cases, and what they run."""


def _publish(tried: Tried, files: Mapping[str, bytes]) -> None:
    if tried.example.publish is None:
        raise Skip("the example publishes nothing")
    tried.example.publish(tried.example.name, files)


def _can_publish(tried: Tried, files: Mapping[str, bytes]) -> bool:
    try:
        _publish(tried, files)
    except ValueError:
        return False
    return True


def _within(seconds: float, fetch: Callable[[], FetchedModel]) -> FetchedModel:
    """What is got, by a thread that is given up where it hangs."""
    found: list[FetchedModel | BaseException] = []

    def run() -> None:
        try:
            found.append(fetch())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, (
        f"after a process was killed, the next fetch was not done after {seconds:g} s: is it a lock that stays?"
    )
    if isinstance(found[0], BaseException):
        raise found[0]
    return found[0]
