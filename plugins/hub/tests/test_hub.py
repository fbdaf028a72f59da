"""Models are got from a server that speaks the hub's protocol, by ``huggingface_hub`` itself."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from llmk.api import CheckpointError, ConfigError, ModelNotFound, ModelSourceContext
from llmk.api.checkpoint import CheckpointFile
from llmk.nn.tensor_file import read_headers
from llmk_hub.hub import Hub
from llmk_hub.reference import parse
from llmk_hub.specs import claims
from llmk_testing.hub_server import Fault, HubServer

Made = Callable[..., Hub]


def silent(done: int, total: int) -> None:
    """Shows nothing."""


def names(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def fetch(hub: Hub, reference: str, *, outline: bool = False) -> Path:
    return hub.fetch(reference, silent, outline=outline).path


@pytest.mark.parametrize("name", ["org/name", "org/name@v1", "org/name@refs/pr/3", "o/n-1.5_x:Q4_K_M", "a/b@c:d.gguf"])
def test_names_are_claimed(name: str) -> None:
    assert claims(name)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("https://huggingface.co/org/name", "org/name"),
        ("https://huggingface.co/org/name/tree/v1.0/", "org/name@v1.0"),
        ("https://hf.co/org/name/", "org/name"),
        ("hf://org/name@v1", "org/name@v1"),
        ("hf://models/org/name", "org/name"),
    ],
)
def test_addresses_of_pages_are_names(text: str, wanted: str) -> None:
    assert str(parse(text)) == wanted


OTHERS = ("name", "/org/name", "./org/name", "../name", "a/b/c", "models/x.gguf", "a--b/c", "a/..", "-a/b", "")


@pytest.mark.parametrize("name", [*OTHERS, "https://example.com/org/name", "models/x/tree/main"])
def test_paths_and_others_are_not(name: str) -> None:
    assert not claims(name)


def test_only_what_is_needed_is_downloaded(hub: Made, server: HubServer) -> None:
    seen: list[tuple[int, int]] = []
    found = hub().fetch("acme/toy", lambda done, total: seen.append((done, total)), outline=False)
    small = {"config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"}
    assert names(found.path) == {*small, "model.safetensors"}
    assert found.name == "acme/toy"
    assert seen[0][0] < seen[-1][0] == seen[-1][1]
    before = len(server.requests)
    assert fetch(hub(), "acme/toy") == found.path
    assert not [asked for asked in server.requests[before:] if "/resolve/" in asked[1] or "/cdn/" in asked[1]]


def test_the_index_names_the_weights(hub: Made) -> None:
    folder = fetch(hub(), "acme/parts")
    weights = {"model-1-of-2.safetensors", "model-2-of-2.safetensors", "model.safetensors.index.json"}
    assert weights < names(folder)


def test_a_revision_is_a_branch_or_a_commit(hub: Made, server: HubServer) -> None:
    branch = fetch(hub(), "acme/toy@v2")
    assert branch.name == server.repositories["acme/toy"].commit("v2")
    assert fetch(hub(), f"acme/toy@{branch.name}") == branch
    assert fetch(hub(offline=True), f"acme/toy@{branch.name}") == branch


def long_file(server: HubServer) -> tuple[bytes, str]:
    """The weights of acme/long, and the path at which they are served."""
    data = server.repositories["acme/long"].files("main")["model.safetensors"]
    return data, f"/cdn/acme/long/{hashlib.sha256(data).hexdigest()}"


def test_a_connection_that_breaks_is_taken_up_where_it_broke(hub: Made, server: HubServer) -> None:
    data, path = long_file(server)
    server.faults += [Fault(path, after=12_345_678), Fault(path, after=1_000_001)]
    folder = fetch(hub(), "acme/long")
    assert server.bodies(path) == ["", "bytes=12345678-", "bytes=13345679-"]
    assert server.sent[path] == len(data), "every byte once"
    assert (folder / "model.safetensors").read_bytes() == data


def test_a_connection_that_is_reset_is_opened_again(hub: Made, server: HubServer) -> None:
    data, path = long_file(server)
    server.faults.append(Fault(path, times=2, after=6 << 20, reset=True, silence=0.5))
    assert (fetch(hub(), "acme/long") / "model.safetensors").read_bytes() == data
    assert server.bodies(path) == ["", f"bytes={6 << 20}-", f"bytes={12 << 20}-"]
    assert server.sent[path] == len(data)


def test_a_download_that_failed_goes_on_at_the_next_try(hub: Made, server: HubServer) -> None:
    """With what is there counted as done, and without what others left."""
    data, path = long_file(server)
    server.faults += [Fault(path, after=12 << 20), Fault(path, status=404)]
    with pytest.raises(CheckpointError):
        fetch(hub(), "acme/long")
    seen: list[int] = []
    found = hub().fetch("acme/long", lambda done, total: seen.append(done), outline=False)
    assert seen[0] >= 12 << 20
    assert (found.path / "model.safetensors").read_bytes() == data
    assert server.sent[path] == len(data)
    assert not list(found.path.parents[1].rglob("*.incomplete"))


@pytest.mark.parametrize("left", [b"other bytes" * 1000, b"\0" * (17 << 20)], ids=["start", "longer"])
def test_what_was_damaged_is_downloaded_again(hub: Made, server: HubServer, tmp_path: Path, left: bytes) -> None:
    data, path = long_file(server)
    partial = tmp_path / f"hub/models--acme--long/blobs/{path.rpartition('/')[2]}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(left)
    assert (fetch(hub(), "acme/long") / "model.safetensors").read_bytes() == data
    assert not partial.exists()


def test_a_server_without_ranges_sends_all_again(hub: Made, server: HubServer) -> None:
    data, path = long_file(server)
    server.knows_ranges = False
    server.faults.append(Fault(path, after=12 << 20))
    assert (fetch(hub(), "acme/long") / "model.safetensors").read_bytes() == data
    assert server.sent[path] == len(data) + (12 << 20)


def test_what_is_not_what_the_repository_lists_is_refused(
    hub: Made, server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, _ = long_file(server)
    monkeypatch.setattr(HubServer, "content", lambda self, name, etag: data[:-1] + b"x")
    with pytest.raises(CheckpointError, match="other bytes than its repository lists"):
        fetch(hub(), "acme/long")


def test_two_downloads_of_a_file_share_it(hub: Made, server: HubServer) -> None:
    data, path = long_file(server)
    server.faults.append(Fault(path, after=12 << 20, silence=0.5))
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: fetch(hub(), "acme/long"), range(2)))
    assert folders[0] == folders[1]
    assert server.sent[path] == len(data)


def test_a_server_that_is_busy_is_asked_again(hub: Made, server: HubServer) -> None:
    server.faults.append(Fault(r"/cdn/acme/toy", times=1, status=429))
    assert "model.safetensors" in names(fetch(hub(), "acme/toy"))


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_refuses_says_so_unless_the_cache_has_the_model(
    hub: Made, server: HubServer, status: int
) -> None:
    server.faults.append(Fault("/api/models/acme/toy", times=99, status=status))
    with pytest.raises(CheckpointError, match=f"can't be had from .*: it answers with status {status}"):
        fetch(hub(), "acme/toy")
    server.faults.clear()
    folder = fetch(hub(), "acme/toy")
    server.faults.append(Fault("/api/models/acme/toy", times=99, status=status))
    assert fetch(hub(), "acme/toy") == folder


def test_no_server_at_all(hub: Made) -> None:
    with pytest.raises(CheckpointError, match=r"acme/toy can't be had from http://127\.0\.0\.1:9") as caught:
        fetch(hub(endpoint="http://127.0.0.1:9"), "acme/toy")
    assert "HF_ENDPOINT" in caught.value.hint


def test_what_is_there_is_not_downloaded_again(hub: Made, server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two files, of which the second fails until the first is whole, no byte is sent twice."""
    monkeypatch.setattr("llmk_hub.transfer._PAUSE", 0.01)
    parts = server.repositories["acme/parts"].files("main")
    first, second = (
        f"/cdn/acme/parts/{hashlib.sha256(parts[f'model-{number}-of-2.safetensors']).hexdigest()}" for number in (1, 2)
    )
    server.faults.append(Fault(second, times=99, silence=0.2))
    with pytest.raises(CheckpointError):
        fetch(hub(), "acme/parts")
    server.faults.clear()
    folder = fetch(hub(), "acme/parts")
    for path, number in ((first, 1), (second, 2)):
        assert server.sent[path] == (folder / f"model-{number}-of-2.safetensors").stat().st_size


