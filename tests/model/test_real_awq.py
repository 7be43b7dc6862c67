"""The Coder model rounded to the layout of the official AWQ checkpoints, against transformers on the same weights."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quantizers import awq_config, awq_parts, round_to_nearest
from test_real_folder import GREEDY_TOKENS, QUESTIONS, TOKENS, up_to_end

from typebar.bench.quality import typebar_logits
from typebar.bench.reference import Reference, divergence, mixed_tokens, transformers_model
from typebar.engine.params import SamplingParams
from typebar.llm import LLM
from typebar.model.cache import cache_dir, sha256_file
from typebar.model.gguf import GGUFFile
from typebar.model.plan import open_plan

ANSWERS, LOGITS = "greedy.json", "logits.npz"


@pytest.fixture(scope="module")
def folder(coder_path: Path) -> Path:
    """Made once, 460 MB: rounded to nearest, 4 bits in groups of 128 with zero points, everything else in f16."""
    made = cache_dir() / "reference" / f"{sha256_file(coder_path)[:16]}-awq-g128"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent, prefix=".folder-") as scratch:
            part = Path(scratch) / "made"
            write(coder_path, part)
            part.rename(made)
    return made


def write(gguf: Path, folder: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from tiny_folder import edit_json

    from text_reference import hf_qwen2_tokenizer

    network = transformers_model(gguf)
    network.config.save_pretrained(folder)
    edit_json(folder / "config.json", quantization_config=awq_config(128))
    tokenizer = hf_qwen2_tokenizer(GGUFFile.open(gguf).metadata)
    tokenizer.save_pretrained(folder)
    state: dict[str, Any] = {}
    for name, weight in network.named_parameters():
        if name.endswith("_proj.weight"):
            layer = round_to_nearest(weight.detach().numpy(), 4, 128, False)
            module = name.removesuffix(".weight")
            state |= {f"{module}.{part}": torch.from_numpy(value) for part, value in awq_parts(layer).items()}
            weight.data = torch.from_numpy(layer.weights)
        else:
            state[name] = weight.detach().half()
            weight.data = state[name].float()
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    write_reference(network, tokenizer, mixed_tokens(gguf)[:TOKENS], folder)


def write_reference(network: Any, tokenizer: Any, tokens: list[int], folder: Path) -> None:
    """Probabilities of `tokens` and greedy answers, in float32."""
    import torch

    with torch.inference_mode():
        log_probs = network(torch.tensor([tokens])).logits[0].log_softmax(-1)
    np.savez(folder / LOGITS, log_probs=log_probs.half().numpy(), top=log_probs.argmax(-1).int().numpy())
    answers = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))["input_ids"]
        answer = network.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=GREEDY_TOKENS)
        answers.append({"prompt": prompt, "answer": answer[0, len(prompt) :].tolist()})
    (folder / ANSWERS).write_text(json.dumps(answers))


def test_logits_are_those_of_the_reference(folder: Path, coder_path: Path) -> None:
    with np.load(folder / LOGITS) as arrays:
        expected = Reference(arrays["log_probs"], arrays["top"])
    result = divergence(expected, typebar_logits(folder, mixed_tokens(coder_path)[:TOKENS]))
    assert result.mean_kl <= 0.002, result
    assert result.same_top_percent >= 96, result


def test_greedy_answers(folder: Path) -> None:
    expected = json.loads((folder / ANSWERS).read_text())
    with LLM(str(folder), max_model_len=256) as llm:
        assert {matrix[1] for matrix in llm.model.native.describe()} == {"q4", "f16"}
        params = SamplingParams(temperature=0, max_tokens=GREEDY_TOKENS)
        answers = [llm.chat([{"role": "user", "content": question}], params)[0] for question in QUESTIONS]
    assert [list(answer.prompt_token_ids) for answer in answers] == [answer["prompt"] for answer in expected]
    found = [list(answer.outputs[0].token_ids) for answer in answers]
    assert found == [up_to_end(answer["answer"]) for answer in expected]


def test_matrices_keep_the_bits_of_the_checkpoint(folder: Path) -> None:
    plan = open_plan(folder)
    layers = [matrix for matrix in plan.matrices if matrix.name.startswith("layers.")]
    assert {(matrix.type, matrix.bits_per_weight) for matrix in layers} == {("U4_128", 4.25)}
    assert plan.spec.num_layers * 7 == len(layers)
