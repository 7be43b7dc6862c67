"""Writes native/unicode_classes.inc from the tables of the `tokenizers` package, so that words are cut as it cuts them.

python tools/unicode_classes.py
"""

from itertools import groupby
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

TARGET = Path(__file__).resolve().parent.parent / "native" / "unicode_classes.inc"
CLASSES = {r"\p{L}": 1, r"\p{N}": 2, r"\s": 3}
HEADER = """\
// Made by tools/unicode_classes.py: where the class of code points changes (Unicode 16), first code point * 4 + class.
// Classes: 0 other, 1 letter (L), 2 number (N), 3 white space.
// clang-format off
"""


def main() -> None:
    class_of = [0] * 0x110000
    for expression, number in CLASSES.items():
        for code in members(expression):
            class_of[code] = number
    starts = [next(codes) * 4 + number for number, codes in groupby(range(0x110000), class_of.__getitem__)]
    lines = [", ".join(f"{start:#x}" for start in starts[i : i + 12]) for i in range(0, len(starts), 12)]
    TARGET.write_text(HEADER + ",\n".join(lines) + "\n")


def members(expression: str) -> set[int]:
    """Code points that `expression` matches: those that are gone where it splits and is removed."""
    split = pre_tokenizers.Split(Regex(expression), "removed")
    codes = {code for code in range(0x110000) if not 0xD800 <= code < 0xE000}
    text = "".join(map(chr, sorted(codes)))
    step = 4096
    kept = {
        char
        for i in range(0, len(text), step)
        for word, _ in split.pre_tokenize_str(text[i : i + step])
        for char in word
    }
    return codes - set(map(ord, kept))


if __name__ == "__main__":
    main()
