"""typebar itself under the speed job, through its Python API."""

from typing import Any

import measure

from typebar import LLM, SamplingParams


class Typebar:
    def __init__(self, job: dict[str, Any]) -> None:
        self._llm = LLM(job["model"], threads=job["threads"], max_model_len=job["context"], max_num_seqs=1)

    def complete(self, tokens: list[int], count: int) -> int:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, cache_prompt=False)
        [result] = self._llm.generate([{"prompt_token_ids": tokens}], params)
        return len(result.outputs[0].token_ids)


if __name__ == "__main__":
    measure.run(Typebar)
