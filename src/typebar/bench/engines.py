"""The engines that can be compared: where each is found, what weights it takes, how its server is started."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typebar.bench.convert import converted, half_precision_folder
from typebar.bench.process import serve_command
from typebar.errors import ParameterError, TypebarError
from typebar.model.cache import cache_dir

PEERS = Path(__file__).with_name("peers")
NOT_SUPPORTED = dict.fromkeys(("onnxruntime", "vllm"), "not supported yet")

OPENVINO_PACKAGES = ("openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf", "torch==2.13.0")

Server = Callable[[str, Path, int, int, int], list[str]]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    script: its adapter in peers/. module: what must be importable. packages: what --install puts into an environment
    of its own. weights: gguf (the file itself), hf (a folder of float16 weights) or own (made from that folder by
    `python ADAPTER convert FOLDER TO`). server: its command line from Python, model, port, users and threads; None:
    it is a library.
    """

    name: str
    script: str
    module: str
    packages: tuple[str, ...] = ()
    weights: str = "gguf"
    server: Server | None = None

    @property
    def path(self) -> Path:
        return PEERS / self.script

    def python(self) -> str | None:
        """The interpreter that has it: this one, or that of its own environment; None where it is not installed."""
        if importlib.util.find_spec(self.module):
            return sys.executable
        return str(self._own_python) if self._installed.exists() else None

    def install(self) -> None:
        """Make its own environment. TypebarError with what venv or pip said where that fails."""
        folder = self._environment
        try:
            venv.create(folder, with_pip=True, clear=True)
        except (OSError, subprocess.CalledProcessError) as error:  # the latter where Python has no ensurepip
            said = f"{error}\nOn Debian and Ubuntu it takes the package python3-venv."
            raise TypebarError(f"{folder} could not be made for {self.name}: {said}") from error
        pip = [str(self._own_python), "-m", "pip"]
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
        done = subprocess.run([*pip, "install", "--quiet", *self.packages], **quiet)
        # It comes in by the way, is not needed for text, and breaks transformers where it was built for another torch.
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "torchvision"], **quiet)
        if done.returncode:
            raise TypebarError(f"{self.name} could not be installed into {folder}:\n{done.stderr[-1000:]}")
        self._installed.touch()

    def model(self, gguf: Path, python: str) -> Path:
        """The weights in its form, made where they are not in the cache yet."""
        if self.weights == "gguf":
            return gguf
        folder = half_precision_folder(gguf)
        return folder if self.weights == "hf" else converted(folder, self.name, python, self.path)

    @property
    def _environment(self) -> Path:
        return cache_dir() / "peers" / self.name

    @property
    def _own_python(self) -> Path:
        return self._environment / "bin" / "python"

    @property
    def _installed(self) -> Path:
        """Made last, so that what an interruption leaves is never taken for whole."""
        return self._environment / "installed"


def _typebar_server(python: str, model: Path, port: int, users: int, threads: int) -> list[str]:
    flags = ("--threads", str(threads), "--max-model-len", "2048", "--num-speculative-tokens", "0")
    return serve_command(str(model), port, *flags)


def _llamacpp_server(python: str, model: Path, port: int, users: int, threads: int) -> list[str]:
    job = {"model": str(model), "threads": threads, "slots": users, "context": 2048, "port": port}
    return [python, str(PEERS / "llamacpp_server.py"), json.dumps(job)]


TYPEBAR = Engine("typebar", "ours.py", "typebar", server=_typebar_server)
RIVALS = {
    engine.name: engine
    for engine in (
        Engine("llama.cpp", "llamacpp.py", "xllamacpp", ("xllamacpp",), server=_llamacpp_server),
        Engine("openvino", "ov.py", "openvino_genai", OPENVINO_PACKAGES, "own"),
        Engine("ctranslate2", "ct2.py", "ctranslate2", ("ctranslate2", "transformers", "torch==2.13.0"), "own"),
        Engine("transformers", "hf.py", "transformers", ("transformers", "torch==2.13.0"), "hf"),
    )
}


def choose(names: list[str]) -> tuple[list[Engine], dict[str, str]]:
    """The installed ones of these peers, of no names those of RIVALS, and why each other one is missing.

    ParameterError for an unknown name.
    """
    found, missing = [], {}
    for name in names or RIVALS:
        if name in NOT_SUPPORTED:
            missing[name] = NOT_SUPPORTED[name]
        elif name not in RIVALS:
            raise ParameterError("peers", f"of {', '.join([*RIVALS, *NOT_SUPPORTED])}", name)
        elif RIVALS[name].python() is None:
            missing[name] = f"not installed: typebar bench compare --peers {name} --install"
        else:
            found.append(RIVALS[name])
    return found, missing
