"""The text that activations are measured on: typebar's own, or a file."""

from __future__ import annotations

from importlib.resources import files

from typebar.eval.texts import BUILTIN, Text, read_texts, windows
from typebar.text.tokenizer import Tokenizer

NAMES = ("zh", "en", "code")
MAX_TOKENS = 4096  # of each text
SAMPLED_TOKENS, SAMPLED_WINDOW = 192, 64  # of all texts together, where each part of a model is measured alone


def read_calibration(source: str) -> list[Text]:
    """The text in the file `source`, or typebar's own, which is another than it evaluates on. TypebarError."""
    if source != BUILTIN:
        return read_texts([source])
    folder = files("typebar.quantize").joinpath("texts")
    return [Text(name, folder.joinpath(f"{name}.txt").read_text(encoding="utf-8")) for name in NAMES]


def calibration_windows(texts: list[Text], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids in windows that each begin as the model's own texts do."""
    return [window for text in texts for window in windows(text, tokenizer, MAX_TOKENS)]


def sampled_windows(texts: list[Text], tokenizer: Tokenizer) -> list[list[int]]:
    """As calibration_windows, of the beginnings of the texts, and short."""
    most = SAMPLED_TOKENS // len(texts)
    return [window for text in texts for window in windows(text, tokenizer, most, SAMPLED_WINDOW)]
