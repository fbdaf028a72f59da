"""The mistakes of the first hour, each of which ends in one message that says what to do: every row of
``docs/troubleshooting.md`` is made to happen."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from served import Served

from llmk.cli.main import main
from llmk.config import load
from llmk.kernel.registry import Registry
from llmk.planning.choices.models import find_checkpoint
from llmk.serve.lifecycle import bind, url_of
from llmk_testing.hub_server import HubServer, Repository, serving
from llmk_testing.model_sources import toy_checkpoint

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
GOOD_KEY = "sk-good"
Make = Callable[[Path], list[str]]


def documented() -> list[str]:
    """The messages of the page, with dots for what differs."""
    return ROW.findall((ROOT / "docs/troubleshooting.md").read_text())


def says(text: str, message: str) -> bool:
    """Whether a text has a message of the page in it."""
    pattern = ".*".join(map(re.escape, message.split("…")))
    return bool(re.search(pattern, text, re.DOTALL))


def demo() -> Path:
    return Path(find_checkpoint(Registry.discover(load(environ={}).config.plugins), ""))


def copy(folder: Path, *without: str, **files: bytes) -> str:
    """The demo model, without some files, and with others instead. ``__`` stands for a dot."""
    model = Path(shutil.copytree(demo(), folder / "model"))
    for name in without:
        (model / name).unlink()
    for name, data in files.items():
        (model / name.replace("__", ".")).write_bytes(data)
    return str(model)


def folder_of(folder: Path, **files: bytes) -> str:
    """A folder with these files alone."""
    made = folder / "model"
    made.mkdir()
    for name, data in files.items():
        (made / name.replace("__", ".")).write_bytes(data)
    return str(made)


def written(folder: Path, name: str, text: str, encoding: str = "utf-8") -> str:
    (folder / name).write_text(text, encoding=encoding)
    return str(folder / name)


def link(folder: Path) -> Path:
    """A link that leads nowhere."""
    (folder / "model").symlink_to(folder / "moved")
    return folder / "model"


def cut(folder: Path) -> str:
    data = (demo() / "model.safetensors").read_bytes()
    return copy(folder, model__safetensors=data[: len(data) // 2])


def unknown(folder: Path) -> str:
    config = json.loads((demo() / "config.json").read_text()) | {"architectures": ["NovelForCausalLM"]}
    return copy(folder, config__json=json.dumps(config).encode())


INDEX = json.dumps({"weight_map": {"w": "model-1-of-1.safetensors"}}).encode()
MISTAKES: dict[str, Make] = {
    "invalid choice: 'sreve'": lambda _: ["sreve"],
    "unrecognized arguments: --cache.blok-size": lambda _: ["explain", "--cache.blok-size", "3"],
    "unrecognized arguments: --tensor-parallel-size": lambda _: ["explain", "--tensor-parallel-size", "2"],
    "invalid choice: 'flot16'": lambda _: ["explain", "--dtype", "flot16"],
    "unknown configuration key 'server.prot' (set by file …": lambda folder: [
        *("explain", "--config", written(folder, "llmk.toml", "[server]\nprot = 1\n"))
    ],
    "… is not valid TOML": lambda folder: ["explain", "--config", written(folder, "llmk.toml", "[server\n")],
    "the configuration file … can't be read": lambda folder: ["explain", "--config", f"{folder}/none.toml"],
    "bad configuration: server.port = 'abc'": lambda _: ["serve", "--port", "abc"],
    "there is no checkpoint folder …": lambda _: ["explain", "/no/such/model"],
    "… has no config.json, so it is not a checkpoint": lambda folder: ["explain", folder_of(folder)],
    "… is a file in no format of checkpoints": lambda folder: ["explain", folder_of(folder, a=b"x") + "/a"],
    "… has no config.json, and no active plugin reads …": lambda folder: [
        *("explain", folder_of(folder, a__gguf=b"GGUF"), "--plugins.disable", "llmk-gguf")
    ],
    "… is truncated or damaged": lambda folder: ["explain", folder_of(folder, a__gguf=b"GGUFxx")],
    "no installed plugin registers the architecture '…'": lambda folder: [
        *("explain", unknown(folder), "--plugins.disable", "llmk-models")
    ],
    "… can't be read as JSON": lambda folder: ["explain", copy(folder, config__json=b"{oops")],
    "… has no tokenizer": lambda folder: ["run", copy(folder, "tokenizer.json"), "hi"],
    "… has no safetensors file; it has …": lambda folder: [
        *("run", copy(folder, "model.safetensors", pytorch_model__bin=b"x"), "hi")
    ],
    "… holds no weights, but a pointer to them": lambda folder: [
        *("run", copy(folder, model__safetensors=POINTER), "hi")
    ],
    "… is truncated: it has …": lambda folder: ["run", cut(folder), "hi"],
    "… lacks 1 of the 1 files that its index names": lambda folder: [
        *("run", copy(folder, "model.safetensors", model__safetensors__index__json=INDEX), "hi")
    ],
    "the checkpoint allows 2048 tokens, not 999999": lambda _: ["explain", "--max-model-len", "999999"],
    "… can't be divided evenly between 7 processes": lambda _: ["explain", "--parallel.tensor", "7"],
    "the cache needs …": lambda _: ["run", "hi", "--cache.num-blocks", "100000000"],
    "[select.tool_parser] names '…', which is not installed": lambda _: [
        *("run", "hi", "--select.tool-parser.use", "hermess")
    ],
    "[plugin.nope] is set by …, but no plugin of that name is installed": lambda _: [
        *("explain", "--set", "plugin.nope.x=1")
    ],
    "plugin '…' is required, but not installed": lambda _: ["explain", "--plugins.require", "llmk-foo"],
    "3 words are given, a model and a prompt are two": lambda _: ["run", "what", "is", "this"],
    "the model is to be served as '…', but no model is named": lambda _: ["serve", "--served-model-name", "x"],
    "can't listen on …": lambda _: ["serve", "--host", "192.0.2.1"],
    "… (server.tls_certificate) can't be read": lambda _: [
        *("serve", "--port", "0", "--server.tls-certificate", "/no.pem", "--server.tls-key", "/no.pem")
    ],
    "no server answers at …": lambda _: ["chat", "--url", "http://127.0.0.1:9"],
    "[adapters] x: there is no folder …": lambda _: ["explain", "--set", "adapters.x=/no/such"],
    "… threads on the … logical cores": lambda _: ["explain", "--platform.threads", "100000"],
    "invalid choice: 'half'": lambda _: ["serve", "--dtype", "half"],
    "… can't be used: …": lambda _: ["explain", "x" * 300],
    "the database of keys (…) can't be used: …": lambda _: [
        *("keys", "create", "ada", "--database", "sqlite:////proc/none/keys.db")
    ],
    "…tokenizer.json can't be read: …": lambda folder: ["run", copy(folder, tokenizer__json=b'{"model": {'), "hi"],
    "the configuration file … is not UTF-8 text": lambda folder: [
        *("explain", "--config", written(folder, "llmk.toml", "[server]\nport = 0\n", "utf-16"))
    ],
    "… is no URL of a server: …": lambda _: ["chat", "--url", "http://localhost:8000x"],
    "unrecognized arguments: models/qwen": lambda _: ["serve", "/my", "models/qwen"],
    "… is a link to …, which is not there": lambda folder: ["explain", str(link(folder))],
    "--only names '…'": lambda _: ["tune", "--only", "liner"],
    "… ignored explicit argument 'false'": lambda _: ["serve", "--cache.prefix-caching", "false"],
    "… is an adapter (LoRA), which is not a model of its own": lambda folder: [
        *("serve", folder_of(folder, adapter_config__json=b'{"base_model_name_or_path": "acme/toy"}'))
    ],
    "… is a pipeline of diffusers (…), not a language model": lambda folder: [
        *("explain", folder_of(folder, model_index__json=b'{"_class_name": "FluxPipeline"}'))
    ],
    "config.json of … names no architecture": lambda folder: [
        *("explain", copy(folder, config__json=b'{"model_type": "llama"}'))
    ],
    "… can't be served through transformers' modules: …": lambda folder: [
        *("explain", copy(folder, config__json=b'{"architectures": ["BertForMaskedLM"], "model_type": "bert"}'))
    ],
    "… (server.tls_certificate, server.tls_key) are not a PEM pair": lambda folder: [
        *("serve", "--port", "0", "--server.tls-certificate", written(folder, "a.pem", "x")),
        *("--server.tls-key", str(folder / "a.pem")),
    ],
}
"""The arguments that bring a message about."""

REPOSITORIES = {
    "acme/toy": Repository({"main": toy_checkpoint()}),
    "acme/gated": Repository({"main": toy_checkpoint()}, token="hf_good", gated=True),
    "acme/vast": Repository({"main": toy_checkpoint()}, claimed={"model.safetensors": 1 << 60}),
    "acme/quants": Repository({"main": {"a-Q4_K_M.gguf": b"4", "a-Q8_0.gguf": b"8"}}),
    "acme/pickled": Repository({"main": {"config.json": b"{}", "pytorch_model.bin": b"x"}}),
}
OF_THE_HUB = {
    "there is no folder … here, and no model of that name on …": ["acme/tow"],
    "… is gated": ["acme/gated"],
    "… refuses …: your token is not accepted": ["acme/toy"],
    "… takes … GB more, and …": ["acme/vast"],
    "… has a-Q4_K_M.gguf, a-Q8_0.gguf": ["acme/quants"],
    "… has no safetensors; its weights are pickled": ["acme/pickled"],
    "… has no revision '…'": ["acme/toy@v9"],
    "HF_HUB_OFFLINE is set, and the cache … does not have …": ["acme/toy", "--set", "plugin.hub.offline=true"],
    "… can't be had from …": ["acme/toy", "--set", "plugin.hub.endpoint=http://127.0.0.1:9"],
    "no installed source of models knows the name '…'": ["toy"],
    "… is no URL of a hub": ["acme/toy", "--set", "plugin.hub.endpoint=127.0.0.1:9"],
}
BODY = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
OF_CLIENTS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "a valid API key is needed": ("/v1/chat/completions", {}, {"authorization": "Bearer sk-expired"}),
    "there is no route POST /chat/completions; did you mean /v1/chat/completions?": ("/chat/completions", {}, {}),
    "the model '…' is not served here; 'demo' is": ("/v1/chat/completions", {"model": "gpt"}, {}),
    "this model's maximum context length is …": ("/v1/chat/completions", {"max_tokens": 9999}, {}),
    "unknown field '…'; did you mean '…'?": ("/v1/chat/completions", {"max_tokns": 3}, {}),
    "… takes POST, not GET": ("/v1/chat/completions", {}, {}),
    "the body must be a JSON object: …": ("/v1/chat/completions", {}, {}),
    "the body is not valid JSON: …": ("/v1/chat/completions", {}, {}),
    "prompt: unknown field 'prompt'; a chat has 'messages': …": ("/v1/chat/completions", {"prompt": "hi"}, {}),
    "tools[0].name: unknown field 'name'; a tool is …": (
        *("/v1/chat/completions", {"tools": [{"type": "function", "name": "x"}]}, {}),
    ),
    "send the body with the header 'content-type: application/json'": (
        *("/v1/chat/completions", {}, {"content-type": "text/plain"}),
    ),
}
OTHER_BODIES = {
    "the body must be a JSON object: …": b"[]",
    "the body is not valid JSON: …": b"{'messages': []}",
}
OF_MACHINES = {
    "torch without cuda: wanted torch built with CUDA, found …": "cuda",
    "torch without rocm: wanted torch built with ROCm, found …": "rocm",
    "no driver: wanted libnvidia-ml.so.1, found not installed": "cuda",
}
ELSEWHERE = {
    "stopped before the model was loaded": ("tests/test_start_failures.py", "stopped before the model was loaded"),
    "the client speaks TLS, the server does not: …": (
        *("core/tests/serve/test_connection.py", "the client speaks TLS, the server does not"),
    ),
    "transformers has no implementation of …": ("models/tests/test_transformers.py", "no implementation of Novel"),
}
"""Files of tests that bring a message about, and what they say of it."""
OWN = {
    "port … of … is in use",
    "unknown configuration key '…' (set by environment …",
    "the environment variable … sets nothing",
    "the current folder is not there any more",
    "… is no OpenAI-compatible server: …",
}


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that fails says."""
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code != 0, f"llmk {' '.join(arguments)} did not fail"
    return check(capsys.readouterr().err)


