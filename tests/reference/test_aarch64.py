"""The same bits on another processor: the native replay program, cross-built, under qemu-aarch64."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tiny_model import WINDOW, write_tiny_gguf
from typebar.bench.quality import mixed_tokens, sequence_logits
from typebar.config import EngineConfig
from typebar.model.gguf import GGUFFile
from typebar.model.load import LoadedModel, load_model
from typebar.model.names import match_tensors
from typebar.model.rope import inverse_frequencies

ROOT = Path(__file__).resolve().parents[2]
NO_WINDOW = 1 << 30  # kNoWindow of kernels.h
QUANTIZATIONS = ("keep", "q8", "q6", "q5", "q4", "f32")  # as in pack.h

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("qemu-aarch64") or not shutil.which("aarch64-linux-gnu-g++"),
    reason="needs x86-64 with qemu-user and g++-aarch64-linux-gnu",
)


@pytest.fixture(scope="module")
def replay() -> list[str]:
    """The command that runs a job on aarch64."""
    cmake = Path(sys.executable).with_name("cmake")
    if not (ROOT / "build/aarch64/build.ninja").exists():
        subprocess.run([cmake, "--preset", "aarch64"], cwd=ROOT, check=True)
    subprocess.run([cmake, "--build", "--preset", "aarch64", "--target", "replay"], cwd=ROOT, check=True)
    return ["qemu-aarch64", str(ROOT / "build/aarch64/replay")]


def write_job(path: Path, model: Path, tokens: list[int], generate: int, isa: str, quantization: str = "keep") -> None:
    """See native/tests/replay/replay.cpp."""
    loaded = load_model(model, max_model_len=len(tokens) + generate, max_num_seqs=1)
    spec = loaded.spec
    fields = {
        "path": model,
        "threads": 2,
        "isa": isa,
        "quantization": QUANTIZATIONS.index(quantization),
        "interleaved_rope": int(spec.rope_interleaved),
        "generate": generate,
        "vocab_size": spec.vocab_size,
        "usable_vocab": loaded.usable_vocab,
        "hidden_size": spec.hidden_size,
        "num_layers": spec.num_layers,
        "num_heads": spec.num_heads,
        "num_kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "intermediate_size": spec.intermediate_size,
        "rms_norm_eps": repr(spec.rms_norm_eps),
        "attention_scale": f"{spec.attention_scale or spec.head_dim**-0.5:.9g}",
        "embedding_scale": f"{spec.embedding_scale:.9g}",
        "activation": ("silu", "gelu").index(spec.activation),
    }
    lines = [f"{key} {value}" for key, value in fields.items()]
    windows = spec.windows or (0,) * spec.num_layers
    kinds = sorted(set(windows))
    for window in kinds:
        frequencies, factor = inverse_frequencies(spec.rope_of(window), spec.head_dim, loaded.max_model_len)
        values = " ".join(f"{value:.9g}" for value in frequencies)
        lines.append(f"attention {window or NO_WINDOW} {factor!r} {len(frequencies)} {values}")
    lines.append(f"layer_attention {len(windows)} {' '.join(str(kinds.index(window)) for window in windows)}")
    lines.append(f"tokens {len(tokens)} {' '.join(map(str, tokens))}")
    for name, tensor in match_tensors(spec, GGUFFile.open(model)).items():
        rows, cols = tensor.shape if len(tensor.shape) == 2 else (1, *tensor.shape)
        lines.append(f"tensor {name} {tensor.type} {rows} {cols} {tensor.offset}")
    path.write_text("\n".join(lines) + "\n")


def here(model: Path, tokens: list[int], generate: int, quantization: str = "keep") -> tuple[list[int], str]:
    """Greedy ids and the hash of the prompt's logits, from this processor."""
    config = EngineConfig(
        max_model_len=len(tokens) + generate, max_num_seqs=1, max_step_tokens=1024, quantization=quantization
    )
    loaded = load_model(model, config)
    prompt = sequence_logits(loaded, tokens, [])
    ids: list[int] = []
    for _ in range(generate):
        ids.append(greedy(loaded, tokens + ids))
    return ids, f"{fnv1a(prompt.tobytes()):016x}"


def greedy(loaded: LoadedModel, tokens: list[int]) -> int:
    """The next id, everything computed anew."""
    return int(sequence_logits(loaded, tokens, [])[-1, : loaded.usable_vocab].argmax())


def fnv1a(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def run(command: list[str], job: Path) -> tuple[list[int], str]:
    output = subprocess.run([*command, str(job)], check=True, capture_output=True, text=True).stdout
    ids, digest = output.splitlines()
    return [int(token) for token in ids.split()], digest


@pytest.mark.parametrize("isa", ["-", "scalar"])
@pytest.mark.parametrize(
    ("architecture", "quantization"),
    [("qwen2", "keep"), ("qwen3", "q4"), ("llama", "q8"), ("llama", "f32"), ("gemma3", "keep")],
)
def test_tiny_models(replay: list[str], tmp_path: Path, architecture: str, quantization: str, isa: str) -> None:
    types = {
        "q": "Q5_0", "k": "Q8_0", "v": "Q6_K", "o": "Q5_1", "gate": "Q4_K", "up": "Q4_0", "down": "Q5_K",
        "embed": "Q8_0", "layers.1.q": "Q4_1", "layers.1.o": "F16", "layers.1.down": "BF16",
    }  # fmt: skip
    model = write_tiny_gguf(
        tmp_path / "m.gguf", architecture, types, hidden_size=256, num_heads=8, num_kv_heads=2, head_dim=32,
        intermediate_size=512, tied_embeddings=architecture == "qwen3",
    ).path  # fmt: skip
    count = 37 if architecture != "gemma3" else WINDOW + 37
    tokens = np.random.default_rng(4).integers(0, 280, count).tolist()
    write_job(tmp_path / "job", model, tokens, 24, isa, quantization)
    assert run(replay, tmp_path / "job") == here(model, tokens, 24, quantization)


def test_real_model(replay: list[str], tmp_path: Path, coder_path: Path) -> None:
    tokens = mixed_tokens(coder_path, 12)
    write_job(tmp_path / "job", coder_path, tokens, 8, "-")
    assert run(replay, tmp_path / "job") == here(coder_path, tokens, 8)
