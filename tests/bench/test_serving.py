"""Figures of servers that fail under measurement: programs that are healthy until somebody asks."""

import sys
from pathlib import Path

import pytest

from typebar.bench import serving
from typebar.bench.process import ServerProcess, free_port
from typebar.errors import TypebarError

PROGRAM = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        print("asked", file=sys.stderr, flush=True)
        if sys.argv[2] == "hangs":
            time.sleep(3600)
        if sys.argv[2] == "talks nonsense":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"data: {nonsense\\n\\n")

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.parametrize("habit", ["hangs up", "hangs", "talks nonsense"])
def test_server_that_fails_is_an_error_with_its_log(
    habit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if habit == "hangs":
        monkeypatch.setattr(serving, "RUN_TIMEOUT", 1.0)
    program = tmp_path / "server.py"
    program.write_text(PROGRAM)
    port = free_port()
    with (
        ServerProcess([sys.executable, str(program), str(port), habit], port) as server,
        pytest.raises(TypebarError, match=r"its server gave no answer that can be measured(?s:.*)asked"),
    ):
        serving.figures(server, 1, ["aggregate_tps_1"], "")
