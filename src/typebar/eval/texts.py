"""The texts that next tokens are predicted on, cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from typebar.errors import TypebarError
from typebar.text.tokenizer import Tokenizer

BUILTIN, NONE = "builtin", "none"
WINDOW = 512  # tokens at most, each window from position 0
MOST_BYTES = 64 << 20  # of a file
_BUILTIN_NAMES = ("zh", "en", "code")


@dataclass(frozen=True, slots=True)
class Text:
    """A text and the name that its figures go by."""

    name: str
    content: str


def read_texts(sources: Sequence[str]) -> list[Text]:
    """The texts of files; "builtin" stands for typebar's own, "none" for nothing. TypebarError names a bad file.

    A file called as one of typebar's own texts goes by ./NAME.
    """
    texts = []
    for source in dict.fromkeys(sources):
        if source == BUILTIN:
            texts += [Text(name, _builtin(name)) for name in _BUILTIN_NAMES]
        elif source != NONE:
            name = f"./{source}" if source in _BUILTIN_NAMES else source
            texts.append(Text(name, _read(Path(source))))
    return texts


def windows(text: Text, tokenizer: Tokenizer, limit: int, size: int = WINDOW) -> list[list[int]]:
    """The first `limit` tokens, in windows of up to `size` tokens that each begin as the model's own texts do.

    TypebarError for a text too short to predict anything of.
    """
    tokens = tokenizer.encode(text.content)[:limit]
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    step = size - len(begin)
    cut = [begin + tokens[start : start + step] for start in range(0, len(tokens), step)]
    found = [window for window in cut if len(window) > 1]
    if not found:
        raise TypebarError(f"{text.name} has {len(tokens)} tokens, but needs at least two: give a longer text")
    return found


def read_utf8(path: Path) -> str:
    """The text of a file, without a byte order mark. TypebarError where it cannot be read, or takes above 64 MiB."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise TypebarError(f"{path} is longer than {MOST_BYTES >> 20} MiB: give its beginning")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TypebarError(f"{path} is not UTF-8 text (byte {error.start}): convert it first") from error
    except OSError as error:
        raise TypebarError(f"{path} cannot be read: {error.strerror}") from error


def _builtin(name: str) -> str:
    return files("typebar.eval").joinpath(f"texts/{name}.txt").read_text(encoding="utf-8")


def _read(path: Path) -> str:
    content = read_utf8(path)
    if not content.strip():
        raise TypebarError(f"{path} is empty: give a text of some hundred words")
    return content
