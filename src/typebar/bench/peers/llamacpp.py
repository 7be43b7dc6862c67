"""llama.cpp.

Three jobs: speed (measure.py), always through xllamacpp, whose wheels its server is run from too; `python llamacpp.py
convert FILE TYPE TO` (llamacpp_quantize.py); and, with `out` in the job, the logits of every token of `tokens` as an
.npy file [tokens, vocab], through llama-cpp-python where that is installed. xllamacpp tells only log-probabilities of
the likeliest ids: the others are NaN there.
"""

import importlib.util
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llamacpp_quantize
import measure

LIKELIEST = 20_000  # ids that xllamacpp is asked for; each costs time as JSON


class Xllamacpp:
    def __init__(self, job: dict[str, Any]) -> None:
        import xllamacpp

        self._job = job

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

    def about(self) -> dict[str, Any]:
        import xllamacpp

        features = str(xllamacpp.get_system_info()).strip(" |")
        kind, weights = self._job["weights"], self._job["token_weights"]
        same = f"GGUF, the same file ({Path(self._job['model']).name})"
        return {
            "version": f"xllamacpp {version('xllamacpp')}",
            "format": same if kind == "gguf" else f"GGUF, {kind} alone, made from the same file",
            "flags": f"threads={self._job['threads']} flash_attn=auto; {features}",
            # None: the caller knows what is read of the same file. Both other types have blocks of 32 in 18 bytes.
            "token_bytes": None if kind == "gguf" else weights * 18 // 32,
        }

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: measure.Arrived, keep: bool) -> int:
        [prompt] = prompts  # several at once are for its server
        drawn = 0
        broken = ""

        def take(chunk: dict[str, Any]) -> None:
            nonlocal drawn, broken
            if any(choice["text"] for choice in chunk.get("choices", [])):  # a token may end within a character
                arrived(0)
            drawn = chunk.get("usage", {}).get("completion_tokens", drawn)
            broken = str(chunk["error"]) if "error" in chunk else broken

        # No probabilities: the server would sort the vocabulary for them.
        request = {"prompt": prompt, "max_tokens": count, "ignore_eos": True, "cache_prompt": keep, "temperature": 0}
        self._server.handle_completions({**request, "stream": True}, take)
        if broken:
            raise RuntimeError(broken)
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
    """Logits alone."""

    def __init__(self, job: dict[str, Any]) -> None:
        import llama_cpp

        threads, context = job["threads"], job["context"]
        self._llama = llama_cpp.Llama(
            job["model"],
            n_ctx=context,
            n_batch=min(context, 512),
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            verbose=False,
        )

    def logits(self, tokens: list[int], vocab: int) -> Any:
        self._llama.eval(tokens)
        return self._llama.scores[: len(tokens)]


def main() -> None:
    if sys.argv[1] == "convert":
        llamacpp_quantize.write(*sys.argv[2:])
        return
    job = json.loads(sys.argv[1])
    if "out" in job:
        import numpy as np

        engine = LlamaCppPython if importlib.util.find_spec("llama_cpp") else Xllamacpp
        np.save(job["out"], np.array(engine(job).logits(job["tokens"], job["vocab"]), np.float32))
    else:
        measure.run(Xllamacpp)


if __name__ == "__main__":
    main()
