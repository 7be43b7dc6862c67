"""The id that a client gives a turn of its WebSocket."""

import json
from collections.abc import Iterator

import pytest
from server_process import ServerProcess
from websockets.sync.client import ClientConnection, connect


@pytest.fixture
def socket(tiny_server: ServerProcess) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{tiny_server.port}/v1/ws") as connection:
        yield connection


def first_frame(socket: ClientConnection, **fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "0"}]
    socket.send(json.dumps({"type": "chat", "messages": messages, "max_tokens": 1, **fields}))
    frame: dict[str, object] = json.loads(socket.recv(timeout=60))
    return frame


def test_it_comes_back_with_the_answer(socket: ClientConnection) -> None:
    frame = first_frame(socket, request_id="turn-1")
    assert (frame["type"], frame["request_id"]) == ("start", "turn-1")
    assert "ignored" not in frame


def test_it_comes_back_with_the_error(socket: ClientConnection) -> None:
    frame = first_frame(socket, request_id="turn-2", temperature=-1)
    assert (frame["type"], frame["request_id"]) == ("error", "turn-2")


@pytest.mark.parametrize("id", [5, "", "two words", "x" * 129, "zeile\n"])
def test_what_cannot_be_echoed_is_left_out(socket: ClientConnection, id: object) -> None:
    frame = first_frame(socket, request_id=id)
    assert frame["type"] == "start" and "request_id" not in frame
