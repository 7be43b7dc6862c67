"""What a server imports: each large module that it does without is memory of every process, and time of every start."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import running

# numpy takes 13 MB; the others 0.5 to 2 each, and up to 40 ms.
DONE_WITHOUT = {
    "numpy", "click", "typer", "rich", "multiprocessing", "http.server", "wsgiref", "urllib.request", "websockets",
    "importlib.metadata", "huggingface_hub", "tokenizers", "llguidance", "typebar.model.folder",
    "typebar.model.safetensors",
}  # fmt: skip


def test_serving_a_gguf_file_takes_no_large_module(tiny_path: Path) -> None:
    with running(tiny_path, env={"PYTHONPROFILEIMPORTTIME": "1"}) as server:
        assert server.chat("abc abc abc abc", max_tokens=40, ignore_eos=True)["usage"]["completion_tokens"] == 40
        assert server.chat("a", structured_outputs={"choice": ["yes", "no"]})["choices"][0]["message"]["content"]
        assert server.stop() == 0
    imported = set(re.findall(r"^import time:.*\| +(\S+)$", server.log, re.MULTILINE))
    assert {"uvloop", "jinja2", "typebar.engine.grammar"} <= imported
    assert not imported & DONE_WITHOUT


@pytest.mark.parametrize(
    "use",
    [
        "import uvicorn; uvicorn.run, uvicorn.Config, uvicorn.__version__",
        "from uvicorn import Server, run",
        "import prometheus_client; prometheus_client.Counter('a', 'b'), prometheus_client.start_http_server",
        "from prometheus_client import exposition, generate_latest; generate_latest()",
    ],
)
def test_packages_whose_start_is_put_off_are_whole_for_others(use: str) -> None:
    code = f"import sys, typebar.server.lifecycle; assert 'click' not in sys.modules; {use}"
    subprocess.run([sys.executable, "-c", code], check=True)
