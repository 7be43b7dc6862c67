"""A real uvicorn over loopback around an application of a few routes: what the guard, bodies and connections need."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import uvicorn

from typebar.server.body import decode_json, read_json
from typebar.server.client import ClientGone, timed_send
from typebar.server.errors import APIError
from typebar.server.guard import guarded, send_error
from typebar.server.http_protocol import http_protocol
from typebar.server.settings import ServerSettings
from typebar.server.websocket_protocol import websocket_protocol

WAIT = 20.0  # seconds: what any step may take on a busy machine


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


@dataclass
class ToyServer:
    port: int
    settings: ServerSettings
    server: uvicorn.Server
    events: queue.Queue[str] = field(default_factory=queue.Queue)  # what the application saw

    def event(self) -> str:
        return self.events.get(timeout=WAIT)

    def forget_events(self) -> None:
        self.wait_for_connections(0)
        while not self.events.empty():
            self.events.get()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT)

    def request(self, method: str, path: str, headers: Any = (), body: bytes | None = None) -> Answer:
        """One request on a connection of its own. `headers`: a dict or pairs; a Host is added if there is none."""
        pairs = list(dict(headers).items()) if isinstance(headers, dict) else list(headers)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        connection.putrequest(method, path, skip_host=any(name.lower() == "host" for name, _ in pairs))
        for name, value in pairs:
            connection.putheader(name, value)
        if body is not None and not any(name.lower() == "transfer-encoding" for name, _ in pairs):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        connection.close()
        return answer

    def raw(self, data: bytes) -> bytes:
        """Everything that is answered to `data`, up to the end of the connection."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def wait_for_connections(self, count: int) -> None:
        wait_until(lambda: len(self.server.server_state.connections) == count)


def read_all(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end, "did not come about"
        time.sleep(0.01)


@contextmanager
def toy_server(
    certificate: tuple[str, str] | None = None, max_head: int = 64 * 1024, **settings: Any
) -> Iterator[ToyServer]:
    """Serve on a free port of 127.0.0.1; settings["host"] is only what the guard is told."""
    known = ServerSettings(**settings)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    toy = ToyServer(port, known, None)  # type: ignore[arg-type]
    config = uvicorn.Config(
        guarded(lambda scope, receive, send: _app(toy, scope, receive, send), known, port),
        loop="uvloop",
        http=http_protocol(known.read_timeout, max_head),
        ws=websocket_protocol(known.read_timeout),
        log_config=None,
        access_log=False,
        lifespan="off",
        ssl_certfile=certificate[0] if certificate else None,
        ssl_keyfile=certificate[1] if certificate else None,
    )
    toy.server = uvicorn.Server(config)
    thread = threading.Thread(target=toy.server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: toy.server.started)
        yield toy
    finally:
        toy.server.force_exit = toy.server.should_exit = True
        thread.join(WAIT)
        assert not thread.is_alive()


async def _app(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    routes = {
        "/v1/echo": _echo,
        "/v1/stream": _stream,
        "/v1/wait": _wait,
        "/v1/ws": _websocket,
        "/v1/fail": _fail,
        "/v1/names": _names,
    }
    try:
        await routes.get(scope["path"], _any)(toy, scope, receive, send)
    except ClientGone:
        toy.events.put(f"gone {scope['path']}")


async def _answer(send: Any, value: Any) -> None:
    body = msgspec.json.encode(value)
    headers = [(b"x-request-id", b"r1"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _any(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    await _answer(send, {"path": scope["path"]})


async def _names(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    """The names of the request's headers, as they are once its body was read."""
    while (await receive()).get("more_body"):
        pass
    await _answer(send, {"names": [name.decode() for name, _ in scope["headers"]]})


async def _echo(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    """The object sent, as this side reads it."""
    try:
        await _answer(send, await read_json(scope, receive, toy.settings))
    except APIError as error:
        await send_error(send, error)


async def _stream(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    """64 KiB pieces without end."""
    send = timed_send(send, scope, toy.settings.write_timeout)
    gone = asyncio.create_task(_until_gone(receive))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not gone.done():
        await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await asyncio.sleep(0)
    raise ClientGone


async def _wait(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    """Never answers."""
    toy.events.put("waits")
    await _until_gone(receive)
    raise ClientGone


async def _until_gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _fail(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    """Starts an answer larger than the socket's buffers, and dies."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while True:
        message = {"type": "http.response.body", "body": b"x" * 65536, "more_body": True}
        try:
            async with asyncio.timeout(0.2):
                await send(message)
        except TimeoutError:
            break
    toy.events.put("fails")
    raise ClientGone


async def _websocket(toy: ToyServer, scope: Any, receive: Any, send: Any) -> None:
    """Echoes JSON objects; {"flood": …} is answered without end."""
    send = timed_send(send, scope, toy.settings.write_timeout)
    await receive()
    await send({"type": "websocket.accept", "subprotocol": scope["state"]["subprotocol"]})
    toy.events.put(f"accepted, offered {scope['subprotocols']}")
    while (message := await receive())["type"] == "websocket.receive":
        try:
            value = decode_json((message.get("text") or "").encode())
        except APIError as error:
            value = error.body()
        await send({"type": "websocket.send", "text": json.dumps(value)})
        while "flood" in value:
            await send({"type": "websocket.send", "bytes": b"x" * 65536})
            await asyncio.sleep(0)
    toy.events.put("closed")


def trusting(certificate: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context
