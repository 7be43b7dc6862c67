"""CTranslate2 with int8 weights; it also makes them: `python ct2.py convert FOLDER TO`.

It keeps no keys and values between calls. An answer never ends early: its least length is its greatest.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure


class CTranslate2:
    def __init__(self, job: dict[str, Any]) -> None:
        import ctranslate2

        self._threads = job["threads"]
        folder = Path(job["model"])
        self._generator = ctranslate2.Generator(
            str(folder), device="cpu", compute_type="int8", inter_threads=1, intra_threads=self._threads
        )
        self._bytes = (folder / "model.bin").stat().st_size
        self._names = _vocabulary(folder)

    def about(self) -> dict[str, Any]:
        import ctranslate2

        return {
            "version": f"ctranslate2 {ctranslate2.__version__}",
            "format": "CTranslate2 int8, made from the dequantized file",
            "flags": f"compute_type={self._generator.compute_type} intra_threads={self._threads}",
            "token_bytes": self._bytes,
        }

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: measure.Arrived, keep: bool) -> int:
        def step(result: Any) -> bool:
            arrived(result.batch_id)
            return False

        results = self._generator.generate_batch(
            [[self._names[id] for id in prompt] for prompt in prompts],
            max_length=count,
            min_length=count,
            sampling_topk=1,
            include_prompt_in_result=False,
            callback=step,
        )
        return min(len(result.sequences_ids[0]) for result in results)


def _vocabulary(folder: Path) -> list[str]:
    import json

    names: list[str] = json.loads((folder / "vocabulary.json").read_text())
    return names


def convert(source: str, target: str) -> None:
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(source, low_cpu_mem_usage=True).convert(target, quantization="int8", force=True)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:])
    else:
        measure.run(CTranslate2)
