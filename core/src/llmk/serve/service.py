"""What every route works with: the engine, the model's dialect, and the state of the server."""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from starlette.requests import Request

from llmk.config.schema import ServerSection
from llmk.serve.errors import Forbidden, UnknownModel
from llmk.serve.jobs import Jobs
from llmk.serve.metrics import Metrics
from llmk.serve.parsing import Dialect

if TYPE_CHECKING:
    from llmk.engine.frontend import AsyncLLM
    from llmk.serve.spans import Spans

P = ParamSpec("P")
T = TypeVar("T")


class Service:
    """One model, served; ``spans`` sends a span of each request. ``stopping`` is set when what still runs must end."""

    def __init__(self, engine: AsyncLLM, dialect: Dialect, config: ServerSection, spans: Spans | None = None) -> None:
        self.engine = engine
        self.config = config
        self.created = int(time.time())
        self.stopping = asyncio.Event()
        self.metrics = Metrics(engine)
        if spans is not None:
            self.metrics.listeners.append(partial(spans.end, engine.model_name))
        self.dialect = dialect
        self.jobs = Jobs(engine, dialect)
        self._preparer = ThreadPoolExecutor(1, thread_name_prefix="llmk-prepare")

    def head(self, id: str) -> dict[str, Any]:
        """What every answer begins with. Equal fingerprints mean equal plans, hence equal answers to equal seeds."""
        fingerprint = f"fp_{self.engine.info.plan['fingerprint'][:12]}"
        model = self.engine.model_name
        return {"id": id, "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}

    async def prepare(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs ``make`` beside the event loop, one at a time: templates and tokenizers take time over long prompts."""
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._preparer, lambda: context.run(make, *args, **kwargs))

    def check_model(self, name: str | None) -> None:
        """Raises :class:`~llmk.serve.errors.UnknownModel` for a model that is not served here."""
        served = self.engine.model_name
        if name is not None and name != served:
            raise UnknownModel(f"the model {name!r} is not served here; {served!r} is", param="model")


async def service(request: Request) -> Service:
    """The service behind a request, for ``Depends``, which would call a plain function in a thread."""
    found: Service = request.app.state.service
    return found


async def tenant(request: Request) -> str:
    """Whose request it is, by its API key; ``""`` where none is asked for."""
    return str(getattr(request.state, "tenant", ""))


async def admin(request: Request) -> None:
    """Lets operators pass, for ``Depends``. Raises :class:`~llmk.serve.errors.Forbidden` for everybody else."""
    keys = (await service(request)).config.admin_keys
    given = request.headers.get("x-admin-key", "").encode("latin-1")
    if not given or not any(hmac.compare_digest(given, key.encode()) for key in keys):
        hint = "send one of server.admin_keys in the header 'x-admin-key'" if keys else "set server.admin_keys"
        raise Forbidden("this route is for operators alone", hint=hint)


def new_id(prefix: str) -> str:
    """A fresh id in OpenAI's form."""
    return f"{prefix}-{uuid.uuid4().hex}"
