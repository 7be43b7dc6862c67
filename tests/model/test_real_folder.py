"""The Coder model as a Hugging Face folder of f16 shards, against what transformers makes of the same folder."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from typebar.bench.quality import typebar_logits
from typebar.bench.reference import Reference, divergence, mixed_tokens, reference, transformers_model
from typebar.model.cache import cache_dir, sha256_file
from typebar.model.gguf import GGUFFile

QUESTIONS = ["Write a Python function that reverses a list.", "用一句话解释什么是数据库索引。"]
GREEDY_TOKENS = 24
TOKENS = 128
IM_END = 151645
GREEDY = "greedy.json"


@pytest.fixture(scope="module")
def folder(coder_path: Path) -> Path:
    """Made once, 1 GB: the dequantized weights as f16 in three shards, the tokenizer, and greedy answers in float32."""
    made = cache_dir() / "reference" / f"{sha256_file(coder_path)[:16]}-float16-shards"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent, prefix=".folder-") as scratch:
            part = Path(scratch) / "made"
            write(coder_path, part)
            part.rename(made)
    return made


def write(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from text_reference import hf_qwen2_tokenizer

    transformers_model(gguf).half().save_pretrained(folder, max_shard_size="400MB")
    tokenizer = hf_qwen2_tokenizer(GGUFFile.open(gguf).metadata)
    tokenizer.save_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    answers = []
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text)["input_ids"]
        answer = network.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=GREEDY_TOKENS)
        answers.append({"prompt": prompt, "answer": answer[0, len(prompt) :].tolist()})
    (folder / GREEDY).write_text(json.dumps(answers))


def test_logits_are_those_of_the_reference(folder: Path, coder_path: Path) -> None:
    """Rounding weights to f16 costs next to nothing, where the rounding of activations costs the GGUF file 0.003."""
    tokens = mixed_tokens(coder_path)
    expected = reference(coder_path, tokens)  # of the first tokens it does not depend on the others
    first = Reference(expected.log_probs[:TOKENS], expected.top[:TOKENS])
    result = divergence(first, typebar_logits(folder, tokens[:TOKENS]))
    assert result.mean_kl <= 2e-4, result
    assert result.same_top_percent >= 99, result


CHAT = """
import json, sys
from pathlib import Path
from typebar import LLM, SamplingParams
from typebar.memory import peak_rss
folder, questions = Path(sys.argv[1]), json.loads(sys.argv[2])
with LLM(str(folder), quantization="keep", max_model_len=256) as llm:
    loaded = peak_rss()
    params = SamplingParams(temperature=0, max_tokens=int(sys.argv[3]))
    answers = [llm.chat([{"role": "user", "content": question}], params)[0] for question in questions]
    facts = [[list(answer.prompt_token_ids), list(answer.outputs[0].token_ids)] for answer in answers]
    print(json.dumps([facts, loaded, llm.model.native.memory()["weights"], llm.model.usable_vocab]))
"""


def up_to_end(answer: list[int]) -> list[int]:
    """The configuration names no end token, so transformers goes on after it."""
    return answer[: answer.index(IM_END) + 1] if IM_END in answer else answer


def test_greedy_answers_and_memory(folder: Path) -> None:
    command = [sys.executable, "-c", CHAT, str(folder), json.dumps(QUESTIONS), str(GREEDY_TOKENS)]
    facts, loaded, weights, usable_vocab = json.loads(
        subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    )
    expected = json.loads((folder / GREEDY).read_text())
    assert [prompt for prompt, _ in facts] == [answer["prompt"] for answer in expected]
    assert [answer for _, answer in facts] == [up_to_end(answer["answer"]) for answer in expected]
    assert usable_vocab == 151_665
    assert 0.95e9 < weights < 1.0e9
    assert loaded < weights + 250e6, "nothing of the weights is held twice"
