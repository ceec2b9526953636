"""CSV as RFC 4180 has it: UTF-8, a header, lines that end in CR LF."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from types import NoneType
from typing import Any, BinaryIO, Final

import msgspec

from outbound_transfer.queries.values import Result, to_text

#: Types whose texts are the database's own; those of the others are digits, dates, durations and base64.
_TEXTS: Final = frozenset((str, msgspec.Raw))

#: Types that the library writes as :func:`.to_text` does.
_NATIVE: Final = frozenset((NoneType, int, float, str))

#: What a spreadsheet takes for the start of a formula (OWASP, "CSV Injection"), in its full-width forms too.
SIGNS: Final = "=+@\uff1d\uff0b\uff0d\uff20-"

#: What it skips before one, in the form of a regular expression: blanks, control characters, quotes, byte order marks.
_BLANKS: Final = '\x01-\x08\x0b\x0c\x0e- "\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff'

#: A formula at the start of a text, or where a spreadsheet that expects no commas begins a cell: quotes do not hold it
#: off, as they do not begin its cell.
FORMULA: Final = f"(^|[;\t\r\n])([{_BLANKS}]*[{SIGNS}])"
_FORMULA: Final = re.compile(FORMULA.replace("\x01", "\x00"))

#: A text that is a number is none: a spreadsheet computes nothing with it.
NUMBER: Final = "[-+]?[0-9]+([.,][0-9]+)*([eE][-+]?[0-9]+)?"
_NUMBER: Final = re.compile(NUMBER)


def write(result: Result, file: BinaryIO, *, escape_formulas: bool) -> None:
    """Write a result, on request with an apostrophe before what a spreadsheet would compute in a text or a name."""

    def cells(values: Sequence[Any]) -> Sequence[Any]:
        kinds = set(map(type, values))
        texts = values if kinds <= _NATIVE else list(map(to_text, values))
        if escape_formulas and not kinds.isdisjoint(_TEXTS):
            pairs = zip(values, texts, strict=True)
            return [escape_formula(text) if type(value) in _TEXTS else text for value, text in pairs]
        return texts

    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(cells(result.columns))
    for batch in result.batches:
        writer.writerows(zip(*map(cells, batch), strict=True))
    text.detach()


def escape_formula(text: str) -> str:
    """Return a text in which no spreadsheet finds a formula, whichever separator it expects.

    ``=1+1`` becomes ``'=1+1``, ``a;-1`` becomes ``a;'-1``, as the next text may go on with it; ``-1`` stays.
    """
    if not _NUMBER.fullmatch(text):
        text = _FORMULA.sub(r"\1'\2", text)
    return f"'{text}" if text.startswith(("\t", "\r", "\n")) else text
