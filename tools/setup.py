"""Makes a clone ready: system packages, `.venv`, the packages of pyproject.toml, the native module, the chat page.

    python3 tools/setup.py run     what the program needs
    python3 tools/setup.py test    also what the tests need

Only the standard library is used, since this runs before anything is installed. Each step is passed over when its work
is already there.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import page

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"

# Pinned, so that formatting does not depend on the machine.
BUILD_TOOLS = ["cmake>=3.21,<5", "ninja"]
TEST_TOOLS = ["clang-format==14.0.6"]


def main(purpose: str) -> None:
    install_system_packages(purpose)
    make_venv()
    install_python_packages(purpose)
    build_module()
    build_page()


def missing_system_packages(purpose: str) -> list[str]:
    """Debian packages whose tools are absent here."""
    wanted = {
        "g++": shutil.which("c++") or shutil.which("g++"),
        "python3-dev": (Path(sysconfig.get_path("include")) / "Python.h").exists(),
        "python3-venv": venv_is_good() or find_spec("ensurepip"),
    }
    if purpose == "test":
        wanted["doctest-dev"] = Path("/usr/include/doctest/doctest.h").exists()
        if platform.machine() != "aarch64":
            wanted["g++-aarch64-linux-gnu"] = shutil.which("aarch64-linux-gnu-g++")
            wanted["qemu-user"] = shutil.which("qemu-aarch64")
        wanted["openssl"] = shutil.which("openssl")
        wanted["chromium"] = shutil.which("chromium") or shutil.which("google-chrome")
    return [package for package, present in wanted.items() if not present]


def install_system_packages(purpose: str) -> None:
    packages = missing_system_packages(purpose)
    if not packages:
        return
    install = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if shutil.which("apt-get") and (not root or run_quietly([*root, "true"])):
        say(f"installing {' '.join(packages)}")
        apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive"]
        subprocess.run([*apt, "apt-get", "update", "-q"], stdin=subprocess.DEVNULL)
        subprocess.run([*apt, *install], stdin=subprocess.DEVNULL)
    if missing := missing_system_packages(purpose):
        fail(f"missing on this machine; as root, run:\n    apt-get install -y {' '.join(missing)}")


def venv_is_good() -> bool:
    """`.venv` runs, is no copy of one made elsewhere, and is new enough."""
    check = f"import pip, sys; assert sys.prefix == {str(VENV)!r} and sys.version_info >= (3, 11)"
    return VENV_PYTHON.exists() and run_quietly([str(VENV_PYTHON), "-c", check])


def make_venv() -> None:
    if venv_is_good():
        return
    say(f"making .venv with Python {platform.python_version()}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)


def install_python_packages(purpose: str) -> None:
    """Installs the requirements and typebar itself in editable form: .venv/bin/typebar runs the sources in src/."""
    import tomllib  # here, so that an older Python gets as far as the message below

    pyproject = (ROOT / "pyproject.toml").read_text()
    backend = tomllib.loads(pyproject)["build-system"]["requires"]
    tools = BUILD_TOOLS + (TEST_TOOLS if purpose == "test" else [])
    key = "\n".join([pyproject, *tools])
    stamp = VENV / f"installed-{purpose}.txt"
    if stamp.exists() and stamp.read_text() == key:
        return
    say("installing Python packages into .venv (a minute or more)")
    pip("install", *backend, *tools)
    extras = "[test,dev]" if purpose == "test" else ""
    # The module is built by CMake below, where an unchanged source costs nothing; pip links the Python sources.
    settings = ["--config-settings=wheel.cmake=false", "--config-settings=editable.mode=inplace"]
    pip("install", "--no-build-isolation", *settings, "-e", f".{extras}")
    stamp.write_text(key)


def build_module() -> None:
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    cmake = str(VENV / "bin" / "cmake")
    env = {**os.environ, "PATH": path}
    say("building the native module (the first time a minute or two)")
    if not (ROOT / "build/module/build.ninja").exists():
        subprocess.run(
            [cmake, "--preset", "module", f"-DPython_EXECUTABLE={VENV_PYTHON}"], cwd=ROOT, env=env, check=True
        )
    subprocess.run([cmake, "--build", "--preset", "module"], cwd=ROOT, env=env, check=True)


def build_page() -> None:
    """Without Node.js, or without the network that npm needs, all else works: then the server shows a plain page."""
    if page.is_current(page.BUILT):
        return
    folders = list(VENV.glob("lib/python*/site-packages"))
    node = page.find_node(folders)
    if node is None:
        say("installing Node.js into .venv, for the chat page")
        try:
            pip("install", page.NODE_PACKAGE)
        except subprocess.CalledProcessError:
            say(f"no Node.js for the chat page, the server will show a plain one; {page.REMEDY}")
            return
        node = page.find_node(folders)
    if node is not None:
        page.build(node, page.BUILT)


def pip(*arguments: str) -> None:
    command = [str(VENV_PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=True)


def run_quietly(command: list[str]) -> bool:
    quiet = subprocess.DEVNULL
    try:
        return subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def fail(text: str) -> None:
    sys.exit(f"setup: {text}")


if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036
        fail(f"Python 3.11 or newer is needed, this is {platform.python_version()}; try make PYTHON=python3.11")
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "run")
    except subprocess.CalledProcessError as error:
        fail(f"failed: {' '.join(map(str, error.cmd))}")
