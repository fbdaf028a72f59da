"""The worker of an IO processor, with all its requests."""

from __future__ import annotations

import socket
from importlib import import_module
from typing import Any

import msgspec

from llmk.api import PluginError, RequestError
from llmk.config import logs
from llmk.engine.text.input_processor import InputProcessor
from llmk.engine.text.io_processors import IOProcessors, IORun
from llmk.engine.text.output_processor import GenerationDelta
from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.plugin_mark import PluginMark
from llmk.engine.wire.request import EngineRequest, RequestContext
from llmk.serve.http.errors import check_model
from llmk.serve.workers.body_counts import check_values
from llmk.serve.workers.frames import encode, framed, receive
from llmk.serve.workers.served_model import ServedModel

ENTRY = f"{__name__}:run"


class Open(msgspec.Struct, array_like=True, tag=True):
    """A request to the processor ``id``, with its body as it came."""

    key: int
    id: str
    body: bytes
    context: RequestContext
    info: EngineInfo


class Take(msgspec.Struct, array_like=True, tag=True):
    """The next output of one of its sequences."""

    key: int
    delta: GenerationDelta


class Answer(msgspec.Struct, array_like=True, tag=True):
    """All sequences have finished: requests the response."""

    key: int


class Drop(msgspec.Struct, array_like=True, tag=True):
    """Drops a request that no client waits for any more. It has no outcome."""

    key: int


Order = Open | Take | Answer | Drop


class Outcome(msgspec.Struct, array_like=True):
    """The outcome of a call: the sequences of an opened request, the JSON of a response, or the failure."""

    sequences: list[EngineRequest] = []
    answer: bytes = b""
    failure: Failure | None = None


def run(served: ServedModel, connection: socket.socket, mark: PluginMark) -> None:
    """The worker: calls the processor until the front end is gone. Calls of the plugin are marked with the
    request's key."""
    import_module("torch")  # before requests: hidden states are tensors
    decoder, hosting = msgspec.msgpack.Decoder(Order), _Hosting(served, mark)
    while True:
        order = decoder.decode(receive(connection))
        if isinstance(order, Drop):
            hosting.runs.pop(order.key, None)
            continue
        outcome = hosting.call(order)
        mark.clear()
        if outcome.failure is not None:
            hosting.runs.pop(order.key, None)
        connection.sendall(framed(encode(outcome)))


class _Hosting:
    """The running requests."""

    def __init__(self, served: ServedModel, mark: PluginMark) -> None:
        config = served.boot.settings.config
        self.runs: dict[int, IORun] = {}
        self._mark = mark
        self._key = ""
        self._limits = served.limits
        self._processors = IOProcessors(
            served.boot, served.tokenizer, served.model_name, served.default_params, returned=self._set_mark
        )
        self._tokenizer = served.tokenizer
        self._served_name = served.model_name
        self._how: dict[str, Any] = {"seed": config.engine.seed, "isolate_tenants": config.cache.isolate_tenants}
        self._input_processor: InputProcessor | None = None

    def call(self, order: Open | Take | Answer) -> Outcome:
        """Makes a call. Any exception is the request's failure."""
        self._key = str(order.key)
        try:
            if not isinstance(order, Open):
                self._set_mark()
            match order:
                case Open():
                    return Outcome(sequences=self._open(order).sequences)
                case Take():
                    self.runs[order.key].add(order.delta)
                    return Outcome()
                case Answer():
                    return Outcome(answer=self.runs.pop(order.key).answer())
        except (RequestError, PluginError) as error:
            return Outcome(failure=Failure.of(error))
        except BaseException as error:  # including SystemExit
            return Outcome(failure=Failure.of(PluginError(f"an IO processor raised {type(error).__name__}: {error}")))

    def _open(self, order: Open) -> IORun:
        logs.request_id.set(order.context.log_id)
        try:
            body = msgspec.json.decode(order.body, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError(f"the body is no JSON object: {error}") from None
        check_values(body, self._limits.io_values)
        check_model(body.get("model"), self._served_name)
        self._set_mark()
        if self._input_processor is None:
            self._input_processor = InputProcessor(self._tokenizer, order.info, **self._how)
        self._input_processor.info = order.info
        opened = self.runs[order.key] = self._processors.open(order.id, body, self._input_processor, order.context)
        return opened

    def _set_mark(self) -> None:
        """The time of a call of the plugin starts now."""
        self._mark.set(self._key)
