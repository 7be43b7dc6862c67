"""The screened output layer against the full one on the real model: the same tokens, whatever is drawn.

TYPEBAR_SCREENED_POSITIONS=100000 checks that many positions, in about half an hour on two cores.
"""

import json
import os
import random
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from typebar.model.load import LoadedModel, load_model

POSITIONS = int(os.environ.get("TYPEBAR_SCREENED_POSITIONS", "1500"))
STEP = 128  # tokens whose full logits, 152 000 each, are compared at a time: 78 MB
CONTEXT = 1024


@pytest.fixture(scope="module", params=["keep", "q4"])
def model(coder_path: Path, request: pytest.FixtureRequest) -> LoadedModel:
    """With the file's output layer of 8 bits, and one of 6."""
    model = load_model(coder_path, max_model_len=CONTEXT, quantization=request.param)
    assert model.native.screens
    return model


def pieces() -> list[str]:
    """Prose in several languages, code, JSON and noise."""
    root = Path(__file__).parents[2]
    texts = [(files("typebar.bench") / "mixed.txt").read_text("utf-8")]
    suffixes = {".md", ".py", ".cpp", ".h", ".inc", ".ts", ".tsx", ".css"}
    for folder in ("docs", "native", "src", "web/src"):
        paths = sorted(path for path in (root / folder).rglob("*") if path.suffix in suffixes)
        texts += [path.read_text("utf-8") for path in paths]
    generator = random.Random(5)
    texts.append(json.dumps([{"id": generator.random(), "ok": bool(n % 3)} for n in range(200)]))
    scripts = (0x4E00, 0x3040, 0x400, 0x20)
    texts.append("".join(chr(generator.choice(scripts) + generator.randrange(90)) for _ in range(2000)))
    cut = [text[start : start + 3000] for text in texts for start in range(0, len(text), 3000)]
    generator.shuffle(cut)
    return [texts[0][:3000], *cut]


def test_the_best_logits_are_those_of_the_full_output_layer(model: LoadedModel) -> None:
    blocks = np.arange(CONTEXT // 16, dtype=np.int32)[None]
    checked = computed = 0
    for text in pieces():
        tokens = np.array(model.tokenizer.encode(text)[: CONTEXT - 1], np.int32)
        for start in range(0, len(tokens), STEP):
            step = tokens[start : start + STEP]
            batch = (step, np.array([len(step)], np.int32), np.array([start], np.int32), blocks)
            full = model.native.logits(*batch)
            usable = full[:, : model.usable_vocab]
            for count in (1, 20):
                screened = model.native.logits(*batch, best_needed=count)
                kept = screened != -np.inf
                assert np.array_equal(screened[kept], full[kept])
                least = np.partition(usable, -count)[:, -count]
                assert kept[:, : model.usable_vocab][usable >= least[:, None]].all()
                computed += kept.mean() * len(step)
            checked += len(step)
        if checked >= POSITIONS:
            break
    assert checked >= POSITIONS
    assert computed < 0.25 * 2 * checked
