"""The screened output layer against the full one on real models: the same tokens, whatever is drawn.

TYPEBAR_SCREENED_POSITIONS=100000 checks that many positions of each quantization, in 22 minutes of processor time each.
"""

import os
import random
from collections.abc import Iterator
from importlib.resources import files
from itertools import count
from pathlib import Path
from pydoc_data.topics import topics as python_manual

import numpy as np
import numpy.typing as npt
import pytest

from typebar import LLM, SamplingParams, _native
from typebar.model.load import LoadedModel, load_model

POSITIONS = int(os.environ.get("TYPEBAR_SCREENED_POSITIONS", "1500"))
CONTEXT = 512
STEP = 128  # tokens of a text that is read at a time
WRITERS = 32  # Chinese texts that are written at a time
COMPARED = 16  # rows whose logits, 152 000 each, are compared at a time: 10 MB
TOPICS = [
    "长城",
    "茶",
    "高铁",
    "熊猫",
    "春节",
    "围棋",
    "书法",
    "航天",
    "咖啡",
    "大海",
    "沙漠",
    "蜜蜂",
    "城市交通",
    "古诗",
    "电影",
    "足球",
    "人工智能",
    "数学",
    "医院",
    "农业",
    "银行",
    "法律",
    "气候",
    "地震",
    "音乐",
    "厨房",
    "孩子",
    "旅行",
    "程序设计",
    "历史",
    "河流",
    "博物馆",
]
FORMS = ["短文", "新闻报道", "故事", "说明书", "书信", "对话", "评论", "教案"]

Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=["keep", "q4"])
def model(coder_path: Path, request: pytest.FixtureRequest) -> LoadedModel:
    """With the file's output layer of 8 bits, and one of 6."""
    model = load_model(
        coder_path, max_model_len=CONTEXT, quantization=request.param, max_num_seqs=WRITERS, kv_memory=256 << 20
    )
    assert model.native.screens
    return model


def english() -> list[str]:
    """Prose in English, with Spanish and Chinese at the start."""
    package = files("typebar")
    return [(package / "bench" / "mixed.txt").read_text("utf-8"), *python_manual.values()]


def code() -> list[str]:
    folders = (Path(__file__).parents[2] / "native", Path(os.__file__).parent)
    return [path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.[pch]*"))]


def read(model: LoadedModel, texts: list[str]) -> Iterator[Logits]:
    """The logits of every token, some tokens at a time, in texts cut to what the context holds."""
    blocks = np.arange(CONTEXT // 16, dtype=np.int32)[None]
    pieces = [text[start : start + 2000] for text in texts for start in range(0, len(text), 2000)]
    random.Random(5).shuffle(pieces)
    for text in pieces:
        tokens = np.array(model.tokenizer.encode(text)[:CONTEXT], np.int32)
        for start in range(0, len(tokens), STEP):
            step = tokens[start : start + STEP]
            yield model.native.logits(step, np.array([len(step)], np.int32), np.array([start], np.int32), blocks)


def write(model: LoadedModel) -> Iterator[Logits]:
    """The logits of every token that the model writes about each topic at temperature 1, one form after another."""
    width = CONTEXT // 16
    blocks = np.arange(WRITERS * width, dtype=np.int32).reshape(WRITERS, width)
    ends = [(token, -100.0) for token in sorted(model.tokenizer.end_ids)]
    for seed in count():
        form = FORMS[seed % len(FORMS)]
        samplers = [sampler(model, temperature=1.0, top_p=0.95, seed=seed, logit_bias=ends) for _ in TOPICS]
        new = [model.tokenizer.encode(f"请写一篇关于{topic}的{form}。\n\n") for topic in TOPICS]
        starts = np.zeros(WRITERS, np.int32)
        while starts.max() + 1 < CONTEXT:
            lengths = np.array([len(tokens) for tokens in new], np.int32)
            logits = model.native.logits(np.concatenate(new).astype(np.int32), lengths, starts, blocks)
            yield logits
            starts = starts + lengths
            rows = logits[np.cumsum(lengths) - 1]
            new = [[draw.draw(row, int(at)).token] for draw, row, at in zip(samplers, rows, starts, strict=True)]


def sampler(model: LoadedModel, **params: object) -> _native.Sampler:
    vocab_size = {name: rows for name, _, rows, _, _ in model.native.describe()}["head"]
    return _native.Sampler(vocab_size=vocab_size, usable_vocab=model.usable_vocab, **params)  # type: ignore[arg-type]


def check_best(screened: Logits, full: Logits, best: int) -> None:
    """All computed logits are the full ones, and those left out are below the best so many."""
    left_out = screened == -np.inf
    assert ((screened == full) | left_out).all()
    largest_left_out = np.where(left_out, full, -np.inf).max(axis=1)
    assert ((screened > largest_left_out[:, None]).sum(axis=1) >= best).all()


def test_draws_from_the_screened_output_layer_are_those_from_the_full_one(model: LoadedModel) -> None:
    sources = [read(model, english()), read(model, code()), write(model)]
    checked = [0] * len(sources)
    draws = {1: sampler(model, temperature=0.0), 20: sampler(model, temperature=1.0, top_k=20, seed=11)}
    computed = dict.fromkeys(draws, 0.0)
    while sum(checked) < POSITIONS:
        source = checked.index(min(checked))
        full = next(sources[source])
        for best, draw in draws.items():
            screened = model.native.logits_again(best_needed=best)
            for first in range(0, len(full), COMPARED):
                ours, theirs = (logits[first : first + COMPARED] for logits in (screened, full))
                check_best(ours[:, : model.usable_vocab], theirs[:, : model.usable_vocab], best)
                computed[best] += float((ours != -np.inf).mean()) * len(ours)
                for row, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                    position = sum(checked) + first + row
                    assert draw.draw(one, position).token == draw.draw(other, position).token
        checked[source] += len(full)
    shares = {best: rows / sum(checked) for best, rows in computed.items()}
    print(f"{checked} positions of English, code and Chinese; computed with the best so many: {shares}")
    assert shares[1] < 0.05
    assert shares[20] < 0.15


def test_answers_are_the_same_where_most_tiles_pass_the_screen(smollm_path: Path) -> None:
    """With 576 inputs and 20 needed it is given up, and tried again after a while; greedy draws between use it."""
    params = [SamplingParams(temperature=t, top_k=20, seed=seed, max_tokens=90) for seed in range(2) for t in (0, 1)]
    answers = []
    for screened in (True, False):
        with LLM(str(smollm_path), screened_head=screened, max_model_len=256) as llm:
            texts = [llm.generate("The sea is", param, use_tqdm=False)[0].outputs[0].token_ids for param in params]
            answers.append(texts)
    assert answers[0] == answers[1]
    assert len({tuple(text) for text in answers[0]}) == 3  # greedy twice the same
