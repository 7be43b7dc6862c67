"""llama.cpp, through whichever binding is installed: xllamacpp (wheels) or llama-cpp-python (built where it runs).

Two jobs: speed (measure.py), and, with `out` in the job, the logits of every token of `tokens` as an .npy file
[tokens, vocab]. xllamacpp tells only log-probabilities of the likeliest ids: the others are NaN there.
"""

import importlib.util
import json
import sys
from itertools import islice
from typing import Any

import measure

LIKELIEST = 20_000  # ids that xllamacpp is asked for; each costs time as JSON


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

    def complete(self, tokens: list[int], count: int) -> int:
        # No probabilities: the server would sort the vocabulary for them.
        answer = self._ask(prompt=tokens, max_tokens=count, ignore_eos=True, cache_prompt=False)
        drawn: int = answer["usage"]["completion_tokens"]
        return drawn

    def logits(self, tokens: list[int], vocab: int) -> Any:
        """[tokens, vocab]; a request for each prefix, of which only the last token is computed anew."""
        import numpy as np

        rows = np.full((len(tokens), vocab), np.nan, np.float32)
        for position, row in enumerate(rows):
            answer = self._ask(prompt=tokens[: position + 1], max_tokens=1, cache_prompt=True, n_probs=LIKELIEST)
            [drawn] = answer["choices"][0]["logprobs"]["content"]
            top = drawn["top_logprobs"]
            row[[entry["id"] for entry in top]] = [entry["logprob"] for entry in top]
        return rows

    def _ask(self, **request: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._server.handle_completions({"temperature": 0, **request})
        if "choices" not in answer:
            raise RuntimeError(str(answer))
        return answer


class LlamaCppPython:
    def __init__(self, job: dict[str, Any]) -> None:
        import llama_cpp

        threads, context = job["threads"], job["context"]
        self._llama = llama_cpp.Llama(
            job["model"],
            n_ctx=context,
            n_batch=min(context, 512),
            n_threads=threads,
            n_threads_batch=threads,
            logits_all="out" in job,
            verbose=False,
        )

    def complete(self, tokens: list[int], count: int) -> int:
        self._llama.reset()
        drawn = self._llama.generate(tokens, temp=0.0, repeat_penalty=1.0, reset=True)
        return len(list(islice(drawn, count)))

    def logits(self, tokens: list[int], vocab: int) -> Any:
        self._llama.eval(tokens)
        return self._llama.scores[: len(tokens)]


def main() -> None:
    engine = LlamaCppPython if importlib.util.find_spec("llama_cpp") else Xllamacpp
    job = json.loads(sys.argv[1])
    if "out" in job:
        import numpy as np

        np.save(job["out"], np.array(engine(job).logits(job["tokens"], job["vocab"]), np.float32))
    else:
        measure.run(engine)


if __name__ == "__main__":
    main()
