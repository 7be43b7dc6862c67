"""The texts that next tokens are predicted on, cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from typebar.errors import TypebarError
from typebar.text.tokenizer import Tokenizer

BUILTIN, NONE = "builtin", "none"
WINDOW = 512  # tokens, each window from position 0
_BUILTIN_NAMES = ("zh", "en", "code")


@dataclass(frozen=True, slots=True)
class Text:
    """A text and the name that its figures go by."""

    name: str
    content: str


def read_texts(sources: Sequence[str]) -> list[Text]:
    """The texts of files; "builtin" stands for typebar's own, "none" for nothing. TypebarError names a bad file."""
    texts = []
    for source in dict.fromkeys(sources):
        if source == BUILTIN:
            texts += [Text(name, _builtin(name)) for name in _BUILTIN_NAMES]
        elif source != NONE:
            texts.append(Text(source, _read(Path(source))))
    return texts


def windows(text: Text, tokenizer: Tokenizer, limit: int) -> list[list[int]]:
    """The first `limit` tokens, in windows of up to WINDOW tokens that each begin as the model's own texts do."""
    tokens = tokenizer.encode(text.content)[:limit]
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    size = WINDOW - len(begin)
    cut = [begin + tokens[start : start + size] for start in range(0, len(tokens), size)]
    return [window for window in cut if len(window) > 1]


def _builtin(name: str) -> str:
    return files("typebar.eval").joinpath(f"texts/{name}.txt").read_text(encoding="utf-8")


def _read(path: Path) -> str:
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TypebarError(f"{path} is not UTF-8 text (byte {error.start}): convert it first") from error
    except OSError as error:
        raise TypebarError(f"{path} cannot be read: {error.strerror}") from error
    if not content.strip():
        raise TypebarError(f"{path} is empty: give a text of some hundred words")
    return content
