"""From the first moment to the last: bind before loading, say what is wrong, end when told and not before."""

import contextlib
import errno
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from raw_client import RawClient
from server_process import ServerProcess, launch, running
from websockets.sync.client import connect

from typebar.errors import TypebarError
from typebar.server.lifecycle import bind

CHAT = "/v1/chat/completions"
CONTEXT = 32768
LONG = ("--max-model-len", str(CONTEXT))


@contextlib.contextmanager
def launched(model: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """A server that may not be ready yet, or never will."""
    server = launch(model, arguments, env)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


def failure(model: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and log of a server that does not start."""
    with launched(model, *arguments, env=env) as server:
        code = server.process.wait(60)
        server.stop()
        return code, server.log


def endless(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "go"}]
    return {"messages": messages, "temperature": 0, "ignore_eos": True, "stream": True, "max_tokens": CONTEXT, **fields}


def events(text: bytes) -> list[Any]:
    """The `data:` events of a raw answer."""
    lines = re.findall(rb"^data: (.*?)\r?$", text, re.M)
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def test_port_answers_503_while_the_model_loads_and_200_after(coder_path: Path, free_port: int) -> None:
    with launched(coder_path, "--port", str(free_port)) as server:
        server.port = free_port
        first = wait_for_answer(server)
        assert first.status_code == 503 and first.json()["error"]["type"] == "unavailable_error"
        assert first.json()["error"]["message"] == "Loading model"
        for path in ("/v1/health", "/v1/models", "/props", "/slots", "/metrics"):
            assert server.get(path).status_code == 503
        assert server.get("/version").status_code == 200
        early = server.post(CHAT, endless())
        assert early.status_code == 503 and int(early.headers["retry-after"]) >= 1
        seen = {503}
        while 200 not in seen:
            seen.add(server.get("/health").status_code)
            assert server.process.poll() is None
        assert seen == {200, 503}
        server.wait_until_ready()
        assert server.post(CHAT, endless(stream=False, max_tokens=2)).status_code == 200
        assert server.metric("vllm:num_requests_running") == 0


def wait_for_answer(server: ServerProcess, seconds: float = 60) -> httpx.Response:
    deadline = time.monotonic() + seconds
    while True:
        try:
            return server.get("/health")
        except httpx.TransportError:
            assert time.monotonic() < deadline and server.process.poll() is None, server.log
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("taken", "host"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "localhost"), ("127.0.0.1", "0.0.0.0"),
     ("::", "::")],
)  # fmt: skip
def test_port_in_use_is_told_before_the_model_is_touched(tmp_path: Path, taken: str, host: str) -> None:
    if ":" in taken and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server((taken, 0), family=socket.AF_INET6 if ":" in taken else socket.AF_INET) as listener:
        port = listener.getsockname()[1]
        code, log = failure(tmp_path / "never-read.gguf", "--host", host, "--port", str(port))
    assert code == 1
    assert f"cannot listen on {host}:{port}" in log and "--port" in log and "never-read" not in log


def test_second_server_on_a_port_leaves_the_first_alone(tiny_server: ServerProcess, tiny_path: Path) -> None:
    code, log = failure(tiny_path, "--port", str(tiny_server.port))
    assert code == 1 and str(tiny_server.port) in log and "Traceback" not in log
    assert tiny_server.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("host", "message"),
    [("198.51.100.1", "no such address"), ("no.such.host.invalid", "--host no.such.host.invalid"),
     ("a" * 70 + ".example", "--host aaaa")],
)  # fmt: skip
def test_host_that_is_not_here_is_told(tmp_path: Path, host: str, message: str) -> None:
    code, log = failure(tmp_path / "never-read.gguf", "--host", host)
    assert code == 1 and message in log and "Traceback" not in log


def test_bind_takes_what_a_name_has_and_says_where_nothing_is_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*addresses: str) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    resolve("198.51.100.1", "127.0.0.1", "127.0.0.2")
    listeners = bind("many", 0)
    assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1", "127.0.0.2"]
    assert len({listener.getsockname()[1] for listener in listeners}) == 1
    for listener in listeners:
        listener.close()
    resolve("198.51.100.1", "198.51.100.2")
    with pytest.raises(TypebarError, match="no such address"):
        bind("many", 0)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may bind any port")
def test_port_without_the_right_to_it_is_told() -> None:
    with pytest.raises(TypebarError, match="ports below 1024"):
        bind("127.0.0.1", 80)


@pytest.mark.parametrize(("host", "shown"), [("localhost", "localhost"), ("::1", "[::1]")])
def test_other_loopback_names_serve(tiny_path: Path, host: str, shown: str) -> None:
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    with running(tiny_path, "--host", host, "--drain", "0") as server:
        assert f"http://{shown}:{server.port}" in server.log
        assert httpx.get(f"http://{shown}:{server.port}/health", timeout=30).status_code == 200
        assert server.stop() == 0


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_model_that_does_not_exist_ends_the_server_with_a_message(tmp_path: Path) -> None:
    code, log = failure(tmp_path / "nowhere.gguf")
    assert code == 1 and "nowhere.gguf" in log and "Traceback" not in log


def test_file_that_is_no_model_ends_the_server_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no weights here")
    code, log = failure(tmp_path / "text.gguf")
    assert code == 1 and "text.gguf" in log and "Traceback" not in log


def test_running_stream_may_end_after_sigterm(long_path: Path) -> None:
    with running(long_path, *LONG, "--drain", "60") as server:
        kept = httpx.Client(base_url=server.url, timeout=60)
        assert kept.get("/health").status_code == 200
        client = RawClient(server, CHAT, endless(max_tokens=1500))
        client.read_until(b'"content":"')
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx.TransportError):
            while True:
                server.get("/health")
        late = kept.post(CHAT, json=endless())  # on a connection from before
        assert late.status_code == 503 and late.json()["error"]["code"] == "server_shutdown"
        assert late.headers["retry-after"]
        *_, last, done = events(client.read_until(b"data: [DONE]"))
        assert last["choices"][0]["finish_reason"] == "length" and done == "[DONE]"
        assert server.process.wait(30) == 0 and server.stop() == 0
        assert len(re.findall("1500 out", server.log)) == 1
        assert server.log.endswith(" INFO stopped\n")  # and nothing is left for others to complain of


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_streams_that_outlast_the_drain_end_with_an_error(long_path: Path, number: int) -> None:
    with running(long_path, *LONG, "--drain", "0.3", "--max-num-seqs", "2") as server:
        clients = [RawClient(server, CHAT, endless()) for _ in range(2)]
        for client in clients:
            client.read_until(b'"content":"')
        clients += [RawClient(server, CHAT, endless()), RawClient(server, CHAT, endless(stream=False))]  # they wait
        deadline = time.monotonic() + 30
        while server.metric("vllm:num_requests_waiting") < 2:
            assert time.monotonic() < deadline
        server.process.send_signal(number)
        for client in clients[:3]:
            *chunks, error, done = events(client.read_until(b"data: [DONE]"))
            assert error["error"]["code"] == "server_shutdown" and done == "[DONE]"
            assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)  # it would pass for an end
        whole = clients[3].read_all()
        assert whole.startswith(b"HTTP/1.1 503 ") and b"server_shutdown" in whole
        assert server.process.wait(30) == 0
    server.wait_for_log("stopping: 4 answers")


def test_second_signal_does_not_wait(long_path: Path) -> None:
    with running(long_path, *LONG, "--drain", "600") as server:
        client = RawClient(server, CHAT, endless())
        client.read_until(b'"content":"')
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("stopping")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) == 128 + signal.SIGTERM
        assert b"[DONE]" not in client.read_all()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_while_the_model_loads_ends_at_once(coder_path: Path, free_port: int, number: int) -> None:
    with launched(coder_path, "--port", str(free_port)) as server:
        server.port = free_port
        assert wait_for_answer(server).status_code == 503
        server.process.send_signal(number)
        assert server.process.wait(10) == 0
        server.stop()
        assert "is ready" not in server.log and "Traceback" not in server.log


def test_idle_server_ends_at_once_though_clients_stay_connected(tiny_path: Path) -> None:
    with running(tiny_path, "--drain", "600") as server, httpx.Client(base_url=server.url) as kept:
        assert kept.get("/health").status_code == 200
        half = socket.create_connection(("127.0.0.1", server.port))
        half.sendall(b"POST /completion HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert server.stop(signal.SIGTERM, 30) == 0
        half.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)  # fmt: skip
    except FileNotFoundError:
        pytest.skip("openssl, which makes the certificate, is not installed")
    return certificate, key


def test_tls_serves_https_and_wss(long_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    with running(long_path, *LONG, "--ssl-certfile", cert, "--ssl-keyfile", key, "--drain", "0") as server:
        assert server.scheme == "https" and f"https://127.0.0.1:{server.port}" in server.log
        context = ssl.create_default_context(cafile=cert)
        with httpx.Client(base_url=server.url, verify=context, timeout=60) as client:
            assert client.get("/health").json() == {"status": "ok"}
            answer = client.post(CHAT, json=endless(max_tokens=3)).text
            assert answer.rstrip().endswith("data: [DONE]")
            with client.stream("POST", CHAT, json=endless()) as left:
                next(left.iter_lines())
            server.wait_for_log("cancelled$")
        with connect(f"wss://127.0.0.1:{server.port}/v1/ws", ssl=context, open_timeout=60) as socket:
            socket.send(json.dumps({"type": "chat", **endless(max_tokens=3)}))
            while (frame := json.loads(socket.recv(60)))["type"] != "done":
                assert frame["type"] != "error", frame
        plain = RawClient(server, CHAT, endless())
        assert not plain.read_all().startswith(b"HTTP/1.1 200")


def test_certificate_that_cannot_be_used_is_told_at_once(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    for arguments in (("--ssl-certfile", cert), ("--ssl-certfile", key, "--ssl-keyfile", key),
                      ("--ssl-certfile", str(tmp_path / "none.pem"), "--ssl-keyfile", key)):  # fmt: skip
        code, log = failure(tmp_path / "never-read.gguf", *arguments)
        assert code == 2 and "ssl" in log and "Traceback" not in log


def test_more_threads_than_processors_are_clamped(tiny_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    with running(tiny_path, "--threads", str(4 * allowed), "--drain", "0") as server:
        assert f"using {allowed}" in server.log and f"{allowed} threads (as asked for)" in server.log
        assert server.chat("hello", max_tokens=30, ignore_eos=True)["usage"]["completion_tokens"] == 30
        tasks = Path(f"/proc/{server.pid}/task")
        assert len(list(tasks.iterdir())) < 4 * allowed + 8


def test_idle_server_uses_no_processor(tiny_server: ServerProcess) -> None:
    tiny_server.chat("hello", max_tokens=5)
    tiny_server.wait_until_idle()
    before = _processor_seconds(tiny_server)
    time.sleep(1.5)
    assert _processor_seconds(tiny_server) - before < 0.15


def _processor_seconds(server: ServerProcess) -> float:
    user, system = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_context_that_does_not_fit_its_memory_is_refused_with_the_numbers(long_path: Path) -> None:
    code, log = failure(long_path, "--max-model-len", "32768", "--kv-memory", "4M")
    assert code == 1 and "8 MiB" in log and "4 MiB" in log and "max_model_len" in log and "Traceback" not in log


def test_context_shrinks_to_the_memory_where_none_was_asked_for(long_path: Path) -> None:
    with running(long_path, "--kv-memory", "512K", "--drain", "0") as server:
        assert "the context is 2048 tokens instead of 4096" in server.log
        assert server.get("/props").json()["default_generation_settings"]["n_ctx"] == 2048


def test_memory_for_keys_and_values_is_taken_as_it_is_used(tiny_path: Path) -> None:
    with running(tiny_path, "--kv-memory", "1G", "--drain", "0") as server:
        assert "room for 4194304 tokens" in server.log
        assert _resident(server) < 300 << 20
        server.chat("x " * 700, max_tokens=5)
        assert _resident(server) < 300 << 20


def _resident(server: ServerProcess) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{server.pid}/status").read_text(), re.M)
    assert found
    return int(found[1]) << 10


def test_port_is_free_again_at_once(tiny_path: Path) -> None:
    with running(tiny_path, "--drain", "0") as first:
        first.chat("hello", max_tokens=2)
        port = first.port
        assert first.stop() == 0
    with running(tiny_path, "--port", str(port), "--drain", "0") as second:
        assert second.port == port
    with pytest.raises(ConnectionRefusedError) as refused:
        socket.create_connection(("127.0.0.1", port)).close()
    assert refused.value.errno == errno.ECONNREFUSED
