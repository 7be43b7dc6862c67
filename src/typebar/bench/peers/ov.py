"""OpenVINO GenAI with INT4 weights; optimum-intel makes them: `python ov.py convert FOLDER TO`.

Its continuous batching pipeline is used, as by its own server; prefixes are shared where that is asked for.
"""

import gc
import subprocess
import sys
from collections.abc import Sequence
from itertools import count as numbers
from pathlib import Path
from typing import Any

import measure

# Activations are quantized in groups as large as those of the weights: twice the prompt speed of the default.
GROUP = 128
CACHE_GB = 1


class OpenVINO:
    def __init__(self, job: dict[str, Any]) -> None:
        self._folder, self._threads = Path(job["model"]), job["threads"]
        self._shares: bool | None = None
        self._pipeline: Any = None
        self._numbers = numbers()
        self._open(False)

    def about(self) -> dict[str, Any]:
        import openvino
        import openvino_genai

        return {
            "version": f"openvino-genai {openvino_genai.__version__}, openvino {openvino.__version__}",
            "format": f"OpenVINO INT4 in groups of {GROUP}, embedding and output layer INT8",
            "flags": f"threads={self._threads} DYNAMIC_QUANTIZATION_GROUP_SIZE={GROUP} ContinuousBatchingPipeline",
            "token_bytes": (self._folder / "openvino_model.bin").stat().st_size,
        }

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: measure.Arrived, keep: bool) -> int:
        import numpy as np
        import openvino
        import openvino_genai

        self._open(keep)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = count
        config.ignore_eos = True
        config.do_sample = False
        handles = [
            self._pipeline.add_request(next(self._numbers), openvino.Tensor(np.array([prompt], np.int64)), config)
            for prompt in prompts
        ]
        drawn = [0] * len(prompts)
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            for number, handle in enumerate(handles):
                if handle.can_read():
                    for output in handle.read().values():
                        drawn[number] += len(output.generated_ids)
                        for _ in output.generated_ids:
                            arrived(number)
        return min(drawn)

    def _open(self, shares: bool) -> None:
        """Whether prefixes are shared is fixed when a pipeline is made."""
        if shares == self._shares:
            return
        import openvino_genai

        self._pipeline = None
        gc.collect()
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = shares
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(self._folder),
            scheduler,
            "CPU",
            {"INFERENCE_NUM_THREADS": self._threads, "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP},
        )
        self._shares = shares


def convert(source: str, target: str) -> None:
    """INT4 for all layers, with optimum-intel's usual INT8 for the embedding and the output layer."""
    command = [str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino", "--model", source]
    task = ["--task", "text-generation-with-past", "--weight-format", "int4", "--group-size", str(GROUP)]
    subprocess.run([*command, *task, "--ratio", "1.0", target], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "convert":
        convert(*sys.argv[2:])
    else:
        measure.run(OpenVINO)
