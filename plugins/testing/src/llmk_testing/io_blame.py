"""Checks which field a refusal of an IO processor names: clients look there for what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmk.api import IOProcessor, RequestError
from llmk_testing.io_bodies import Body, replaced, steps


def check_blamed(processor: IOProcessor, bodies: Sequence[Body], refused: Sequence[Body]) -> None:
    """The field is one of the body or of an example, and where one of several texts is wrong, its place is named and no
    other. In a list of several types, any may be the wrong one."""
    fields = {name for body in (*bodies, *refused) for name in body}
    unknown = [({**body, "no_such_field": 1}, ["no_such_field"]) for body in bodies]
    for body, path in (*unknown, *((body, path) for path, body in replaced(bodies))):
        named = steps(_refused(processor, body) or "")
        known = not named or str(named[0]) in fields | body.keys()
        assert known, f"refused {body!r} by the field {named[0]!r}, which neither it nor an example has"
        for depth, (found, right) in enumerate(zip(named, path, strict=False)):
            both = isinstance(found, int) and isinstance(right, int) and _is_uniform(body, path[:depth])
            assert not both or found == right, f"refused {body!r} by its field {named}, where {path} is wrong"
            if found != right:
                break


def _is_uniform(value: Any, path: Sequence[Any]) -> bool:
    """Whether all values at the path, a list, are of one type."""
    for at in path:
        value = value[at]
    return len({type(each) for each in value}) == 1


def _refused(processor: IOProcessor, body: Body) -> str | None:
    """The field that is wrong; ``None`` if none is."""
    try:
        processor.open(body)
    except RequestError as error:
        return error.param
    except Exception as error:
        raise AssertionError(f"raised {error!r} on {body!r}, not a RequestError") from error
    return None
