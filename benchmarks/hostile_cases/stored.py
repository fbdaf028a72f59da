"""What clients store, and what is done with it: responses and their chains, conversations, files and batches."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hostile_cases.frame import MIB, PAUSE, Act, Attack, Case
from hostile_cases.wire import Outcome, Target, converse, head, repeated

RESPONSES, CONVERSATIONS, FILES, BATCHES = "/v1/responses", "/v1/conversations", "/v1/files", "/v1/batches"
CHAT = "/v1/chat/completions"
_FORM = {"content-type": "multipart/form-data; boundary=x"}
_PURPOSE = b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n%b\r\n'
_FILE = b'--x\r\ncontent-disposition: form-data; name="file"; filename="%b"\r\n\r\n'
_END = b"\r\n--x--\r\n"
_SHORT = {"input": "Hi", "max_output_tokens": 1}
Found = dict[str, Any]


class Client:
    """An attacker that looks at answers: each request's outcome is kept in ``outcomes``."""

    def __init__(self, attack: Attack) -> None:
        self.outcomes: list[Outcome] = []
        self._attack = attack

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *expected: int,
        headers: Mapping[str, str] | None = None,
        patience: float = 0.0,
    ) -> Found:
        """Sends a request. Returns the object of the answer, empty where it has none."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        given = head(self._attack.target, method, path, {"content-length": len(content), **(headers or {})})
        outcome, answer = converse(
            self._attack.target, [given, content], frozenset(expected or (200,)), may_cut=True, patience=patience
        )
        self.outcomes.append(outcome)
        try:
            found = json.loads(answer) if outcome.kind == "200" else {}
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def upload(self, content: bytes, name: bytes = b"in.jsonl", purpose: bytes = b"batch", *expected: int) -> str:
        """Uploads a file. Returns its id, if it has one."""
        form = _PURPOSE % purpose + _FILE % name + content + _END
        return str(self.send("POST", FILES, form, *(expected or (200, 413, 429)), headers=_FORM).get("id", ""))


def _case(name: str, what: str, act: Callable[[Attack, Client], None], clients: int = 4, pause: float = PAUSE) -> Case:
    def run(attack: Attack) -> Iterator[Outcome]:
        client = Client(attack)
        act(attack, client)
        yield from client.outcomes
        attack.pause(pause)

    def prepare(target: Target) -> Act:
        return run

    return Case(name, what, prepare, clients)


def _chain(attack: Attack, client: Client) -> None:
    last = None
    for _ in range(60):
        made = client.send("POST", RESPONSES, {**_SHORT, "previous_response_id": last}, 200, 400)
        last = made.get("id", last)
        if not attack.on:
            break
    client.send("DELETE", f"{RESPONSES}/{last}", None, 200, 404)


def _references(attack: Attack, client: Client) -> None:
    big = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm " * 3 * MIB}]}
    made = client.send("POST", RESPONSES, {**_SHORT, "input": [big, {"role": "user", "content": "a"}]}, 200, 400)
    number = str(made.get("id", "resp_" + "0" * 32)).removeprefix("resp_")
    items = [{"type": "item_reference", "id": f"msg_{number}o{at:04x}"} for at in range(9, 1000)]
    while attack.on:
        client.send("POST", RESPONSES, {**_SHORT, "input": items}, 400, 404)
        client.send("GET", f"{RESPONSES}/resp_{number}/input_items?limit=100", None, 200, 404)


def _background(attack: Attack, client: Client) -> None:
    body = {**_SHORT, "max_output_tokens": 500, "ignore_eos": True, "background": True}
    made = [client.send("POST", RESPONSES, body, 200, 400) for _ in range(8)]
    for response in made:
        id = response.get("id", "resp_x")
        client.send("GET", f"{RESPONSES}/{id}", None, 200, 404)
        for _ in range(2):
            client.send("POST", f"{RESPONSES}/{id}/cancel", None, 200, 404)
        client.send("DELETE", f"{RESPONSES}/{id}", None, 200, 404)


def _background_left(attack: Attack, client: Client) -> None:
    body = {**_SHORT, "max_output_tokens": 64, "ignore_eos": True, "background": True, "stream": True}
    client.send("POST", RESPONSES, body, 200, 400, patience=0.05)


def _large_items(attack: Attack, client: Client) -> None:
    items = [{"role": "user", "content": "word " * 38_000} for _ in range(20)]
    made = client.send("POST", CONVERSATIONS, {"items": items})
    id = made.get("id", "conv_x")
    for _ in range(8):
        client.send("GET", f"{CONVERSATIONS}/{id}/items?limit=100", None, 200, 404)
    client.send("POST", RESPONSES, {**_SHORT, "conversation": id}, 400, 404)
    client.send("DELETE", f"{CONVERSATIONS}/{id}", None, 200, 404)


def _small_items(attack: Attack, client: Client) -> None:
    id = client.send("POST", CONVERSATIONS, {}).get("id", "conv_x")
    items = [{"role": "user", "content": "a"}] * 20
    for _ in range(50):
        client.send("POST", f"{CONVERSATIONS}/{id}/items", {"items": items}, 200, 404)
        if not attack.on:
            break
    client.send("POST", RESPONSES, {**_SHORT, "conversation": id}, 200, 400, 404)


def _unread(attack: Attack) -> Iterator[Outcome]:
    """Asks for much that is stored, over many connections, and reads none of it."""
    client = Client(attack)
    large = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm " * 5 * MIB}]}
    made = client.send("POST", RESPONSES, {**_SHORT, "input": [large, {"role": "user", "content": "a"}]}, 200, 400)
    yield from client.outcomes
    path = f"{RESPONSES}/{made.get('id', 'resp_x')}/input_items"
    open_: list[socket.socket] = []
    try:
        for _ in range(100):
            connection = attack.target.connect(receive=4096)
            open_.append(connection)
            connection.sendall(head(attack.target, "GET", path, {"content-length": 0}))
        attack.pause(60)
        yield Outcome("unread", 0.0, requests=len(open_))
    except OSError:
        yield Outcome("refused")
    finally:
        for connection in open_:
            connection.close()


_IDS = ("resp_..%2f..%2fetc", "resp_%00", "resp_" + "a" * 20_000, "file-..%2f..%2fllmk.sqlite", "%2e%2e%2fx",
        "batch_%ff",        "conv_%0d%0aset-cookie:a=b", "file-" + "%c3%bc" * 3000)  # fmt: skip
_PLACES = (RESPONSES, CONVERSATIONS, FILES, BATCHES)
_AFTER = ("", "/content", "/items", "/items/x", "/input_items", "/cancel")


def _odd_ids(attack: Attack, client: Client) -> None:
    rng = attack.rng
    method, place, after = rng.choice(("GET", "DELETE", "POST")), rng.choice(_PLACES), rng.choice(_AFTER)
    client.send(method, f"{place}/{rng.choice(_IDS)}{after}", {} if method == "POST" else None, 400, 404, 405, 415)


_NAMES = (
    b"../../../etc/passwd",
    b"a\\..\\b",
    b"a\r\nset-cookie: b=c",
    b"\0",
    b"\xff\xfe",
    b'"; x="',
    b"n" * 3000,
    b".",
)


def _file_names(attack: Attack, client: Client) -> None:
    id = client.upload(b"a", attack.rng.choice(_NAMES), b"user_data", 200, 400, 413, 429)
    if id:
        client.send("GET", f"{FILES}/{id}/content")
        client.send("GET", f"{FILES}/{id}/content", None, 200, 206, 400, 416,
                    headers={"range": "bytes=" + ",".join(["0-0"] * 5000)})  # fmt: skip
        client.send("DELETE", f"{FILES}/{id}")


def _many_files(attack: Attack, client: Client) -> None:
    for _ in range(50):
        client.upload(b"a", b"a", b"vision")
        if not attack.on:
            break
    client.send("GET", f"{FILES}?limit=10000")
    client.send("GET", f"{FILES}?purpose=evals")


def _large_files(attack: Attack, client: Client) -> None:
    id = client.upload(b"\r\n--" * (10 * MIB), b"a", b"vision")
    if id:
        client.send("GET", f"{FILES}/{id}/content", patience=2.0)
        client.send("DELETE", f"{FILES}/{id}")


_BROKEN = (
    b"",
    b"--x",
    b"--x--\r\n",
    b"--x\r\n\r\n" * 100_000,
    b"--x\r\n" + b"a" * MIB,
    b"--x\r\n" + b"a: b\r\n" * 100_000,
    b"--x\r\ncontent-disposition: form-data; name=" + b"n" * MIB,
    _PURPOSE % b"batch" * 100_000,
    _PURPOSE % (b"p" * MIB),
    _FILE % b"a" + b"content without an end",
    _PURPOSE % b"poem" + _FILE % b"a" + _END,
    b"\r\n" * MIB,
    b"".join(b'--x\r\ncontent-disposition: form-data; name="f%d"\r\n\r\n\r\n' % at for at in range(10_000)) + _END,
)


def _broken(attack: Attack, client: Client) -> None:
    client.send("POST", FILES, attack.rng.choice(_BROKEN), 400, 413, headers=_FORM)


def _slow(attack: Attack) -> Iterator[Outcome]:
    """An upload that never ends."""
    with attack.target.connect() as connection:
        connection.sendall(head(attack.target, "POST", FILES, {**_FORM, "content-length": 100 * MIB}))
        connection.sendall(_PURPOSE % b"batch" + _FILE % b"a")
        while attack.on:
            connection.sendall(b"a" * 200)
            attack.pause(0.2)
    yield Outcome("slow")


def _endless(attack: Attack) -> Iterator[Outcome]:
    """An upload that is larger than it may be."""
    with attack.target.connect() as connection:
        connection.sendall(head(attack.target, "POST", FILES, {**_FORM, "transfer-encoding": "chunked"}))
        try:
            for piece in (_PURPOSE % b"batch" + _FILE % b"a", *repeated(b"a", 300 * MIB)):
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
                if not attack.on:
                    break
        except ConnectionError:
            yield Outcome("cut")
            return
    yield Outcome("endless")


def _lines(make: Callable[[int], Any]) -> bytes:
    return b"\n".join(
        json.dumps({"custom_id": f"r{at}", "method": "POST", "url": CHAT, "body": make(at)}).encode()
        for at in range(500)
    )


_HARMFUL: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "a" * 20_000}]},
    {"messages": [{"x": 1}] * 500},
    {"messages": [{"role": "user", "content": "a"}], "n": 10**9},
    {"messages": [{"role": "user", "content": "a"}], "stop": ["a"] * 5000},
    {"messages": [{"role": "user", "content": "a"}], "structured_outputs": {"regex": "((a{1,1000}){1,1000}){1,1000}"}},
    {"messages": [{"role": "user", "content": "a"}], "max_tokens": 900, "ignore_eos": True, "n": 8},
    {"messages": [{"role": "user", "content": "a"}], "stream": True},
)


def _batch(content: bytes) -> Callable[[Attack, Client], None]:
    def act(attack: Attack, client: Client) -> None:
        id = client.upload(content)
        body = {"input_file_id": id or "file-x", "endpoint": CHAT, "completion_window": "24h"}
        made = client.send("POST", BATCHES, body, 200, 400)
        for _ in range(20):
            client.send("GET", f"{BATCHES}/{made.get('id', 'x')}", None, 200, 404)
            attack.pause(0.1)
        client.send("GET", f"{BATCHES}?limit=100")
        for _ in range(2):
            client.send("POST", f"{BATCHES}/{made.get('id', 'x')}/cancel", None, 200, 400, 404)
        client.send("DELETE", f"{FILES}/{id or 'x'}", None, 200, 404)

    return act


CASES: tuple[Case, ...] = (
    _case("chains", "responses, each of which continues the one before", _chain),
    _case("references", "1,000 references to items of a response of 9 MB", _references),
    _case("background", "background responses that are cancelled, twice, and deleted", _background),
    _case("background-left", "background streams whose clients leave at once", _background_left, clients=8),
    _case("conversations", "conversations with items of 190 KB, listed again and again", _large_items),
    _case("conversations-small", "1,000 small items, added 20 at a time", _small_items),
    Case("stored-unread", "200 connections that want 15 MB each and read nothing", lambda target: _unread),
    _case("ids-odd", "ids that are paths, headers, and no text", _odd_ids),
    _case("files-names", "names of files that are paths and headers, and 5,000 ranges", _file_names),
    _case("files-many", "many small files, listed", _many_files),
    _case("files-large", "files of 40 MB of what looks like boundaries", _large_files),
    _case("files-broken", "forms that are none", _broken),
    Case("files-slow", "32 uploads that never end", lambda target: _slow, 32),
    Case("files-endless", "uploads larger than they may be", lambda target: _endless),
    _case("batches-harmful", "batches of 500 harmful requests, cancelled",
          _batch(_lines(lambda at: _HARMFUL[at % len(_HARMFUL)]))),
    _case("batches-valid", "batches of 500 requests, cancelled",
          _batch(_lines(lambda at: {"messages": [{"role": "user", "content": f"{at}"}], "max_tokens": 16}))),
    _case("batches-blank", "batches of 20 million empty lines", _batch(b"\n" * (20 * MIB)), clients=2),
    _case("batches-lines", "batches of a million lines that are no requests", _batch(b"[1]\n" * MIB), clients=2),
    _case("batches-ids", "a batch whose requests have the same id of 500 KB",
          _batch((json.dumps({"custom_id": "i" * 500_000, "method": "POST", "url": CHAT, "body": {}}) + "\n").encode()
                 * 20), clients=2),
)  # fmt: skip
