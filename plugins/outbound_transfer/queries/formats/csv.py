"""CSV as RFC 4180 has it: UTF-8, a header, lines that end in CR LF."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, BinaryIO, Final

from outbound_transfer.queries.rows import Result, iter_rows
from outbound_transfer.queries.values import encodable_texts, to_text

#: Values of these types are no formulas, whatever their texts begin with.
_NO_FORMULAS: Final = frozenset((NoneType, bool, int, float, Decimal, date, datetime, time, timedelta))

#: Types that the library writes as :func:`.to_text` does.
_NATIVE: Final = frozenset((NoneType, int, float, str))

#: What a spreadsheet takes for the start of a formula (OWASP, "CSV Injection"), in its full-width forms too.
_FORMULA: Final = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")

#: A text that is a number is none: a spreadsheet computes nothing with it.
_NUMBER: Final = re.compile(r"[+-]?[0-9]+([.,][0-9]+)*([eE][+-]?[0-9]+)?")


def write_csv(result: Result, file: BinaryIO, *, escape_formulas: bool) -> None:
    """Write a result as CSV.

    :param escape_formulas: put an apostrophe before a text, or a column's name, that a spreadsheet would compute.
    :raises ResultNotWritable: a text cannot be encoded.
    """

    def cells(values: Sequence[Any]) -> Sequence[Any]:
        kinds = set(map(type, values))
        texts = values if kinds <= _NATIVE else [None if value is None else to_text(value) for value in values]
        if escape_formulas and not kinds <= _NO_FORMULAS:
            return [escape_formula(text) if isinstance(text, str) else text for text in texts]
        return texts

    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    with encodable_texts():
        writer.writerow(cells(result.columns))
        for batch in result.batches:
            writer.writerows(iter_rows([cells(column) for column in batch]))
        text.detach()


def escape_formula(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula: ``=1+1`` becomes ``'=1+1``, and ``-1`` stays."""
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
