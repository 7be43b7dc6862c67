"""`typebar serve` from its first moment to its last: bind, load, answer, drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from time import perf_counter
from typing import Any

import uvloop
from uvicorn.config import Config
from uvicorn.server import Server

from typebar import _native
from typebar.errors import TypebarError
from typebar.model.download import resolve_model
from typebar.model.load import load_model
from typebar.server.app import create_app
from typebar.server.engine import Engine
from typebar.server.guard import guarded
from typebar.server.http_protocol import http_protocol
from typebar.server.local import LocalEngine
from typebar.server.request_log import configure
from typebar.server.settings import ServerSettings
from typebar.server.state import ServerState

log = logging.getLogger("typebar.server")

WATCH_INTERVAL = 0.5  # seconds between looks at the engine
LAST_WORDS = 5.0  # seconds for connections to take their last bytes, and for the engine to end


def serve(settings: ServerSettings) -> int:
    """Run the server until it is told to stop; the exit code. Raises TypebarError where it cannot start."""
    _native.share_one_heap()
    configure(settings.log_format, settings.log_level, content=settings.log_prompts)
    if settings.exposure:
        log.warning("%s", settings.exposure)
    if settings.log_prompts:
        log.warning("prompts and answers are written to the log (--log-prompts)")
    sockets = bind(settings.host, settings.port)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Lifecycle(settings, sockets).run())


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of `host`. TypebarError where one cannot be had."""
    try:
        found = dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE))
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that DNS cannot hold
        raise TypebarError(f"--host {host}: {getattr(error, 'strerror', error)}") from error
    sockets: list[socket.socket] = []
    problem = OSError()
    for family, _, _, _, address in found:
        if sockets and not port:  # the same free port for all addresses
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        try:
            sockets.append(_listen(family, address))
        except OSError as error:
            problem = error
            if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue  # localhost often has an IPv6 name without an IPv6 address
            while sockets:
                sockets.pop().close()
            break
    if not sockets:
        raise TypebarError(_bind_problem(host, port, problem)) from problem
    return sockets


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections do not keep the port
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_problem(host: str, port: int, error: OSError) -> str:
    remedy = {
        errno.EADDRINUSE: "another program listens there; stop it or take another port with --port (0: any free one)",
        errno.EACCES: "ports below 1024 need rights that this user lacks; take another one with --port",
        errno.EADDRNOTAVAIL: "this machine has no such address; see --host",
    }
    return f"cannot listen on {host}:{port}: {remedy.get(error.errno or 0, error.strerror)}"


