"""ONNX Runtime GenAI with INT4 weights; its own model builder makes them: `python ort.py convert FOLDER TO`.

A kept prompt is rewound to what the next one has in common with it. An answer never ends early: its least length is
its greatest.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure

BLOCK = 32  # weights with a scale of their own, the builder's usual number
INT8_ACTIVATIONS = 4  # accuracy_level


class OnnxRuntime:
    def __init__(self, job: dict[str, Any]) -> None:
        import onnxruntime_genai

        folder, self._threads, self._context = Path(job["model"]), job["threads"], job["context"]
        self._bytes = job["token_weights"] * (BLOCK // 2 + 4) // BLOCK  # with a float32 scale for each block
        model = json.loads((folder / "genai_config.json").read_text())["model"]
        self._padding = model["vocab_size"] - 1  # usually the end token, which prompts may hold: it would be masked
        options = {"intra_op_num_threads": self._threads}
        config = onnxruntime_genai.Config(str(folder))
        config.overlay(json.dumps({"model": {"pad_token_id": self._padding, "decoder": {"session_options": options}}}))
        self._model = onnxruntime_genai.Model(config)
        self._kept: Any = None  # the generator of the last prompt that was to be kept

    def about(self) -> dict[str, Any]:
        import onnxruntime
        import onnxruntime_genai

        return {
            "version": f"onnxruntime-genai {onnxruntime_genai.__version__}, onnxruntime {onnxruntime.__version__}",
            "format": f"ONNX INT4 in blocks of {BLOCK}, embedding and output layer too, activations INT8",
            "flags": f"threads={self._threads} accuracy_level={INT8_ACTIVATIONS} Generator",
            "token_bytes": self._bytes,
        }

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: measure.Arrived, keep: bool) -> int:
        import numpy as np

        longest = max(map(len, prompts))
        if keep:
            generator, common = self._rewound(prompts[0], count)
        else:
            self._kept = None
            generator, common = self._generator(len(prompts), longest + count, longest + count), 0
        padded = [[self._padding] * (longest - len(prompt)) + prompt for prompt in prompts]
        generator.append_tokens(np.array(padded, np.int32)[:, common:])
        for _ in range(count):
            generator.generate_next_token()
            for number in range(len(prompts)):
                arrived(number)
        return int(generator.token_count()) - longest

    def _rewound(self, prompt: list[int], count: int) -> tuple[Any, int]:
        """The generator that has the beginning of `prompt`, and how many of its tokens; never all of them."""
        if self._kept is None:
            self._kept = self._generator(1, self._context, self._context)
            return self._kept, 0
        before = self._kept.get_sequence(0).tolist()
        common = measure.common_prefix(before, prompt[:-1])
        self._kept.rewind_to(common)
        return self._kept, common

    def _generator(self, users: int, length: int, least: int) -> Any:
        import onnxruntime_genai

        params = onnxruntime_genai.GeneratorParams(self._model)
        params.set_search_options(batch_size=users, min_length=least, max_length=length, do_sample=False)
        return onnxruntime_genai.Generator(self._model, params)


def convert(source: str, target: str) -> None:
    """INT4 for all matrices. The builder would leave an embedding of its own in float32, 0.5 GB of a model of 0.5B."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", source, "-o", target, "-c", target]
    how = ["-p", "int4", "-e", "cpu", "--extra_options", f"accuracy_level={INT8_ACTIVATIONS}", f"block_size={BLOCK}"]
    options = ["op_types_to_quantize=MatMul/Gather", "hf_token=false"]
    subprocess.run([*command, *how, *options], check=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:])
    else:
        measure.run(OnnxRuntime)
