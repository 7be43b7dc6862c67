"""/v1/ws: many turns on one connection, which only its client or the end of the server closes."""

import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import SHUT_RDWR, create_connection
from typing import Any

import pytest
from server_process import ServerProcess, launch, running
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

CONTEXT = 32768
LONG_PROMPT = "a b c d e f g. " * 1000  # about 8 000 tokens of the random model


@pytest.fixture(scope="module")
def server(long_path: Path) -> Iterator[ServerProcess]:
    """One seat and no queue: what an interrupted turn did not free would be refused to the next."""
    arguments = ("--max-model-len", str(CONTEXT), "--max-num-seqs", "2", "--max-queue", "0", "--max-body", "200K")
    with running(long_path, *arguments, "--drain", "0") as server:
        yield server


@pytest.fixture
def socket(server: ServerProcess) -> Iterator[ClientConnection]:
    with open_socket(server) as socket:
        yield socket
    server.wait_until_idle()


@contextmanager
def open_socket(server: ServerProcess) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{server.port}/v1/ws"
    with connect(url, open_timeout=60, close_timeout=30, max_size=None) as socket:
        yield socket


def chat(content: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"type": "chat", "messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": 20, **fields}


def send(socket: ClientConnection, frame: dict[str, Any]) -> None:
    socket.send(json.dumps(frame))


