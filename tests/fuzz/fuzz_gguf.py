"""Fuzz the GGUF reader: whatever the bytes, only ModelFileError may come out, and memory stays bounded.

With coverage guidance (`pip install atheris gguf`, ten minutes):
    PYTHONPATH=src:tests python tests/fuzz/fuzz_gguf.py CORPUS_FOLDER -max_total_time=600 -rss_limit_mb=512
The corpus folder is filled with the seeds if it is empty. The test suite runs `mutate` in a bounded way.
"""

import contextlib
import logging
import random
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

import gguf_bytes as gb
from typebar.errors import ModelFileError

SHARD_SEPARATOR = b"\xfe--next shard--\xfe"


def seeds() -> list[bytes]:
    """Small valid files that reach every branch: all value types, all tensor types, whole models, two shards."""
    from tiny_model import write_tiny_gguf

    kinds = [(f"n{kind}", gb.scalar(kind, 1)) for kind in range(13) if kind not in (gb.STRING, gb.ARRAY)]
    arrays = [(f"a{kind}", gb.array(kind, [0, 1])) for kind in range(13) if kind not in (gb.STRING, gb.ARRAY)]
    texts = [("s", gb.scalar(gb.STRING, "größe")), ("as", gb.array(gb.STRING, ["Ġa", "", "日本"]))]
    types = (0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30)
    tensors = [gb.Tensor(f"t{number}", (256, 1), number, 1024 * index) for index, number in enumerate(types)]
    metadata = [*kinds, *arrays, *texts, ("general.alignment", gb.scalar(gb.UINT32, 64))]
    found = [gb.build(metadata, tensors, bytes(1024 * len(types)), alignment=64), gb.build(version=2)]
    found.append(SHARD_SEPARATOR.join(_shard(number) for number in range(2)))
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ("qwen2", "qwen3", "llama", "gemma3"):
            model = write_tiny_gguf(
                Path(folder) / "seed.gguf", architecture, hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1,
                head_dim=4, intermediate_size=8,
            )  # fmt: skip
            found.append(model.path.read_bytes())
    return found


def _shard(number: int) -> bytes:
    metadata = [("split.no", gb.scalar(gb.UINT16, number)), ("split.count", gb.scalar(gb.UINT16, 2))]
    metadata.append(("split.tensors.count", gb.scalar(gb.INT32, 2)))
    return gb.build(metadata, [gb.Tensor(f"t{number}", (8,))], bytes(32))


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few random damages: bits, integers that are known to hurt, cuts, repeats."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        # Most of a file is data and text; the structure lies in the first part more densely.
        at = rng.randrange(rng.choice((len(damaged), min(len(damaged), 400))) or 1)
        match rng.randrange(6):
            case 0:
                damaged[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                hurting = rng.choice((0, 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1, 2**64 - 32, len(data)))
                damaged[at : at + 8] = struct.pack("<Q", hurting)
            case 2:
                damaged[at : at + 4] = struct.pack("<I", rng.choice((0, 3, 5, 8, 9, 12, 13, 1000, 2**32 - 1)))
            case 3:
                del damaged[at : at + rng.randrange(1, 40)]
            case 4:
                damaged[at:at] = damaged[at : at + rng.randrange(1, 200)]
            case 5:
                del damaged[at:]
        if not damaged:
            break
    return bytes(damaged)


def check(data: bytes, folder: Path) -> bool:
    """Read `data` as a model. True where it is accepted; any exception but ModelFileError is a find."""
    from typebar.model.gguf import GGUFFile
    from typebar.model.names import match_tensors
    from typebar.model.rope import inverse_frequencies
    from typebar.model.spec import ModelSpec

    parts = data.split(SHARD_SEPARATOR)
    paths = [
        folder / ("m.gguf" if len(parts) == 1 else f"m-{n + 1:05}-of-{len(parts):05}.gguf") for n in range(len(parts))
    ]
    try:
        for path, part in zip(paths, parts, strict=True):
            path.write_bytes(part)
        gguf = GGUFFile.open(paths[-1])
        for tensor in gguf.tensors.values():
            assert tensor.offset + tensor.nbytes <= tensor.path.stat().st_size
            assert tensor.read().size == tensor.nbytes
        with contextlib.suppress(ModelFileError):
            spec = ModelSpec.from_gguf(gguf)
            frequencies, factor = inverse_frequencies(spec.rope, spec.head_dim, spec.context_length)
            assert np.isfinite(frequencies).all()
            assert np.isfinite(factor)
            match_tensors(spec, gguf)
    except ModelFileError:
        return False
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
    return True


def main() -> None:
    import atheris

    with atheris.instrument_imports(include=["typebar.model"]):
        import typebar.model.names  # noqa: F401
    logging.disable(logging.WARNING)
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        corpus = Path(sys.argv[1])
        corpus.mkdir(exist_ok=True)
        if not any(corpus.iterdir()):
            for number, seed in enumerate(seeds()):
                (corpus / f"seed{number}").write_bytes(seed)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:

        def mutator(data: bytes, max_size: int, seed: int) -> bytes:
            rng = random.Random(seed)
            return mutate(rng, data)[:max_size] if data and rng.random() < 0.5 else atheris.Mutate(data, max_size)

        atheris.Setup(sys.argv, lambda data: check(data, Path(folder)) and None, custom_mutator=mutator)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