def check(text: str) -> str:
    """That a message is one, and says what to do."""
    assert "Traceback" not in text
    assert "internal error" not in text
    lines = [line for line in text.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
    assert [line for line in lines if line.startswith("llmk")] == [lines[0]], text
    assert any(word in text for word in ("hint: ", "  - ")), f"it does not say what to do: {text}"
    return text


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Commands that serve set the log up, for the streams that they have."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def test_every_row_of_the_page_has_a_test() -> None:
    tested = {*MISTAKES, *OF_THE_HUB, *OF_CLIENTS, *OF_MACHINES, *ELSEWHERE, *OWN}
    assert set(documented()) == tested
    assert len(documented()) == len(tested) >= 30


@pytest.mark.parametrize("message", MISTAKES)
def test_what_a_command_says(message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(MISTAKES[message](tmp_path), capsys)
    assert says(text, message), text


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    """With the mark and the line ends that editors of Windows write."""
    (tmp_path / "llmk.toml").write_bytes(b"\xef\xbb\xbf[server]\r\nport = 12\r\n")
    assert load(cwd=tmp_path, environ={}).config.server.port == 12


def test_an_address_may_have_brackets() -> None:
    with bind("[::1]", 0) as listener:
        assert url_of(listener).startswith("http://[::1]:")


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with serving(REPOSITORIES) as server:
        server.tokens = {"hf_good"}
        yield server


@pytest.mark.parametrize("message", OF_THE_HUB)
def test_what_models_by_name_say(
    message: str, hub: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_typo" if "token" in message else "")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "")
    name, *options = OF_THE_HUB[message]
    set_up = ("--set", f"plugin.hub.endpoint={hub.url}", "--set", f"plugin.hub.cache={tmp_path}")
    text = told(["pull", name, *set_up, *options], capsys)
    assert says(text, message), text


@pytest.mark.parametrize("message", OF_MACHINES)
def test_what_a_platform_says_that_is_not_there(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    platform = OF_MACHINES[message]
    if os.path.exists("/dev/nvidiactl" if platform == "cuda" else "/dev/kfd"):
        pytest.skip(f"this machine has the device of {platform}")
    text = told(["explain", "--platform.use", platform], capsys)
    assert text.startswith(f"llmk: {platform} is pinned by [platform] use, but can't serve")
    assert says(text, message), text


def test_what_a_mistyped_variable_of_the_environment_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMK__SERVER__PROT", "1")
    assert says(told(["explain"], capsys), "unknown configuration key '…' (set by environment …")


def test_what_a_command_says_in_a_folder_that_was_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    text = told(["explain"], capsys)
    monkeypatch.undo()
    assert says(text, "the current folder is not there any more")


def test_a_variable_with_single_underscores_is_no_silent_mistake(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without the keys that its owner set would serve everyone."""
    monkeypatch.setenv("LLMK_SERVER_API_KEYS", "sk-secret")
    text = told(["serve"], capsys)
    assert says(text, "the environment variable LLMK_SERVER_API_KEYS sets nothing")
    assert "did you mean LLMK__SERVER__API_KEYS?" in text
    assert "sk-secret" not in text


def test_what_kubernetes_sets_for_a_service_is_no_mistake() -> None:
    """Every pod gets these variables where there is a service named ``llmk-server``."""
    load(environ={"LLMK_SERVER_PORT": "tcp://10.0.0.1:80", "LLMK_SERVER_SERVICE_HOST": "10.0.0.1"})


@pytest.mark.parametrize("given", [("--cache.prefix-caching", "off"), ("--no-cache.prefix-caching=No",)])
def test_a_switch_takes_no_value(given: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert "a switch takes no value: --no-cache.prefix-caching" in told(["explain", *given], capsys)


def test_the_checkpoint_inside_of_a_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in the hub's cache, or a folder of several models."""
    inner = tmp_path / "models--acme--toy/snapshots/0123"
    shutil.copytree(demo(), inner)
    for outer in (inner.parent, inner.parent.parent):
        assert f"hint: {inner} has one" in told(["explain", str(outer)], capsys)


@pytest.mark.parametrize("body", [b"<html>It works!</html>", b'{"data": []}', b"[]", b'{"data": [{}]}'])
def test_what_the_chat_says_of_another_server(body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)) as address:
        assert says(told(["chat", "--url", f"http://{address}/v1"], capsys), "… is no OpenAI-compatible server: …")


def test_what_the_chat_says_of_no_web_server(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(b"SSH-2.0-OpenSSH_9.2\r\n") as address:
        for scheme in ("http", "https"):
            text = told(["chat", "--url", f"{scheme}://{address}"], capsys)
            assert says(text, f"no server answers at {scheme}://{address}: …")


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """The address of a server that answers whatever it is sent with ``data``."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            self.request.sendall(data)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_what_the_second_of_two_servers_says(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        text = told(["serve", "--port", str(first.getsockname()[1])], capsys)
    assert says(text, "port … of … is in use")


@pytest.mark.parametrize("message", ELSEWHERE)
def test_what_other_tests_bring_about(message: str) -> None:
    file, words = ELSEWHERE[message]
    assert words in (ROOT / file).read_text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    running = Served(folder / "log", "--port", "0", env={"LLMK__SERVER__API_KEYS": GOOD_KEY})
    yield running
    running.close()


@pytest.mark.slow
@pytest.mark.parametrize("message", OF_CLIENTS)
def test_what_a_server_says(message: str, server: Served) -> None:
    import httpx

    path, fields, headers = OF_CLIENTS[message]
    usual = {"authorization": f"Bearer {GOOD_KEY}", "content-type": "application/json"}
    content = OTHER_BODIES.get(message, json.dumps(BODY | fields).encode())
    method = "GET" if message.endswith("not GET") else "POST"
    answer = httpx.request(method, server.url + path, content=content, headers=usual | headers, timeout=60)
    assert 400 <= answer.status_code < 500
    assert says(answer.json()["error"]["message"], message), answer.text
