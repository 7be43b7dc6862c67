"""llama.cpp, through whichever binding is installed: xllamacpp (wheels) or llama-cpp-python (built where it runs).

Two jobs: speed (measure.py), and, with `out` in the job, the logits of every token of `tokens` as an .npy file
[tokens, vocab], which only llama-cpp-python gives.
"""

import importlib.util
import json
import sys
from typing import Any

import measure


class Xllamacpp:
    def __init__(self, job: dict[str, Any]) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = job["model"]
        params.n_ctx = job["context"]
        params.n_parallel = 1
        params.n_gpu_layers = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["threads"]
        params.cache_ram_mib = 0
        params.fit_params = params.warmup = False
        params.verbosity = 0
        self._server = xllamacpp.Server(params)

    def complete(self, tokens: list[int], count: int) -> list[int]:
        request = {
            "prompt": tokens,
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "return_tokens": True,
            "n_probs": 1,
        }
        answer = self._server.handle_completions(request)
        if "choices" not in answer:
            raise RuntimeError(str(answer))
        return [token["id"] for token in answer["choices"][0]["logprobs"]["content"]]


class LlamaCppPython:
    def __init__(self, job: dict[str, Any], logits_all: bool = False) -> None:
        import llama_cpp

        threads, context = job["threads"], job["context"]
        self.llama = llama_cpp.Llama(
            job["model"],
            n_ctx=context,
            n_batch=min(context, 512),
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=logits_all,
            verbose=False,
        )

    def complete(self, tokens: list[int], count: int) -> list[int]:
        drawn: list[int] = []
        self.llama.reset()
        for token in self.llama.generate(tokens, temp=0.0, repeat_penalty=1.0, reset=True):
            drawn.append(token)
            if len(drawn) == count:
                break
        return drawn


def write_logits(job: dict[str, Any]) -> None:
    import numpy as np

    engine = LlamaCppPython(job, logits_all=True)
    engine.llama.eval(job["tokens"])
    np.save(job["out"], np.array(engine.llama.scores[: len(job["tokens"])], np.float32))


if __name__ == "__main__":
    if "out" in json.loads(sys.argv[1]):
        write_logits(json.loads(sys.argv[1]))
    else:
        measure.run(LlamaCppPython if importlib.util.find_spec("llama_cpp") else Xllamacpp)
