"""Unicode's composed form, NFC, with the tables of the tokenizers library whatever Python runs this."""

import re
from functools import cache
from itertools import groupby
from unicodedata import combining, is_normalized, normalize

__all__ = ["nfc"]

# The library's tables are those of Unicode 9: marks that came later neither move nor combine, up to Unicode 17 these.
_YOUNGER = (
    "5c8-5c9 7fd 897-89f 8ca-8d3 9fe c3c d3b-d3c eba 1715 1abf-1af0 1df6-1dfa a82c 105d2 105da 10d24-10d27 10d69-10d6d "
    "10eab-10eac 10ecb-10ecf 10ef0-10efb 10efd-10eff 10f46-10f50 10f82-10f85 11070 1133b 113b8 113bb 113c2 113c9 "
    "113ce-113d0 1145e 11839-1183a 11930 1193d-1193e 11943 119e0 11a34 11a47 11a99 11d42 11d44-11d45 11d97 11f41-11f42 "
    "1611e-16120 16129 1612f 16d67 16ff0-16ff1 1d127-1d128 1d250-1d252 1d25b-1d25c 1d25f 1d280-1d281 1e08f 1e130-1e136 "
    "1e2ae 1e2ec-1e2ef 1e4ec-1e4ef 1e5ee-1e5ef 1e6e3 1e6e6 1e6ee-1e6ef 1e6f5"
)


# CPython orders a run of marks in quadratic time with the GIL held, ten seconds for 100 000, so that longer runs than
# any writing has are ordered first. Runs of what might be marks: not Latin, kana, Han or Hangul.
_LONGEST_RUN = 30
_LONG_RUN = re.compile(rf"[^\x00-\u02ff\u3041-\u3096\u309b-\u9fff\uac00-\ud7ff]{{{_LONGEST_RUN + 1},}}")
_STARTING_WITH_MARKS = "\u0f73\u0f75\u0f81"  # are no marks themselves, but decompose to some


def nfc(text: str) -> str:
    """`text` in NFC."""
    is_long = _LONG_RUN.search(text) is not None
    if not is_long and is_normalized("NFC", text):
        return text
    parts = _younger().split(text)
    return "".join(normalize("NFC", _LONG_RUN.sub(_order_marks, part) if is_long else part) for part in parts)


def _order_marks(run: re.Match[str]) -> str:
    groups = ["".join(group) for _, group in groupby(run[0], _is_mark)]
    return "".join(map(_ordered, groups))


def _ordered(group: str) -> str:
    if len(group) <= _LONGEST_RUN or not _is_mark(group[0]):
        return group
    return "".join(sorted("".join(normalize("NFD", mark) for mark in group), key=combining))


def _is_mark(char: str) -> bool:
    return combining(char) != 0 or char in _STARTING_WITH_MARKS


@cache
def _younger() -> re.Pattern[str]:
    ranges = ("-".join(chr(int(code, 16)) for code in part.split("-")) for part in _YOUNGER.split())
    return re.compile(f"([{''.join(ranges)}])")
