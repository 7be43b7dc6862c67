"""Hugging Face transformers as people run it: `generate` in float32, not compiled, from a folder of safetensors.

A prompt that comes again is computed again: `generate` keeps nothing between calls.
"""

import os
from collections.abc import Sequence
from typing import Any

import measure


class Transformers:
    def __init__(self, job: dict[str, Any]) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(job["threads"])
        self._model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
        self._model.generation_config.eos_token_id = None  # no answer ends before its time

    def about(self) -> dict[str, Any]:
        import torch
        import transformers

        model = self._model
        return {
            "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "format": "safetensors float16, computed in float32",
            "flags": f"threads={torch.get_num_threads()} generate(do_sample=False) {model.config._attn_implementation}",
            "token_bytes": sum(weight.numel() * weight.element_size() for weight in model.parameters()),
        }

    def complete(self, prompts: Sequence[list[int]], count: int, arrived: measure.Arrived, keep: bool) -> int:
        import torch

        longest = max(map(len, prompts))
        padding = [longest - len(prompt) for prompt in prompts]
        ids = torch.tensor([[0] * pad + prompt for pad, prompt in zip(padding, prompts, strict=True)])
        mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])

        def step(ids: "torch.Tensor", scores: Any, **_: Any) -> "torch.Tensor":
            for number in range(len(prompts)):
                arrived(number)
            return torch.zeros(len(prompts), dtype=torch.bool)

        with torch.inference_mode():
            out = self._model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                repetition_penalty=1.0,
                max_new_tokens=count,
                pad_token_id=0,
                stopping_criteria=[step],
            )
        return int(out.shape[1]) - longest


if __name__ == "__main__":
    measure.run(Transformers)