def test_a_cache_that_was_copied_without_its_references_names_a_commit(hub: Made, server: HubServer) -> None:
    snapshot = fetch(hub(), "acme/parts")
    shutil.rmtree(snapshot.parent.parent / "refs")
    with pytest.raises(ModelNotFound, match="does not have acme/parts") as raised:
        fetch(hub(offline=True), "acme/parts")
    assert raised.value.hint == f"name a commit that it has: acme/parts@{snapshot.name}"
    assert fetch(hub(offline=True), f"acme/parts@{snapshot.name}") == snapshot


def test_offline_the_cache_serves(hub: Made, server: HubServer) -> None:
    folder = fetch(hub(), "acme/parts")
    before = len(server.requests)
    assert fetch(hub(offline=True), "acme/parts") == folder
    with pytest.raises(ModelNotFound, match=r"the cache .* does not have acme/part") as caught:
        fetch(hub(offline=True), "acme/part")
    assert "did you mean acme/parts" in caught.value.hint
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"only in part, without model-2-of-2\.safetensors"):
        fetch(hub(offline=True), "acme/parts")
    assert len(server.requests) == before


def test_an_outline_has_headers_and_no_weights(hub: Made, server: HubServer) -> None:
    folder = fetch(hub(), "acme/parts", outline=True)
    files = [CheckpointFile(folder, f"model-{i}-of-2.safetensors") for i in (1, 2)]
    assert [tensor.shape for tensor in read_headers(files)] == [(40_000,), (40_000,)]
    assert all(file.path.stat().st_blocks * 512 < file.size for file in files)
    assert (folder / "config.json").read_bytes() == (fetch(hub(), "acme/parts") / "config.json").read_bytes()
    assert fetch(hub(), "acme/parts", outline=True) != folder, "the cache has all of it now"


