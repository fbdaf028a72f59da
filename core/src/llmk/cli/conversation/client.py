"""Clients of a model in this process or on a server; both return deltas of the chat completions API."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from llmk.api import ConfigError, EngineDead, LlmkError, RequestError
from llmk.cli.conversation.screen import harmless
from llmk.engine.processes.spawn import waiting
from llmk.engine.wire.request import RequestContext

if TYPE_CHECKING:
    from llmk.config import Settings
    from llmk.serve.generation.choice_deltas import ChoiceDelta, Job

Delta = dict[str, Any]
M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}


class ChatClient(Protocol):
    """A model to chat with. Closing an iterator of deltas stops the response. The last delta has the response's
    ``usage``, if that is known."""

    name: str

    def chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Generator[Delta, None, None]:
        """The deltas of the response to a conversation. Raises :class:`~llmk.api.LlmkError`."""
        ...

    def close(self) -> None:
        """Releases resources."""
        ...


class LocalChatClient:
    """A model in this process."""

    def __init__(self, settings: Settings) -> None:
        os.environ.update(waiting())  # before torch is imported
        from llmk.engine.async_llm import AsyncLLM
        from llmk.engine.text.grammars import GrammarChecker
        from llmk.planning.choices.sources import fetch_ahead
        from llmk.serve.generation.jobs import Jobs
        from llmk.serve.generation.parsing import Dialect
        from llmk.serve.generation.reading import LocalReaders

        fetch_ahead(settings)
        self._background = Background()
        try:
            self._engine = self._background.start(AsyncLLM.start(settings, in_process=True)).result()
        except BaseException:
            _end_at_interrupts()
            self._background.close()
            raise
        dialect, checker = Dialect.choose(self._engine.boot), GrammarChecker.choose(self._engine.boot)
        self._jobs, self._readers = Jobs(self._engine, dialect, checker), LocalReaders(dialect)
        self.name = self._engine.model_name

    def chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Generator[Delta, None, None]:
        """The deltas of the response to a conversation."""
        from llmk.serve.protocol.chat import ChatRequest

        yield from self._run(
            self._jobs.chat(_valid(ChatRequest, {"messages": messages, **options}), RequestContext("chat"))
        )

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Generator[Delta, None, None]:
        """The deltas of the continuation of a text."""
        from llmk.serve.protocol.completions import CompletionRequest

        yield from self._run(
            self._jobs.text(_valid(CompletionRequest, {"prompt": prompt, **options}), RequestContext("text"))
        )

    def close(self) -> None:
        """Stops the engine."""
        _end_at_interrupts()
        self._background.start(self._engine.close()).result()
        self._background.close()

    def _run(self, job: Job) -> Generator[Delta, None, None]:
        from llmk.serve.generation.chat_response import wires
        from llmk.serve.generation.choice_deltas import Usage, answer

        usage = Usage()
        ready: queue.SimpleQueue[ChoiceDelta | BaseException | None] = queue.SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(answer(self._engine, job, usage, self._readers)) as deltas:
                    async for delta in deltas:
                        ready.put(delta)
                ready.put(None)
            except BaseException as error:
                ready.put(error)

        answering = self._background.start(pump())
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield from wires(item.events)
            yield {"usage": {"completion_tokens": usage.completion_tokens}}
        finally:
            answering.cancel()


class Background:
    """An event loop in a separate thread. Interrupting a thread that waits for it has no effect on the loop, and its
    tasks also run while no thread waits.
    """

    def __init__(self) -> None:
        self._running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._live()), name="llmk-front-end", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts ``work`` in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._running.result()[0])

    def close(self) -> None:
        """Cancels the running tasks and waits until they have ended."""
        loop, stop = self._running.result()
        loop.call_soon_threadsafe(stop.set)
        self._thread.join()

    async def _live(self) -> None:
        stop = asyncio.Event()
        self._running.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()


class RemoteChatClient:
    """A model on a server with an OpenAI-compatible API. Raises ConfigError for what is no URL."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connect: Callable[[], http.client.HTTPConnection] = lambda: connect(parts.netloc)
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._url = f"{parts.scheme}://{parts.netloc}{self._base}"
        try:
            self._connect()
        except http.client.InvalidURL as error:
            raise ConfigError(f"{url!r} is no URL of a server: {error}", hint="http://127.0.0.1:8000") from error
        self._headers = {
            "content-type": "application/json",
            **({"authorization": f"Bearer {api_key}"} if api_key else {}),
        }
        self.name = self._first_model()

    def chat(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Generator[Delta, None, None]:
        """The deltas of the response to a conversation."""
        body = json.dumps({"model": self.name, "messages": messages, **STREAMED, **options})
        connection, response = self._request("POST", "/v1/chat/completions", body)
        try:
            for line in response:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise LlmkError(event["error"]["message"])
                    yield from (choice["delta"] for choice in event["choices"])
                    if usage := event.get("usage"):
                        yield {"usage": usage}
        finally:
            connection.close()

    def close(self) -> None:
        """Does nothing: there are no resources between responses."""

    def _first_model(self) -> str:
        connection, response = self._request("GET", "/v1/models", None)
        try:
            return str(json.load(response)["data"][0]["id"])
        except (ValueError, LookupError, TypeError) as error:
            message = f"{self._url} is no OpenAI-compatible server: its /v1/models lists no model"
            raise LlmkError(message, hint="name another with --url, or start one with `llmk serve`") from error
        finally:
            connection.close()

    def _request(
        self, method: str, path: str, body: str | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._connect()
        try:
            connection.request(method, self._base + path, body, self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            message = f"no server answers at {self._url}: {error}"
            raise EngineDead(message, hint="start one with `llmk serve`, or name another with --url") from error
        if response.status != 200:
            with closing(connection):
                raise LlmkError(_error_message(response))
        return connection, response


class Printer:
    """Writes deltas as they arrive: content to ``out``, reasoning and tool calls to ``aside`` (dimmed on a terminal).

    Blank lines around reasoning, which many dialects have, are not shown.
    """

    def __init__(self, out: TextIO, aside: TextIO) -> None:
        self._out = out
        self._aside = aside
        self._thinking = False
        self._fresh = True
        self._last = "\n"

    def show(self, delta: Mapping[str, Any]) -> None:
        """Writes one delta."""
        if text := delta.get("reasoning_content"):
            self._write(self._aside, text, thinking=True)
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            self._write(self._aside, f"{function['name']} " if "name" in function else "")
            self._write(self._aside, function.get("arguments", ""))
        if text := delta.get("content"):
            self._write(self._out, text)

    def end(self) -> None:
        """Ends the last line of the response."""
        if self._thinking:
            self._switch(thinking=False)
        if self._last != "\n":
            self._out.write("\n")
        self._out.flush()
        self._fresh, self._last = True, "\n"

    def _write(self, stream: TextIO, text: str, *, thinking: bool = False) -> None:
        if thinking != self._thinking:
            self._switch(thinking)
        text = text.lstrip("\n") if self._fresh else text
        if text:
            self._fresh = False
            self._last = text[-1]
            stream.write(harmless(text) if stream.isatty() else text)
            stream.flush()

    def _switch(self, thinking: bool) -> None:
        self._thinking, self._fresh = thinking, True
        if self._aside.isatty():
            self._aside.write(DIM if thinking else PLAIN)
        if self._last != "\n":
            self._aside.write("\n")
            self._last = "\n"
        self._aside.flush()


def _end_at_interrupts() -> None:
    """Makes ctrl-C end this process at once: threads that are computing would crash if the interpreter was finalized
    before they stopped.
    """
    with suppress(ValueError):  # only the main thread is interrupted
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))


def _valid(kind: type[M], body: dict[str, Any]) -> M:
    from llmk.serve.http.errors import explain

    try:
        return kind.model_validate(body)
    except ValidationError as error:
        param, message, _ = explain(error.errors(), body)
        raise RequestError(message, param=param) from error


def _error_message(response: http.client.HTTPResponse) -> str:
    text = response.read().decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status} {response.reason}: {text[:200]}"
