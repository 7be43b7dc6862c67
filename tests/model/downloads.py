"""Requests for models in processes of their own, and what hubs look like from outside."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from file_server import FileServer, Page, gguf_like, sha256

BODY = gguf_like(1_000_000)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
RESOLVE = """
import json, sys
from typebar.model.download import resolve_model
found = resolve_model(sys.argv[1], progress=False, retry="retry" in sys.argv)
print(json.dumps([str(found.path), found.name, found.source, found.substituted]))
"""


def closed_port() -> str:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def start(env: dict[str, str], *arguments: str, code: str = RESOLVE) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def resolve(env: dict[str, str], *arguments: str) -> tuple[Path, str, str, bool, str]:
    """Path, name, source, substituted and the notices of a request that must succeed."""
    out, notices = start(env, *arguments).communicate(timeout=60)
    assert out, notices
    path, name, source, substituted = json.loads(out)
    return Path(path), name, source, substituted, notices


def refused(env: dict[str, str], *arguments: str) -> str:
    """What a request that must fail says."""
    process = start(env, *arguments)
    _, notices = process.communicate(timeout=60)
    assert process.returncode != 0
    return notices


def hub_file(server: FileServer, repo: str, file: str, body: bytes = BODY, **more: object) -> Page:
    """Puts a large file on the server the way the hub serves one."""
    headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{sha256(body)}"', "X-Linked-Size": str(len(body))}
    page = Page(body, headers=headers, etag=f'"{sha256(body)}"', **more)  # type: ignore[arg-type]
    server.pages[f"/{repo}/resolve/main/{file}"] = page
    return page


def hub_listing(server: FileServer, repo: str, *files: str) -> None:
    listing = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files]}
    server.pages[f"/api/models/{repo}"] = Page(json.dumps(listing).encode())


def modelscope_file(server: FileServer, repo: str, file: str, body: bytes = BODY, digest: str | None = None) -> str:
    entry = {"Path": file, "Size": len(body), "Sha256": digest or sha256(body)}
    server.pages[f"/api/v1/models/{repo}/repo/files"] = Page(json.dumps({"Data": {"Files": [entry]}}).encode())
    path = f"/models/{repo}/resolve/master/{file}"
    server.pages[path] = Page(body)
    return path