def test_gguf_files_are_chosen_by_word_or_name(hub: Made) -> None:
    with pytest.raises(ModelNotFound, match=r"acme/quants has toy-Q4_K_M\.gguf, toy-Q8_0\.gguf") as caught:
        fetch(hub(), "acme/quants")
    assert "acme/quants:Q4_K_M" in caught.value.hint
    assert fetch(hub(), "acme/quants:q8_0").name == "toy-Q8_0.gguf"
    assert fetch(hub(), "acme/quants:toy-Q4_K_M.gguf").read_bytes() == b"4"
    with pytest.raises(ModelNotFound, match="has no file 'Q5'"):
        fetch(hub(), "acme/quants:Q5")
    first = fetch(hub(), "acme/split")
    assert names(first.parent) == {"toy-F16-00001-of-00002.gguf", "toy-F16-00002-of-00002.gguf"}


@pytest.mark.parametrize(
    ("reference", "says", "hint"),
    [
        ("acme/tow", "no folder acme/tow here, and no model of that name on http", "token"),
        ("acme/toy@mian", "acme/toy has no revision 'mian'", "did you mean acme/toy@main"),
        ("acme/toy@9", "acme/toy has no revision '9'", "it has main, v2"),
        ("acme/pickled", r"no safetensors; its weights are pickled \(pytorch_model.bin\)", "refs/pr"),
        ("acme/adapter", "is an adapter, not a model", "adapters"),
        ("acme/notes", r"has no config.json, and no GGUF files, .*; it has README.md", "name"),
        ("acme/gated", "acme/gated is gated", "accept its terms at http.*/acme/gated, then .*HF_TOKEN"),
        ("acme/secret", "no model of that name", "a private model needs a token: HF_TOKEN"),
        ("acme/vast", r"takes 1152921504.\d GB more, and .* GB free", "HF_HUB_CACHE"),
        ("acme/toy:Q4", "has no GGUF files to choose 'Q4' from", "leave it out: acme/toy"),
    ],
)
def test_refusals_say_what_to_do(hub: Made, reference: str, says: str, hint: str) -> None:
    with pytest.raises(CheckpointError, match=says) as caught:
        fetch(hub(), reference)
    assert re.search(hint, caught.value.hint), caught.value.hint


