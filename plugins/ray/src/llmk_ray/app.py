"""A Ray Serve application: llmk's API over many nodes, each replica a server of its own.

``serve run llmk_ray.app:build arguments='["/model"]'``, or ``import_path: llmk_ray.app:build`` in a configuration file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any

import aiohttp
from pydantic import BaseModel, Field
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from llmk.api import ConfigError
from llmk_ray import wheels
from llmk_ray.call import Call
from llmk_ray.metrics import TYPE, merged
from llmk_ray.request_router import router_named
from llmk_ray.resumed_stream import CannotResume, ResumedStream

logger = logging.getLogger("ray.serve")

TRIES = 4
"""Replicas that a request may be lost with."""
METRICS_SECONDS = 10.0
"""What servers get to say their metrics."""
HEALTH_SECONDS = 10.0
"""What a server gets to say how it is."""
SILENT_LOOKS = 3
"""So many times in a row may it say nothing."""
DROPPED = {"host", "content-length", "transfer-encoding", "connection", "keep-alive"}
"""Headers that are of one connection."""


class Options(BaseModel, extra="forbid"):
    """What the application is built with."""

    arguments: list[str] = Field([], description="Of `llmk serve`: the checkpoint and flags.")
    environment: dict[str, str] = Field({}, description="Environment variables of the servers.")
    router: str = Field("prefix_aware", description="Router, by id or name, of an installed wheel.")
    max_load: Annotated[float, Field(ge=1)] = Field(1.1, description="As [replicas] max_load.")
    router_seconds: Annotated[float, Field(gt=0)] = Field(1.0, description="As [replicas] router_seconds.")
    min_replicas: Annotated[int, Field(ge=1)] = Field(1, description="Servers at least.")
    max_replicas: Annotated[int, Field(ge=1)] = Field(1, description="Servers at most.")
    target_requests: Annotated[float, Field(gt=0)] = Field(32, description="Requests per server to scale by.")
    autoscaling: dict[str, Any] = Field({}, description="Further fields of Serve's AutoscalingConfig.")
    fronts: Annotated[int, Field(ge=1)] = Field(1, description="Front ends, each of which routes by what it knows.")
    front_resources: dict[str, float] = Field({}, description="What a front end takes of its node.")
    num_cpus: Annotated[float, Field(ge=0)] = Field(1, description="CPUs that a server takes.")
    num_gpus: Annotated[float, Field(ge=0)] = Field(0, description="GPUs that a server takes.")
    resources: dict[str, float] = Field({}, description="What else it takes of a node.")
    max_requests: Annotated[int, Field(ge=1)] = Field(1024, description="Requests that a server has at once.")
    drain_seconds: Annotated[float, Field(ge=0)] = Field(60, description="For a server that leaves to finish.")


class Server:
    """A replica: ``llmk serve`` in a process of its own, on the node where Serve placed the actor; either ends with the
    other. It is given nothing but what it runs with, as Serve replaces replicas whose arguments change."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], expected: Mapping[str, str]) -> None:
        wheels.check(expected)
        self._session: aiohttp.ClientSession | None = None
        self._leaving, self._silent = False, 0
        command = [sys.executable, "-P", "-m", "llmk_ray.serve_process", "--host", "127.0.0.1", "--port", "0"]
        self._process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            text=True,
        )
        assert self._process.stdout is not None
        line = next((line for line in self._process.stdout if line.startswith("serving ")), "")
        if not line:
            raise RuntimeError(f"llmk serve ended with exit code {self._process.wait()}: its own messages are above")
        self._url = line.split()[-1]
        threading.Thread(target=self._follow, name="llmk-server", daemon=True).start()

    async def answer(self, call: Call) -> AsyncIterator[Any]:
        """Status and headers, then the body, piece by piece."""
        session = self._http()
        url = f"{self._url}{call.path}" + (f"?{call.query}" if call.query else "")
        async with session.request(
            call.method, url, headers=call.headers, data=call.body, allow_redirects=False
        ) as response:
            yield response.status, [(name, value) for name, value in response.headers.items()]
            async for data in response.content.iter_any():
                yield data

    async def metrics(self, call: Call) -> tuple[str, int, str]:
        """The id that Serve knows it by, and status and body of the answer to a call for metrics."""
        timeout = aiohttp.ClientTimeout(METRICS_SECONDS / 2)
        async with self._http().get(f"{self._url}{call.path}", headers=call.headers, timeout=timeout) as response:
            return serve.get_replica_context().replica_id.unique_id, response.status, await response.text()

    async def check_health(self) -> None:
        """Serve calls it; a replica that raises is replaced, once it has drained. One that hangs never would: it ends
        here, so that its requests go on elsewhere."""
        timeout = aiohttp.ClientTimeout(HEALTH_SECONDS)
        try:
            async with self._http().get(f"{self._url}/health", timeout=timeout) as response:
                status, body = response.status, await response.read()
        except TimeoutError:
            self._silent += 1
            if self._silent == SILENT_LOOKS:
                logger.error("llmk serve has not answered %d times, for %g s each", SILENT_LOOKS, HEALTH_SECONDS)
                self._process.kill()
            raise
        self._silent = 0
        if status != 200 and b"restarting" not in body:
            raise RuntimeError(f"llmk serve is not well: {body.decode(errors='replace')}")

    def __del__(self) -> None:
        """Serve calls it once the replica has drained."""
        if not hasattr(self, "_process"):  # it was refused before it had one
            return
        self._leaving = True
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _follow(self) -> None:
        """Passes on what the server writes, and ends the actor where the server has ended: it is given nothing more
        then, where it would refuse all until Serve had looked at it three times."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            sys.stdout.write(line)
        code = self._process.wait()
        if not self._leaving:
            logger.error("llmk serve ended with exit code %d", code)
            os._exit(1)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))
        return self._session


class Front:
    """Passes requests on, and goes on with another replica where one is lost."""

    def __init__(self, servers: DeploymentHandle) -> None:
        self._servers = servers.options(method_name="answer", stream=True)

    async def __call__(self, request: Request) -> Response:
        """Any route of llmk's."""
        headers = [(name, value) for name, value in request.headers.items() if name not in DROPPED]
        given = request.method, request.url.path, request.url.query, headers, await request.body()
        call = await asyncio.to_thread(Call.of, *given)
        if (call.method, call.path) == ("GET", "/metrics"):
            return await self._metrics(call)
        pieces = Attempts(self._servers, call).pieces()
        try:
            status, found = await anext(pieces)
        except LostError as error:
            return JSONResponse(_error(str(error)), status_code=503, headers={"retry-after": "1"})
        kept = {name: value for name, value in found if name.lower() not in DROPPED}
        return StreamingResponse(pieces, status, kept)

    async def _metrics(self, call: Call) -> Response:
        """Those of all servers; what one says that refuses, such as for want of a key."""
        asked = self._servers.broadcast("metrics", call)
        answers = await asked.results_async(timeout_s=METRICS_SECONDS, return_exceptions=True)
        given = [answer for answer in answers if not isinstance(answer, BaseException)]
        refusal = next(((status, text) for _, status, text in given if status != 200), None)
        if refusal is not None:
            return Response(refusal[1], refusal[0], media_type="application/json")
        texts = {id: text for id, _, text in given}
        return Response(await asyncio.to_thread(merged, texts, len(answers) - len(given)), media_type=TYPE)


