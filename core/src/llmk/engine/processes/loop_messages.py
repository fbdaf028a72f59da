"""Commands that an engine's loop takes, and its replies. Front ends import this without the engine."""

from __future__ import annotations

import msgspec

from llmk.engine.wire.engine_info import EngineInfo
from llmk.engine.wire.failure import Failure
from llmk.engine.wire.request import EngineOutputs, EngineRequest


class Add(msgspec.Struct, tag=True):
    """Queue sequences."""

    requests: list[EngineRequest]


class Abort(msgspec.Struct, tag=True):
    """End sequences."""

    ids: list[str]


class Unpin(msgspec.Struct, tag=True):
    """End pins."""

    ids: list[str]


class Ping(msgspec.Struct, tag=True):
    """Say that the loop is alive."""

    number: int


class Close(msgspec.Struct, tag=True):
    """Leave the loop."""


class Ready(msgspec.Struct, tag=True):
    """The engine is built."""

    info: EngineInfo


class Failed(msgspec.Struct, tag=True):
    """The engine could not be built, or its loop broke."""

    failure: Failure


class Stepped(msgspec.Struct, tag=True):
    """The outputs of a step."""

    outputs: EngineOutputs


class Pong(msgspec.Struct, tag=True):
    """The answer to a ping. ``well``: everything that would run a step takes commands."""

    number: int
    well: bool = True


Command = Add | Abort | Unpin | Ping | Close
Reply = Ready | Failed | Stepped | Pong