def test_a_token_opens_what_it_may(hub: Made) -> None:
    assert "config.json" in names(fetch(hub(token="hf_good"), "acme/secret"))
    assert "config.json" in names(fetch(hub(token="hf_good"), "acme/gated"))
    with pytest.raises(CheckpointError, match="the account of your token has no access"):
        fetch(hub(token="hf_bad", cache=hub()._place.cache / "other"), "acme/gated")


def test_a_token_that_the_hub_does_not_know(hub: Made, server: HubServer) -> None:
    """It is refused for public models too."""
    server.tokens = {"hf_good"}
    with pytest.raises(CheckpointError, match="refuses acme/toy: your token is not accepted") as caught:
        fetch(hub(token="hf_typo"), "acme/toy")
    assert "/settings/tokens" in caught.value.hint
    assert "hf_typo" not in str(caught.value)


@pytest.mark.parametrize("outline", [False, True])
def test_a_disk_that_is_full(hub: Made, server: HubServer, monkeypatch: pytest.MonkeyPatch, outline: bool) -> None:
    """Filled by another program during the download: before it, the room was enough."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("llmk_hub.outline._write" if outline else "huggingface_hub.file_download.http_get", full)
    with pytest.raises(CheckpointError, match=r"acme/toy can't be written to .*: No space left on device") as caught:
        fetch(hub(), "acme/toy", outline=outline)
    assert "HF_HUB_CACHE" in caught.value.hint


def test_a_cache_that_is_a_file(hub: Made, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CheckpointError, match=r"acme/toy can't be written to .*/file") as caught:
        fetch(hub(cache=tmp_path / "file" / "hub"), "acme/toy")
    assert "in the way" in caught.value.hint


def test_options_are_checked_before_anything_is_downloaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[plugin\.hub\] has endpiont: Extra inputs") as caught:
        Hub(ModelSourceContext(tmp_path, {"endpiont": "https://mirror.example"}))
    assert "endpoint" in caught.value.hint


def test_the_cache_lists_what_is_whole_and_what_is_not(hub: Made) -> None:
    assert not list(hub().stored())
    fetch(hub(), "acme/toy@v2")
    fetch(hub(), "acme/quants:Q8_0")
    fetch(hub(), "acme/parts", outline=True)
    found = {each.reference: each for each in hub().stored()}
    assert {name: each.is_complete for name, each in found.items()} == {
        "acme/toy@v2": True,
        "acme/quants:toy-Q8_0.gguf": True,
        "acme/parts": False,
    }
    assert found["acme/toy@v2"].num_bytes > 400_000


def test_an_interrupt_ends_the_download(hub: Made, server: HubServer) -> None:
    """The progress is called in the thread that is interrupted."""

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub().fetch("acme/toy", interrupted, outline=False)
    assert not [thread for thread in threading.enumerate() if thread.name == "llmk-hub"]