class LostError(Exception):
    """No replica answered."""


class Attempts:
    """One answer, of one replica after the other. Text that was sent is not sent again."""

    def __init__(self, servers: DeploymentHandle, call: Call) -> None:
        self._servers, self._call = servers, call
        self._stream = ResumedStream()
        self._has_head = self._has_body = self._is_events = False

    async def pieces(self) -> AsyncIterator[Any]:
        """Status and headers, then the body. Raises :class:`LostError` where nothing was sent."""
        lost = ""
        for attempt in range(1, TRIES + 1):
            try:
                async with aclosing(self._attempt()) as pieces:
                    async for piece in pieces:
                        yield piece
                return
            except CannotResume as error:
                lost = f"the replica was lost, and its answer can't be continued: {error}"
                break
            except Exception as error:  # of Ray, of Serve, or of the server's connection
                logger.warning("a replica was lost with a request: %s", error)
                lost = f"{attempt} replicas in a row were lost with this request ({type(error).__name__})"
            if not self._call.seed and (self._call.method not in ("GET", "HEAD") or self._has_body):
                lost = "the replica was lost, and it is not known whether it has done what was asked"
                break
        if not self._has_head:
            raise LostError(lost)
        if not self._is_events:
            raise ConnectionError(lost)
        yield b"data: " + json.dumps(_error(lost)).encode() + b"\n\n"

    async def _attempt(self) -> AsyncGenerator[Any, None]:
        """The answer of one replica, without what was sent before. One that can be made again is sent when it is whole,
        unless it is a stream of events."""
        if self._has_head:
            self._stream.restart()
        held: list[Any] = []
        response = self._servers.remote(self._call)
        try:
            async for piece in response:
                if isinstance(piece, tuple):
                    self._check_head(*piece)
                if self._call.seed and not self._is_events:
                    held.append(piece)
                    continue
                async for part in self._parts(piece):
                    yield part
            for piece in held:
                self._has_head = True
                yield piece
        finally:
            response.cancel()

    def _check_head(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        is_events = any(name.lower() == "content-type" and "event-stream" in value for name, value in headers)
        if self._has_head and not (is_events and status == 200):
            raise CannotResume(f"another replica answered with {status}")
        self._is_events = is_events and bool(self._call.seed)

    async def _parts(self, piece: Any) -> AsyncIterator[Any]:
        if isinstance(piece, tuple):
            if not self._has_head:
                self._has_head = True
                yield piece
        elif self._is_events:
            for part in self._stream.take(piece):
                yield part
        else:
            self._has_body = True
            yield piece


def build(args: dict[str, Any]) -> serve.Application:
    """The application. ``args`` are :class:`Options`. Raises pydantic's ValidationError for others."""
    options = Options.model_validate(args)
    router_named(options.router)
    router = RequestRouterConfig(
        request_router_class="llmk_ray.request_router:LlmkRequestRouter",
        request_router_kwargs={
            "router": options.router,
            "max_load": options.max_load,
            "router_seconds": options.router_seconds,
        },
    )
    servers = serve.deployment(Server).options(
        name="Server",
        autoscaling_config=_scaling(options),
        request_router_config=router,
        ray_actor_options={
            "num_cpus": options.num_cpus,
            "num_gpus": options.num_gpus,
            "resources": options.resources,
        },
        max_ongoing_requests=options.max_requests,
        health_check_period_s=2,
        health_check_timeout_s=1.5 * HEALTH_SECONDS,
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=options.drain_seconds,
    )
    fronts = serve.deployment(Front).options(
        name="Front",
        num_replicas=options.fronts,
        ray_actor_options={"num_cpus": 0, "resources": options.front_resources},
        max_ongoing_requests=options.max_requests * max(options.min_replicas, options.max_replicas),
        graceful_shutdown_timeout_s=options.drain_seconds,
    )
    return fronts.bind(servers.bind(options.arguments, options.environment, wheels.versions()))


def _scaling(options: Options) -> AutoscalingConfig:
    """Raises ConfigError for fields that Serve does not know: it would ignore them."""
    known = AutoscalingConfig.model_fields
    if unknown := sorted(set(options.autoscaling) - set(known)):
        what = f"autoscaling has {', '.join(unknown)}, which this Ray's AutoscalingConfig has not"
        raise ConfigError(what, hint=f"it has {', '.join(known)}")
    own = {
        "min_replicas": options.min_replicas,
        "initial_replicas": options.min_replicas,
        "max_replicas": max(options.min_replicas, options.max_replicas),
        "target_ongoing_requests": options.target_requests,
    }
    return AutoscalingConfig(**{**own, **options.autoscaling})


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "server_error", "param": None, "code": "replica_lost"}}