class _Server(Server):
    """uvicorn without its signal handlers, which end the process by the signal itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _websocket(read_timeout: float, **arguments: Any) -> asyncio.Protocol:
    """A connection that has become a WebSocket. What they take, 1 MB and 30 ms, is imported with the first of them."""
    from typebar.server.websocket_protocol import websocket_protocol

    return websocket_protocol(read_timeout)(**arguments)


class Lifecycle:
    """One server: its settings, its listening sockets, and what it came to."""

    def __init__(self, settings: ServerSettings, sockets: list[socket.socket]) -> None:
        self.settings = settings
        self.sockets = sockets
        self.port = sockets[0].getsockname()[1]
        self.state = ServerState(settings)
        self.server = _Server(self._config())
        self.stopping = asyncio.Event()
        self.exit_code = 0

    def _config(self) -> Config:
        settings = self.settings
        return Config(
            guarded(create_app(self.state), settings, self.port),
            http=http_protocol(settings.read_timeout),
            ws=partial(_websocket, settings.read_timeout),  # type: ignore[arg-type]
            ws_max_size=settings.max_body,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(LAST_WORDS),
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, number)
        serving = asyncio.create_task(self.server.serve(self.sockets))
        try:
            await self._load()
            watching = asyncio.create_task(self._watch())
            watching.add_done_callback(self._watch_ended)
            await self.stopping.wait()
            await self._drain()
            watching.cancel()
        finally:
            self.server.should_exit = True
            await serving
            if self.state.serving is not None:
                self.state.serving.prompter.close()
                await self._close(self.state.serving.engine)
            gc.unfreeze()  # else the interpreter ends without it, and nanobind writes of leaks
        log.info("stopped")
        return self.exit_code

    async def _close(self, engine: Engine) -> None:
        """End the engine. One that hangs in a step would keep the interpreter from ending too: it is left behind."""
        closing = asyncio.get_running_loop().run_in_executor(None, engine.close)
        done, _ = await asyncio.wait([closing], timeout=LAST_WORDS)
        if not done:
            log.critical("the engine does not end; stopped without it")
            os._exit(1)

    async def _load(self) -> None:
        start = perf_counter()
        engine = await asyncio.get_running_loop().run_in_executor(None, self._engine)
        serving = self.state.serve(engine)
        scheme = "https" if self.settings.ssl_certfile else "http"
        host = self.settings.host if ":" not in self.settings.host else f"[{self.settings.host}]"
        log.info("%s is ready after %.1f s: %s://%s:%d (OpenAI API under /v1, routes at /docs)",
                 serving.name, perf_counter() - start, scheme, host, self.port)  # fmt: skip

    def _engine(self) -> LocalEngine:
        resolved = resolve_model(self.settings.model)
        model = load_model(resolved.path, self.settings.engine, name=resolved.name)
        log.info("%d threads (%s), context %d tokens, room for %d tokens of keys and values",
                 model.native.threads, model.threads_reason, model.max_model_len, 16 * model.kv_blocks)  # fmt: skip
        engine = LocalEngine(model)
        engine.warm_up()
        gc.collect()
        _native.release_free_memory()  # what only the loading needed
        gc.freeze()  # what is loaded stays: full collections would walk it for 40 ms, between two steps
        return engine

    def _stop(self, number: int) -> None:
        """The first signal lets running answers end; a second one does not wait, nor does one while loading."""
        if self.stopping.is_set() or self.state.serving is None:
            log.warning("stopped at once")
            os._exit(0 if self.state.serving is None else 128 + number)
        self.stopping.set()

    async def _drain(self) -> None:
        """No new connections or requests; those that run have `drain` seconds to end."""
        assert self.state.serving is not None
        jobs = self.state.serving.jobs
        jobs.draining = True
        for listener in self.server.servers:
            listener.close()
        if jobs.num_sequences:
            log.info("stopping: %d answers have %g s to end", jobs.num_sequences, self.settings.drain)
        await self._wait_for_jobs(self.settings.drain)
        jobs.end_all("shutdown")
        await self._wait_for_jobs(LAST_WORDS)
        for job in jobs:  # the engine does not answer
            job.give_up("shutdown")

    async def _wait_for_jobs(self, seconds: float) -> None:
        assert self.state.serving is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(self.state.serving.jobs):
                    await asyncio.sleep(0.02)

    def _watch_ended(self, watching: asyncio.Task[None]) -> None:
        """Without the watch nobody would notice a stall: the server does not go on."""
        if not watching.cancelled() and (error := watching.exception()) is not None:
            log.critical("the watch over the engine failed; the server ends", exc_info=error)
            self.exit_code = 1
            self.stopping.set()

    async def _watch(self) -> None:
        """Notice an engine that has died, which ends the server, or that makes no progress, which ends the requests."""
        serving = self.state.serving
        assert serving is not None
        steps, since = -1, perf_counter()
        while True:
            await asyncio.sleep(WATCH_INTERVAL)
            if (failure := serving.engine.failure()) is not None:
                log.critical("%s; the server ends", failure)
                self.exit_code = 1
                self.stopping.set()
                return
            stats = serving.engine.stats()
            now = perf_counter()
            has_work = stats.running or stats.waiting or serving.jobs.num_sequences
            if stats.steps != steps or not has_work:
                steps, since = stats.steps, now
            is_stalled = bool(self.settings.stall_timeout) and now - since > self.settings.stall_timeout
            if is_stalled and not self.state.stalled:
                log.critical("the engine has made no step for %.0f s; its requests are given up", now - since)
                for job in serving.jobs:
                    job.give_up("error")
            elif self.state.stalled and not is_stalled:
                log.warning("the engine makes steps again")
            self.state.stalled = is_stalled
