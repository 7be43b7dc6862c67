"""typebar itself, by its engine's own thread as its server runs it."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import measure

from typebar.config import EngineConfig
from typebar.engine.engine import Engine
from typebar.engine.params import SamplingParams
from typebar.engine.request import Output
from typebar.engine.worker import Worker
from typebar.model.load import load_model


class Typebar:
    def __init__(self, job: dict[str, Any]) -> None:
        config = EngineConfig(
            max_model_len=job["context"],
            threads=job["threads"],
            quantization=job.get("quantization", "keep"),
            kv_dtype=job.get("kv_dtype", "f16"),
            max_num_seqs=8,
            screened_head=job.get("screened_head", True),
            num_speculative_tokens=job.get("num_speculative_tokens", 0),
        )
        self._model = load_model(Path(job["model"]), config)
        self._worker = Worker(Engine(self._model))
        self._asked = 0

    def about(self) -> dict[str, Any]:
        native = self._model.native
        quantization = self._model.config.quantization  # what "auto" came to
        kv_dtype = self._model.config.kv_dtype
        weights = "as in the file" if quantization == "keep" else quantization
        return {
            "version": version("typebar"),
            "format": f"GGUF, weights {weights}",
            "flags": f"threads={native.threads} isa={native.isa} quantization={quantization} kv_dtype={kv_dtype}",
            "quantization": quantization,
            "token_bytes": native.memory()["token_read"],
        }

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: measure.Arrived, keep: bool) -> int:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, cache_prompt=keep)
        outbox: SimpleQueue[Output] = SimpleQueue()
        numbers = {}
        for number, prompt in enumerate(prompts):
            id = f"{self._asked}-{number}"
            numbers[id] = number
            self._worker.submit(self._worker.new(id, prompt, params.for_choice(0, 0)), outbox.put)
        self._asked += 1
        drawn = [0] * len(prompts)
        left = len(prompts)
        while left:
            output = outbox.get()
            for _ in output.token_ids:
                arrived(numbers[output.request_id])
            drawn[numbers[output.request_id]] += len(output.token_ids)
            left -= output.finish_reason is not None
        return min(drawn)


if __name__ == "__main__":
    measure.run(Typebar)
