"""Quality against transformers in float32 on the same weights: mean KL and same top-1 over a mixed text.

    python -m typebar.bench.quality -m MODEL [--quant q4] [--kv-dtype q8] [--llamacpp]

With --llamacpp, llama.cpp is measured on the same file and text too; through whichever binding is installed.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from typebar.bench.reference import Divergence, Reference, divergence, mixed_tokens, reference
from typebar.config import EngineConfig
from typebar.engine.blocks import blocks_for
from typebar.model.download import resolve_model
from typebar.model.load import LoadedModel, load_model

LLAMACPP = Path(__file__).with_name("peers") / "llamacpp.py"


def main() -> None:
    parser = argparse.ArgumentParser(prog="typebar.bench.quality", description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", help="as for `typebar run`")
    parser.add_argument("--quant", default="keep", help="requantize at load")
    parser.add_argument("--kv-dtype", default="f16", help="of keys and values: f16 or q8")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--llamacpp", action="store_true", help="measure llama.cpp too")
    parser.add_argument("--llamacpp-python", default=sys.executable, help="interpreter that has llama.cpp's binding")
    arguments = parser.parse_args()
    model = resolve_model(arguments.model).path
    tokens = mixed_tokens(model, arguments.tokens)
    expected = reference(model, tokens)
    logits = typebar_logits(model, tokens, arguments.quant, arguments.kv_dtype)
    found = {"typebar": divergence(expected, logits)}
    if arguments.llamacpp:
        found["llama.cpp"] = divergence(expected, llamacpp_logits(arguments.llamacpp_python, model, tokens, expected))
    print_report(found)


def print_report(found: dict[str, Divergence]) -> None:
    for name, result in found.items():
        print(
            f"{name:10} mean KL {result.mean_kl:.5f}  largest {result.max_kl:.4f}  "
            f"same top-1 {result.same_top_percent:.2f} %  ({result.tokens} tokens)"
        )
    print(json.dumps({name: asdict(result) for name, result in found.items()}))


def typebar_logits(
    model: Path, tokens: list[int], quantization: str = "keep", kv_dtype: str = "f16"
) -> NDArray[np.float32]:
    """Logits [tokens, vocab] of one sequence from position 0, in steps of up to 512."""
    step = min(len(tokens), 512)
    config = EngineConfig(
        max_model_len=len(tokens) + 1, max_num_seqs=1, max_step_tokens=max(step, 32), quantization=quantization,
        kv_dtype=kv_dtype,
    )  # fmt: skip
    return sequence_logits(load_model(model, config), tokens, [step] * (len(tokens) // step))


def sequence_logits(loaded: LoadedModel, tokens: list[int], chunks: list[int]) -> NDArray[np.float32]:
    """Logits [tokens, vocab] of one sequence computed in chunks of these lengths; the rest is the last chunk."""
    table = np.arange(blocks_for(len(tokens)), dtype=np.int32)[None]
    bounds = [0, *np.cumsum(chunks).tolist()]
    bounds += [len(tokens)] if bounds[-1] < len(tokens) else []
    parts = []
    for start, end in pairwise(bounds):
        new = np.array(tokens[start:end], np.int32)
        lengths, starts = np.array([end - start], np.int32), np.array([start], np.int32)
        parts.append(loaded.native.logits(new, lengths, starts, table))
    return np.concatenate(parts)


def llamacpp_logits(python: str, model: Path, tokens: list[int], expected: Reference) -> NDArray[np.float32]:
    """Logits [tokens, vocab] from llama.cpp.

    Where its binding tells only the likeliest ids, the probability that is left is spread over the others as in the
    reference: the divergence is then a lower bound, short by what the unlikely ids differ among themselves.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "logits.npy"
        vocab = expected.log_probs.shape[1]
        job = {"model": str(model), "threads": 1, "context": 2 * len(tokens), "tokens": tokens, "vocab": vocab}
        subprocess.run([python, str(LLAMACPP), json.dumps({**job, "out": str(out)})], check=True, stdout=sys.stderr)
        logits = np.asarray(np.load(out), np.float32)
    for row, log_p in zip(logits, expected.log_probs, strict=True):
        rest = np.isnan(row)
        if rest.any():
            left = max(1e-12, 1 - np.exp(row[~rest].astype(np.float64)).sum())
            p = np.exp(log_p[rest].astype(np.float64))
            row[rest] = log_p[rest] + np.log(left / p.sum())
    return logits


if __name__ == "__main__":
    main()