def read(socket: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(socket.recv(timeout=60))
    return frame


def read_until(socket: ClientConnection, kind: str, id: str | None = None) -> list[dict[str, Any]]:
    """Frames up to the first of a kind (and an id)."""
    frames = [read(socket)]
    while frames[-1]["type"] != kind or (id is not None and frames[-1]["id"] != id):
        assert frames[-1]["type"] != "error" or kind == "error", frames[-1]
        frames.append(read(socket))
    return frames


def text_of(frames: list[dict[str, Any]], index: int = 0) -> str:
    return "".join(frame["text"] for frame in frames if frame["type"] == "delta" and frame["index"] == index)


def ask(socket: ClientConnection, frame: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A turn to its end: text and last frame."""
    send(socket, frame)
    frames = read_until(socket, "done")
    assert frames[0]["type"] == "start" and len({frame["id"] for frame in frames}) == 1
    return text_of(frames), frames[-1]


def test_many_turns_on_one_connection_continue_their_history(server: ServerProcess, socket: ClientConnection) -> None:
    messages: list[dict[str, str]] = []
    known = 0
    for turn in range(8):
        messages.append({"role": "user", "content": f"question {turn}"})
        text, done = ask(socket, chat("", messages=messages, max_tokens=24))
        assert done["choices"] == [{"index": 0, "finish_reason": "length", "stop_reason": None}]
        assert done["usage"]["completion_tokens"] == done["timings"]["predicted_n"] == 24
        assert done["usage"]["prompt_tokens_details"]["cached_tokens"] >= known // 16 * 16
        known = done["usage"]["prompt_tokens"]
        body = {"messages": messages, "temperature": 0, "ignore_eos": True, "max_tokens": 24, "cache_salt": "cold"}
        assert server.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"] == text
        messages.append({"role": "assistant", "content": text})


def test_stop_ends_the_turn_and_keeps_the_connection(server: ServerProcess, socket: ClientConnection) -> None:
    send(socket, chat("talk", max_tokens=CONTEXT))
    read_until(socket, "delta")
    send(socket, {"type": "stop"})
    done = read_until(socket, "done")[-1]
    assert done["choices"] == [{"index": 0, "finish_reason": "stop", "stop_reason": "cancelled"}]
    assert 0 < done["usage"]["completion_tokens"] < CONTEXT / 4
    send(socket, {"type": "stop"})  # nothing runs: no frame
    assert ask(socket, chat("again"))[1]["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("moment", ["at once", "prefill", "decode"])
def test_new_chat_interrupts_the_old_one(server: ServerProcess, socket: ClientConnection, moment: str) -> None:
    expected, _ = ask(socket, chat("the second question"))
    first = chat(LONG_PROMPT if moment == "prefill" else "one", max_tokens=CONTEXT, n=2, cache_salt=moment)
    send(socket, {**first, "return_progress": True})
    if moment != "at once":
        read_until(socket, "progress" if moment == "prefill" else "delta")
    send(socket, chat("the second question"))
    frames: list[dict[str, Any]] = []
    while sum(frame["type"] == "done" for frame in frames) < 2:
        frames.append(read(socket))
        assert frames[-1]["type"] != "error", frames[-1]
    new = next(frame["id"] for frame in reversed(frames) if frame["type"] == "done" and len(frame["choices"]) == 1)
    old = next(frame for frame in frames if frame["type"] == "done" and len(frame["choices"]) == 2)
    assert {choice["stop_reason"] for choice in old["choices"]} == {"cancelled"}
    assert old["usage"]["completion_tokens"] < CONTEXT / 4
    if moment == "prefill":
        assert old["usage"]["completion_tokens"] == 0
    started = [frame["id"] for frame in frames].index(new)
    assert all(frame["id"] == new for frame in frames[started:] if frame["type"] == "delta")
    assert text_of([frame for frame in frames if frame["id"] == new]) == expected


def test_flood_of_chats_answers_the_last(server: ServerProcess, socket: ClientConnection) -> None:
    expected, _ = ask(socket, chat("number 29"))
    for number in range(30):
        send(socket, chat(f"number {number}", max_tokens=20 if number == 29 else CONTEXT))
    frames: list[dict[str, Any]] = []
    while not frames or frames[-1]["type"] != "done" or frames[-1]["choices"][0]["finish_reason"] != "length":
        frames.append(read(socket))
        assert frames[-1]["type"] != "error", frames[-1]
    assert text_of([frame for frame in frames if frame["id"] == frames[-1]["id"]]) == expected


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("not json", "JSON"),
        (b"\x00\xff", "not binary"),
        ("[1]", "object"),
        ("", "empty"),
        ('{"x":' + "[" * 20_000 + "]" * 20_000 + "}", "deep"),
        ('{"type":"sing"}', "type"),
        ("{}", "type"),
        ('{"type":["chat"]}', "type"),
        ('{"type":"chat"}', "messages"),
        ('{"type":"chat","messages":[]}', "messages"),
        ('{"type":"chat","messages":[{"role":"user","content":"x"}],"temperature":-1}', "temperature"),
        ('{"type":"chat","messages":[{"role":"user","content":"x"}],"n":0}', "n must"),
        ('{"type":"chat","messages":[{"role":"user","content":"x"}],"max_tokens":"many"}', "max_tokens"),
        (json.dumps(chat("word " * 30_000)), "32768"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_frame_is_told_and_the_connection_kept(
    server: ServerProcess, socket: ClientConnection, bad: str | bytes, message: str
) -> None:
    socket.send(bad)
    error = read(socket)
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error", error
    assert message in error["error"]["message"]
    assert ask(socket, chat("still there?"))[1]["usage"]["completion_tokens"] == 20


def test_bad_frame_does_not_harm_the_turn_beside_it(server: ServerProcess, socket: ClientConnection) -> None:
    expected, _ = ask(socket, chat("steady", max_tokens=300))
    send(socket, chat("steady", max_tokens=300))
    frames = read_until(socket, "delta")
    for bad in ("{", '{"type":"?"}'):
        socket.send(bad)
    while frames[-1]["type"] != "done":
        frames.append(read(socket))
    assert sum(frame["type"] == "error" for frame in frames) == 2
    assert text_of(frames) == expected


def test_frame_above_the_body_limit_closes_only_this_connection(server: ServerProcess) -> None:
    with open_socket(server) as other, open_socket(server) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            send(socket, chat("x" * 300_000))
            read(socket)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1009
        assert ask(other, chat("me?"))[1]["usage"]["completion_tokens"] == 20


def test_pings_are_answered_while_a_prompt_is_computed(server: ServerProcess, socket: ClientConnection) -> None:
    send(socket, chat(LONG_PROMPT, max_tokens=1, return_progress=True, cache_salt="ping"))
    first = read_until(socket, "progress")[-1]
    assert first["processed"] < first["total"]
    for _ in range(3):
        assert socket.ping().wait(30)
    frames = read_until(socket, "done")
    steps = [frame["processed"] for frame in frames if frame["type"] == "progress"]
    assert steps == sorted(steps) and all(step <= first["total"] for step in steps)
    assert first["total"] == frames[-1]["usage"]["prompt_tokens"] > 8000


def test_progress_tells_what_was_reused(server: ServerProcess, socket: ClientConnection) -> None:
    prompt = "a b c d e f g. " * 40
    ask(socket, chat(prompt, cache_salt="progress"))
    send(socket, chat(prompt + "More?", cache_salt="progress", return_progress=True))
    frames = read_until(socket, "done")
    progress = [frame for frame in frames if frame["type"] == "progress"]
    cached = frames[-1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 300 and {frame["cache"] for frame in progress} <= {0, cached}


def test_two_answers_come_with_their_index(server: ServerProcess, socket: ClientConnection) -> None:
    send(socket, chat("two", n=2, temperature=1.0, seed=5))
    frames = read_until(socket, "done")
    done = frames[-1]
    assert [choice["index"] for choice in done["choices"]] == [0, 1] and done["usage"]["completion_tokens"] == 40
    assert text_of(frames, 0) and text_of(frames, 1) and text_of(frames, 0) != text_of(frames, 1)


def test_full_server_is_told_as_an_error_frame(server: ServerProcess, socket: ClientConnection) -> None:
    with open_socket(server) as holder:
        send(holder, chat("hold", n=2, max_tokens=CONTEXT))
        read_until(holder, "delta")
        send(socket, chat("me too"))
        error = read(socket)
        assert error["type"] == "error" and error["error"]["code"] == "queue_full"
        send(holder, {"type": "stop"})
        read_until(holder, "done")
        assert ask(socket, chat("now"))[1]["usage"]["completion_tokens"] == 20


def test_client_that_leaves_frees_the_seat(server: ServerProcess) -> None:
    for leave in ("close", "abort"):
        with open_socket(server) as client:
            send(client, chat("leave", max_tokens=CONTEXT))
            read_until(client, "delta")
            if leave == "abort":
                client.socket.shutdown(SHUT_RDWR)
        server.wait_until_idle(20)


def test_time_limit_ends_a_turn(server: ServerProcess, socket: ClientConnection) -> None:
    _, done = ask(socket, chat("slow", max_tokens=CONTEXT, max_time=0.3))
    assert done["choices"] == [{"index": 0, "finish_reason": "length", "stop_reason": "timeout"}]


def test_five_connections_at_once_get_their_own_answers(tiny_server: ServerProcess) -> None:
    expected = {n: tiny_server.chat(f"user {n}", max_tokens=60, ignore_eos=True) for n in range(5)}
    errors: list[str] = []

    def talk(n: int) -> None:
        with open_socket(tiny_server) as socket:
            for turn in range(6):
                text, _ = ask(socket, chat(f"user {n}", max_tokens=60))
                if text != expected[n]["choices"][0]["message"]["content"]:
                    errors.append(f"user {n}, turn {turn}: {text!r}")

    threads = [threading.Thread(target=talk, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors and not any(thread.is_alive() for thread in threads)


def test_end_of_the_server_is_told_and_closes(long_path: Path) -> None:
    with running(long_path, "--max-model-len", str(CONTEXT), "--drain", "0.2") as server:
        with open_socket(server) as busy, open_socket(server) as idle:
            send(busy, chat("on and on", max_tokens=CONTEXT))
            read_until(busy, "delta")
            server.process.terminate()
            error = read_until(busy, "error")[-1]
            assert error["error"]["code"] == "server_shutdown"
            for socket in (busy, idle):
                with pytest.raises(ConnectionClosed) as closed:
                    read(socket)
                assert closed.value.rcvd is not None and closed.value.rcvd.code in (1001, 1012)
        assert server.process.wait(30) == 0


def test_chat_while_the_model_loads_is_an_error_frame(coder_path: Path, free_port: int) -> None:
    server = launch(coder_path, ["--port", str(free_port)])
    server.port = free_port
    try:
        wait_for_port(free_port)
        with open_socket(server) as early:
            send(early, chat("early"))
            assert read(early)["error"]["code"] == "loading", server.log
            server.wait_until_ready()
            assert ask(early, chat("now", max_tokens=2))[1]["usage"]["completion_tokens"] == 2
    finally:
        server.process.kill()
        server.process.wait()


def wait_for_port(port: int, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_turn_can_be_cancelled_over_http(server: ServerProcess, socket: ClientConnection) -> None:
    send(socket, chat("elsewhere", max_tokens=CONTEXT))
    id = read_until(socket, "delta")[0]["id"]
    assert server.post(f"/v1/requests/{id}/cancel").json()["cancelled"] == 1
    assert read_until(socket, "done")[-1]["choices"][0]["stop_reason"] == "cancelled"


def test_log_line_of_a_turn_names_its_route(server: ServerProcess, socket: ClientConnection) -> None:
    _, done = ask(socket, chat("log me"))
    server.wait_for_log(rf"{re.escape(done['id'])} websocket: .* length$")
